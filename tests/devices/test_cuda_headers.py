"""Numbers and calls of CUDA's libraries, compared with NVIDIA's headers; needs no GPU."""

from __future__ import annotations

import gc
import importlib
import re
from collections.abc import Callable, Sequence
from ctypes import Array, byref, c_int, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fake_cublas import FakeCublas
from fake_cudnn import FakeCudnn
from fake_gpu import FakeGpu
from plait.devices.cuda import (
    copies,
    cublas,
    cudnn,
    cudnn_graphs,
    descriptors,
    driver,
    libraries,
    memory,
)
from plait.devices.cuda.binding import DEVICE_TO_DEVICE
from plait.devices.cuda.convolutions import StaticConvolution
from plait.devices.cuda.cublas import ARITHMETIC, Cublas, Places, find_cublas
from plait.devices.cuda.cudnn import Cudnn, find_cudnn
from plait.devices.cuda.products import Factor, Product, Result
from plait.devices.errors import DeviceError

KINDS = {
    "cublasComputeType_t": c_int,
    "cublasLtHandle_t": c_void_p,
    "cublasLtMatmulDescAttributes_t": c_int,
    "cublasLtMatmulDesc_t": c_void_p,
    "cublasLtMatmulPreferenceAttributes_t": c_int,
    "cublasLtMatmulPreference_t": c_void_p,
    "cublasLtMatrixLayoutAttribute_t": c_int,
    "cublasLtMatrixLayout_t": c_void_p,
    "cudaDataType": c_int,
    "cudaDataType_t": c_int,
    "cudaStream_t": c_void_p,
    "cudnnBackendAttributeName_t": c_int,
    "cudnnBackendAttributeType_t": c_int,
    "cudnnBackendDescriptorType_t": c_int,
    "cudnnBackendDescriptor_t": c_void_p,
    "cudnnBackendDescriptor_t const": c_void_p,
    "cudnnHandle_t": c_void_p,
    "int": c_int,
    "int64_t": c_int64,
    "size_t": c_size_t,
    "uint64_t": c_uint64,
}
"""What a type of C is to ctypes."""
POINTERS = (c_void_p, type(byref(c_int())), Array)


@cache
def header(name: str) -> str:
    """Return the text of a header of the wheels."""
    try:
        wheels = importlib.import_module("nvidia").__path__
    except ImportError:
        wheels = []
    found = [path for folder in wheels for path in Path(folder).glob(f"*/include/{name}")]
    if not found:
        wanted = "nvidia-cudnn-cu13" if "cudnn" in name else "nvidia-cublas nvidia-cuda-runtime"
        pytest.skip(f"{name} is not installed: pip install {wanted}")
    return found[0].read_text()


def number(name: str, text: str) -> int:
    """Return the value of a name in an enumeration or of a macro."""
    match = re.search(rf"\b{name}(?:\s*=\s*|\s+)(-?\d\w*)", text)
    assert match is not None, name
    return int(match[1], 0)


def listed(name: str, file: str = "cublasLt.h") -> list[str]:
    """Return the types of a function's parameters."""
    match = re.search(rf"WINAPI\s+{name}\((.*?)\);", header(file), re.DOTALL)
    assert match is not None, name
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", "", match[1], flags=re.DOTALL).replace("*", "* ")
    bare = re.sub(r"(\w+)\[\]", r"* \1", bare)
    return [" ".join(each.split()[:-1]).replace(" *", "*") for each in bare.split(",")]


def check_types(name: str, calls: Sequence[tuple[Any, ...]], types: Sequence[str]) -> None:
    """Fail unless all calls of a function have arguments of the types of its parameters."""
    for given in calls:
        assert len(given) == len(types), name
        for value, kind in zip(given, types, strict=True):
            wanted = POINTERS if kind.endswith("*") else (KINDS[kind],)
            assert isinstance(value, wanted), (name, kind)


