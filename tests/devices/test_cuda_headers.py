"""Numbers and calls of CUDA's libraries, compared with NVIDIA's headers; needs no GPU."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from plait.devices.cuda import copies, cublas, driver, memory, peers
from plait.devices.cuda.binding import DEVICE_TO_DEVICE
from plait.devices.cuda.cublas import ARITHMETIC, Cublas, Places, find_cublas
from plait.devices.cuda.products import Factor, Product
from plait.devices.errors import DeviceError

KINDS = {
    "cublasComputeType_t": c_int,
    "cublasGemmAlgo_t": c_int,
    "cublasHandle_t": c_void_p,
    "cublasMath_t": c_int,
    "cublasOperation_t": c_int,
    "cudaDataType": c_int,
    "cudaStream_t": c_void_p,
    "int": c_int,
    "long long int": c_longlong,
    "size_t": c_size_t,
}
"""What a type of C is to ctypes."""
POINTERS = (c_void_p, type(byref(c_int())))


@cache
def header(name: str) -> str:
    """Return the text of a header of the wheels."""
    try:
        wheels = importlib.import_module("nvidia").__path__
    except ImportError:
        wheels = []
    found = [path for folder in wheels for path in Path(folder).glob(f"*/include/{name}")]
    if not found:
        pytest.skip(f"{name} is not installed: pip install nvidia-cublas nvidia-cuda-runtime")
    return found[0].read_text()


def number(name: str, text: str) -> int:
    """Return the value of a name in an enumeration or of a macro."""
    match = re.search(rf"\b{name}(?:\s*=\s*|\s+)(-?\d\w*)", text)
    assert match is not None, name
    return int(match[1], 0)


def listed(name: str) -> list[str]:
    """Return the types of a function's parameters."""
    match = re.search(rf"CUBLASWINAPI {name}\((.*?)\);", header("cublas_api.h"), re.DOTALL)
    assert match is not None, name
    bare = re.sub(r"/\*.*?\*/", "", match[1], flags=re.DOTALL)
    return [" ".join(each.split()[:-1]) for each in bare.split(",")]


class Listener:
    """A library that does nothing but remember how it was called."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*given: Any) -> int:
            self.calls.setdefault(name, []).append(given)
            return cublas.SUCCESS

        return call


@pytest.fixture(scope="module")
def listener() -> Listener:
    """Return what heard all calls that products of all kinds make."""
    made = Listener()
    handle = Cublas(made)
    for dtype in ARITHMETIC:
        for batch in (1, 2):
            product = Product(dtype, Factor(0), Factor(1), 4, 8, 12, batch)
            handle.bind(product, Places(512, 1024, 2048, 4096), stream=7)()
    handle.close()
    return made


def test_cublas_is_called_as_its_header_declares(listener: Listener) -> None:
    assert len(listener.calls) == 7
    for name, calls in listener.calls.items():
        types = listed(name)
        for given in calls:
            assert len(given) == len(types), name
            for value, kind in zip(given, types, strict=True):
                wanted = POINTERS if kind.endswith("*") else (KINDS[kind],)
                assert isinstance(value, wanted), (name, kind)


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
    assert reason in ("", "cublasCreate fails: CUBLAS_STATUS_NOT_INITIALIZED")


def test_numbers_of_cublas() -> None:
    text = header("cublas_api.h")
    assert {number(name, text): name for name in cublas.STATUS.values()} == cublas.STATUS
    for mine, name in {
        cublas.SUCCESS: "CUBLAS_STATUS_SUCCESS",
        cublas.EXACT_SUMS: "CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION",
        cublas.AS_STORED: "CUBLAS_OP_N",
        cublas.TRANSPOSED: "CUBLAS_OP_T",
        cublas.ANY_ALGORITHM: "CUBLAS_GEMM_DEFAULT",
        cublas.TF32: "CUBLAS_COMPUTE_32F_FAST_TF32",
    }.items():
        assert mine == number(name, text), name


@pytest.mark.parametrize(
    ("dtype", "factors", "sums", "compute"),
    [
        ("float16", "CUDA_R_16F", "CUDA_R_16F", "CUBLAS_COMPUTE_32F"),
        ("bfloat16", "CUDA_R_16BF", "CUDA_R_16BF", "CUBLAS_COMPUTE_32F"),
        ("float32", "CUDA_R_32F", "CUDA_R_32F", "CUBLAS_COMPUTE_32F"),
        ("float64", "CUDA_R_64F", "CUDA_R_64F", "CUBLAS_COMPUTE_64F"),
        ("int8", "CUDA_R_8I", "CUDA_R_32I", "CUBLAS_COMPUTE_32I"),
    ],
)
def test_types_of_products(dtype: str, factors: str, sums: str, compute: str) -> None:
    types, arithmetic = header("library_types.h"), ARITHMETIC[dtype]
    assert arithmetic.factors == number(factors, types)
    assert arithmetic.sums == number(sums, types)
    assert arithmetic.compute == number(compute, header("cublas_api.h"))


def test_numbers_of_the_runtime() -> None:
    text = header("driver_types.h")
    for mine, name in {
        copies.HOST_TO_DEVICE: "cudaMemcpyHostToDevice",
        copies.DEVICE_TO_HOST: "cudaMemcpyDeviceToHost",
        DEVICE_TO_DEVICE: "cudaMemcpyDeviceToDevice",
        memory.PORTABLE: "cudaHostRegisterPortable",
        driver.OUT_OF_MEMORY: "cudaErrorMemoryAllocation",
        peers.ALREADY_ENABLED: "cudaErrorPeerAccessAlreadyEnabled",
        peers.TOO_MANY: "cudaErrorTooManyPeers",
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