class Listener:
    """A library that remembers how it was called; it does what another one does, or nothing."""

    def __init__(self, library: object = None) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = {}
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.calls.setdefault(name, []).append(given)
            return getattr(self._library, name)(*given) if self._library else cublas.SUCCESS

        return call


@pytest.fixture(scope="module")
def listener() -> Listener:
    """Return what heard all calls that products of all kinds make."""
    gpu = FakeGpu(0, 1 << 24)
    made = Listener(FakeCublas(gpu))
    handle, stream, (at, _) = Cublas(made), gpu.new_stream(0), gpu.allocate(1 << 20, 0)
    places = Places(*(at + 4096 * number for number in (0, 1, 2, 4, 3)))
    plain = Product("float32", Factor(0), Factor(1), 4, 8, 12)
    products = [
        plain._replace(dtype=dtype, batch=batch) for dtype in ARITHMETIC for batch in (1, 2)
    ]
    apart = plain._replace(result=Result("float32", 40, 10), alignment=16)
    for product in (*products, apart, plain.biased(is_rectified=True)):
        handle.bind(product, places, stream)()
    gpu.drain()
    handle.close()
    libraries.read_version(made.cublasLtGetVersion)
    gpu.free(at)
    gc.collect()
    return made


def test_cublas_is_called_as_its_header_declares(listener: Listener) -> None:
    assert len(listener.calls) == 14
    for name, calls in listener.calls.items():
        if name != "cublasLtGetVersion":  # it takes nothing
            check_types(name, calls, listed(name))


def test_cublas_has_the_functions(listener: Listener) -> None:
    library = find_cublas()
    if library is None:
        pytest.skip("cuBLAS is not installed: pip install nvidia-cublas")
    assert [name for name in listener.calls if not hasattr(library, name)] == []


def test_a_handle_is_made_or_there_is_no_driver() -> None:
    library, reason = find_cublas(), ""
    if library is None:
        pytest.skip("cuBLAS is not installed: pip install nvidia-cublas")
    try:
        Cublas(library).close()
    except DeviceError as error:
        reason = error.what
    assert reason in ("", "cublasLtCreate fails: CUBLAS_STATUS_NOT_INITIALIZED")


def test_numbers_of_cublas() -> None:
    text, own = header("cublas_api.h"), header("cublasLt.h")
    assert {number(name, text): name for name in cublas.STATUS.values()} == cublas.STATUS
    for mine, name in {
        cublas.SUCCESS: "CUBLAS_STATUS_SUCCESS",
        cublas.AS_STORED: "CUBLAS_OP_N",
        cublas.TRANSPOSED: "CUBLAS_OP_T",
        cublas.TF32: "CUBLAS_COMPUTE_32F_FAST_TF32",
    }.items():
        assert mine == number(name, text), name
    for mine, name in {
        cublas.TRANSPOSE_LEFT: "MATMUL_DESC_TRANSA",
        cublas.TRANSPOSE_RIGHT: "MATMUL_DESC_TRANSB",
        cublas.EPILOGUE: "MATMUL_DESC_EPILOGUE",
        cublas.BIAS: "MATMUL_DESC_BIAS_POINTER",
        cublas.ADD_BIAS: "EPILOGUE_BIAS",
        cublas.COUNT: "MATRIX_LAYOUT_BATCH_COUNT",
        cublas.STRIDE: "MATRIX_LAYOUT_STRIDED_BATCH_OFFSET",
        cublas.MOST_WORKSPACE: "MATMUL_PREF_MAX_WORKSPACE_BYTES",
        cublas.REDUCTIONS: "MATMUL_PREF_REDUCTION_SCHEME_MASK",
        cublas.EXACT_SUMS: "REDUCTION_SCHEME_COMPUTE_TYPE",
    }.items():
        assert mine == number(f"CUBLASLT_{name}", own), name
    for mine, operand in zip(cublas.ALIGNMENTS, "ABCD", strict=True):
        assert mine == number(f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{operand}_BYTES", own), operand
    assert cublas.ADD_BIAS | number("CUBLASLT_EPILOGUE_RELU", own) == cublas.ADD_BIAS_AND_RELU


def test_an_algorithm_of_cublas_is_as_large_as_its_header_says() -> None:
    fields = re.search(
        r"typedef struct \{([^}]*)\} cublasLtMatmulHeuristicResult_t", header("cublasLt.h")
    )
    assert fields is not None
    bare = re.sub(r"/\*.*?\*/", "", fields[1], flags=re.DOTALL)
    names = re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?;", bare)
    assert [kind for kind, _, _ in names] == [
        *("cublasLtMatmulAlgo_t", "size_t", "cublasStatus_t", "float", "int")
    ]
    assert re.search(r"uint64_t data\[8\];\s*\} cublasLtMatmulAlgo_t", header("cublasLt.h"))
    assert sizeof(cublas.HeuristicResult) == 8 * 8 + 8 + 4 + 4 + 4 * int(names[-1][2])


@pytest.mark.parametrize(
    ("dtype", "factors", "sums", "scales", "compute"),
    [
        ("float16", "16F", "16F", "32F", "32F"),
        ("bfloat16", "16BF", "16BF", "32F", "32F"),
        ("float32", "32F", "32F", "32F", "32F"),
        ("float64", "64F", "64F", "64F", "64F"),
        ("int8", "8I", "32I", "32I", "32I"),
    ],
)
def test_types_of_products(dtype: str, factors: str, sums: str, scales: str, compute: str) -> None:
    types, arithmetic = header("library_types.h"), ARITHMETIC[dtype]
    assert arithmetic.factors == number(f"CUDA_R_{factors}", types)
    assert arithmetic.sums == number(f"CUDA_R_{sums}", types)
    assert arithmetic.scales == number(f"CUDA_R_{scales}", types)
    assert arithmetic.compute == number(f"CUBLAS_COMPUTE_{compute}", header("cublas_api.h"))


@pytest.fixture(scope="module")
def conversation() -> Listener:
    """Return what heard all calls that a convolution makes."""
    gpu = FakeGpu(0, 1 << 20)
    made = Listener(FakeCudnn(gpu))
    handle, stream, (at, _) = Cudnn(made), gpu.new_stream(0), gpu.allocate(1 << 16, 0)
    one = StaticConvolution(
        "float16", (1, 4, 3, 3), (4, 4, 1, 1), (1, 4, 3, 3), (0, 0), (0, 0), (1, 1), (1, 1), True
    )
    x, w, y, workspace = (at + 4096 * number for number in range(4))
    handle.bind(one, 0, (x, w, y), workspace, stream)()
    gpu.drain()
    handle.close()
    with pytest.raises(DeviceError):
        descriptors.check(made, descriptors.REFUSED.start, "a call")
    libraries.read_version(made.cudnnGetVersion)
    gpu.free(at)
    return made


def test_cudnn_is_called_as_its_header_declares(conversation: Listener) -> None:
    assert len(conversation.calls) == 11
    for name, calls in conversation.calls.items():
        if name != "cudnnGetVersion":  # it takes nothing
            check_types(name, calls, listed(name, "cudnn_graph.h"))


def test_cudnn_has_the_functions(conversation: Listener) -> None:
    library = find_cudnn()
    if library is None:
        pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")
    assert [name for name in conversation.calls if not hasattr(library, name)] == []


@pytest.mark.parametrize(
    ("numbers", "form"),
    [
        (descriptors.DescriptorKind, "CUDNN_BACKEND_{}_DESCRIPTOR"),
        (descriptors.Type, "CUDNN_TYPE_{}"),
        (descriptors.Name, "CUDNN_ATTR_{}"),
    ],
)
def test_numbers_of_descriptors(numbers: type[IntEnum], form: str) -> None:
    text = header("cudnn_graph.h").replace("CUDNN_DEPRECATED_ENUM", "")
    for each in numbers:
        assert each == number(form.format(each.name), text), each.name


def test_numbers_of_cudnn() -> None:
    text = header("cudnn_graph.h")
    for mine, name in {
        descriptors.SUCCESS: "STATUS_SUCCESS",
        descriptors.REFUSED.start: "STATUS_BAD_PARAM",
        descriptors.REFUSED.stop: "STATUS_EXECUTION_FAILED",
        cudnn_graphs.CROSS_CORRELATION: "CROSS_CORRELATION",
        cudnn.HEURISTICS[0]: "HEUR_MODE_A",
        cudnn.HEURISTICS[1]: "HEUR_MODE_FALLBACK",
        cudnn.TENSOR_CORES: "NUMERICAL_NOTE_TENSOR_CORE",
        cudnn.ROUNDED_INPUTS: "NUMERICAL_NOTE_DOWN_CONVERT_INPUTS",
        cudnn.ROUNDED_SUMS: "NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION",
        cudnn.FFT: "NUMERICAL_NOTE_FFT",
        cudnn.RANDOM_ORDER: "NUMERICAL_NOTE_NONDETERMINISTIC",
        cudnn.WINOGRAD: "NUMERICAL_NOTE_WINOGRAD",
        cudnn_graphs.DATA_TYPES["float32"]: "DATA_FLOAT",
        cudnn_graphs.DATA_TYPES["float16"]: "DATA_HALF",
        cudnn_graphs.DATA_TYPES["bfloat16"]: "DATA_BFLOAT16",
        cudnn_graphs.DATA_TYPES["int32"]: "DATA_INT32",
        cudnn_graphs.DATA_TYPES["bool"]: "DATA_BOOLEAN",
        cudnn_graphs.ADD: "POINTWISE_ADD",
        cudnn_graphs.MUL: "POINTWISE_MUL",
        cudnn_graphs.DIV: "POINTWISE_DIV",
        cudnn_graphs.SUB: "POINTWISE_SUB",
        cudnn_graphs.EXP: "POINTWISE_EXP",
        cudnn_graphs.LOG: "POINTWISE_LOG",
        cudnn_graphs.AT_LEAST: "POINTWISE_CMP_GE",
        cudnn_graphs.INDEX: "POINTWISE_GEN_INDEX",
        cudnn_graphs.SELECT: "POINTWISE_BINARY_SELECT",
        cudnn_graphs.TOTAL: "REDUCE_TENSOR_ADD",
        cudnn_graphs.PEAK: "REDUCE_TENSOR_MAX",
    }.items():
        assert mine == number(f"CUDNN_{name}", text), name


def test_numbers_of_the_runtime() -> None:
    text = header("driver_types.h")
    for mine, name in {
        copies.HOST_TO_DEVICE: "cudaMemcpyHostToDevice",
        copies.DEVICE_TO_HOST: "cudaMemcpyDeviceToHost",
        DEVICE_TO_DEVICE: "cudaMemcpyDeviceToDevice",
        memory.PORTABLE: "cudaHostRegisterPortable",
        driver.OUT_OF_MEMORY: "cudaErrorMemoryAllocation",
        copies.ALREADY_ENABLED: "cudaErrorPeerAccessAlreadyEnabled",
        copies.TOO_MANY: "cudaErrorTooManyPeers",
    }.items():
        assert mine == number(name, text), name


def test_the_errors_that_break_a_device_are_those_of_the_documentation() -> None:
    """It says of which errors every further call returns the same one, or nothing works again."""
    pattern = r"/\*\*((?:(?!\*/).)*?)\*/\s*,?\s*cudaError\w+\s*=\s*(\d+)"
    documented = re.findall(pattern, header("driver_types.h"), re.DOTALL)
    texts = {int(code): " ".join(text.replace("*", " ").split()) for text, code in documented}
    says = re.compile("return the same error|device cannot be used again|an uncorrectable")
    breaking = {code for code, text in texts.items() if says.search(text)}
    assert {700, 702, 716, 719} <= breaking
    assert breaking == driver.STICKY
