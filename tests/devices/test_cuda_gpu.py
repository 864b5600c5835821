"""Tests that need a GPU: CuPy takes our calls, results are right, copies overlap kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from generated_cases import all_cases
from patience import WAIT_S
from plait import devices
from plait.devices.cpu import CpuDevice
from plait.devices.cuda import attention, byte_products
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.nvrtc import compile_cubin
from plait.devices.errors import DeviceMemoryError, DeviceUnavailableError
from plait.devices.event import Event
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of, is_extension
from plait.graph.values.tensor import Array

from .rig import Rig, chain, evaluate, some_items
from .test_cuda_attention import CASES as ATTENTIONS
from .test_cuda_attention import TOLERANCE, defined, drawn, feeds_of
from .test_cuda_attention import graph_of as attention_graph
from .test_cuda_biases import LAYERS
from .test_cuda_byte_products import OTHERS as QUANTIZED
from .test_cuda_byte_products import PRODUCTS as BYTES
from .test_cuda_byte_products import exactly
from .test_cuda_cublas import PRODUCTS, numbers
from .test_cuda_cublas import graph_of as product_graph
from .test_cuda_cudnn import CONVOLUTIONS, folder, told
from .test_cuda_cudnn_planned import ATTENTIONS as PLANNED
from .test_cuda_kernels import CASES, SHAPE, floats, graph_of

__all__ = ["folder"]  # a fixture

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


LEFT_OPEN = {"conversions"}
"""Cases with numbers for which ONNX names no result: floats that an integer cannot hold."""
TOLERANCES = {"bfloat16": 2e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-4}

WAYS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "one by one": {"graphs": False},
    "without libraries": {"cublas": None, "cudnn": None},
    "CuPy alone": {"compiler": None},
}
"""How kernels are made and launched."""


@contextmanager
def opened(**options: Any) -> Iterator[CudaDevice]:
    device = CudaDevice("cuda:0", **options)
    try:
        device.open()
    except DeviceUnavailableError as error:
        pytest.skip(f"no CUDA device: {error.what}")
    try:
        yield device
    finally:
        device.close()


@pytest.fixture
def cuda() -> Iterator[CudaDevice]:
    with opened() as device:
        yield device


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[CudaDevice]:
    with opened(**WAYS[request.param]) as device:
        yield device


def test_the_self_check_passes(cuda: CudaDevice) -> None:
    status = devices.probe("cuda:0")
    assert status.found, status.reason


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_streamed_items_come_out_right(options: dict[str, Any]) -> None:
    graph = chain("Relu", "Add", "Identity", "Add", n=100_000)
    items = some_items(graph, 30)
    with opened(**options) as device, Rig(device, graph) as rig:
        results = rig.stream(items).results()
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_cpus_gives(way: CudaDevice, name: str) -> None:
    graph, x = graph_of(CASES[name]), {"x": floats(*SHAPE)}
    np.testing.assert_allclose(on(way, graph, x)["y"], on_cpu(graph, x)["y"], 1e-4, 1e-4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_whole_numbers_are_exact(way: CudaDevice, name: str) -> None:
    x, make = PRODUCTS[name]
    graph = product_graph(x, make)
    np.testing.assert_array_equal(on(way, graph, {"x": x})["y"], on_cpu(graph, {"x": x})["y"])


@pytest.mark.parametrize("name", [*BYTES, *QUANTIZED])
def test_products_of_bytes_have_the_bits_of_generated_kernels(
    cuda: CudaDevice, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(byte_products, "LEAST", 0)
    case = BYTES.get(name) or QUANTIZED[name]
    with opened(cublas=None) as generating:
        expected = on(generating, case.graph, case.feeds)["y"]
    np.testing.assert_array_equal(on(cuda, case.graph, case.feeds)["y"], expected)
    if name in BYTES:
        np.testing.assert_array_equal(expected, exactly(case))


@pytest.mark.parametrize("name", [*LAYERS, *CONVOLUTIONS])
def test_layers_of_whole_numbers_are_exact(way: CudaDevice, name: str) -> None:
    x = CONVOLUTIONS[name][0] if name in CONVOLUTIONS else numbers(4, 6)
    graph = product_graph(x, CONVOLUTIONS[name][1] if name in CONVOLUTIONS else LAYERS[name][0])
    if any(not way.supports(node, graph.call(node)).ok for node in graph.nodes):
        pytest.skip("left to other devices")
    np.testing.assert_allclose(
        on(way, graph, {"x": x})["y"], on_cpu(graph, {"x": x})["y"], rtol=1e-6
    )


def test_cudnn_convolves_on_tensor_cores_and_the_same_again(cuda: CudaDevice) -> None:
    if "cudnn" not in cuda.capabilities.software:
        pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")
    b = pl.GraphBuilder()
    x = b.input("x", "float16", (2, 64, 32, 32))
    weights, bias = floats(32, 64, 3, 3).astype("float16"), floats(32).astype("float16")
    b.output("y", b.op("Relu", b.op("Conv", x, weights, bias, pads=[1] * 4)))
    graph, fed = b.build(), {"x": floats(2, 64, 32, 32).astype("float16")}
    found = [on(cuda, graph, fed)["y"] for _ in range(3)]
    assert len({each.tobytes() for each in found}) == 1
    wanted = on_cpu(graph, fed)["y"].astype("float32")
    np.testing.assert_allclose(found[0], wanted, 2e-2, 2e-2 * np.abs(wanted).max())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", PLANNED)
def test_attention_by_cudnn_is_right(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    """Its results are those of the generated kernel; with masks, it may be refused for others."""
    (s, lengths, attributes), asked = PLANNED[name], told(monkeypatch, {"cudnn 0": 1.0})
    mask = drawn(*lengths, dtype=dtype) if lengths else None
    fed = feeds_of(s, dtype, mask)
    with opened(tf32=True) as device:
        if "cudnn" not in device.capabilities.software:
            pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")
        found = on(device, attention_graph(fed, **attributes), fed)["y"]
    near = max(TOLERANCE[dtype], 4e-3)
    wanted = defined(s, fed, attributes)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)
    assert "cudnn 0" in asked or mask is not None


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_on_tensor_cores_is_right(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(attention, "LEAST", 0)
    b, wanted = pl.GraphBuilder("attention"), {}
    fed: dict[str, Array] = {}
    for name, rows in product(ATTENTIONS, (False, True)):  # one graph: kernels compile at once
        s, mask, attributes = ATTENTIONS[name]
        own, title = feeds_of(s, dtype, mask, rows=rows), f"{name}, by {'row' if rows else 'head'}"
        inputs = [b.input(f"{title}: {each}", x.dtype, x.shape) for each, x in own.items()]
        if rows:
            attributes = {**attributes, "q_num_heads": s.heads, "kv_num_heads": s.shared}
        b.output(title, b.op("Attention", *inputs, **attributes))
        fed |= dict(zip(inputs, own.values(), strict=True))
        wanted[title] = defined(s, own, attributes)
    with opened(tf32=True) as device:
        found = on(device, b.build(), fed)
    near = max(TOLERANCE[dtype], 2e-3)  # tf32 rounds factors as if they were halves
    for title, y in wanted.items():
        np.testing.assert_allclose(found[title].astype(np.float64), y, near, near, err_msg=title)


def test_generated_kernels_give_what_the_cpus_give(cuda: CudaDevice) -> None:
    """All cases as one graph each: what can be fused is."""
    for name, make in all_cases().items():
        if name in LEFT_OPEN:
            continue
        graph, given = make()
        feeds = {name: given[name] for name in graph.inputs}
        found, expected = on(cuda, graph, feeds), on_cpu(graph, feeds)
        for output in graph.outputs:
            got, wanted = found[output], expected[output]
            exact = TOLERANCES.get(wanted.dtype.name, 0.0)
            if is_extension(wanted.dtype):  # whose NaNs numpy's comparisons do not know
                got, wanted = (array.astype(np.float32) for array in (got, wanted))
            if exact:
                np.testing.assert_allclose(got, wanted, exact, exact, err_msg=name)
            else:
                np.testing.assert_array_equal(got, wanted, name)


def on(device: CudaDevice, graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    with Bound(device, graph) as bound:
        return bound.run(feeds)


def on_cpu(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    device = CpuDevice()
    device.open()
    try:
        with Bound(device, graph) as bound:
            return bound.run(feeds)
    finally:
        device.close()


def wide() -> Graph:
    """Return a graph of a product, a fused chain and sums, all of them large."""
    b = pl.GraphBuilder()
    x = b.input("x", "float32", (512, 2048))
    product = b.op("MatMul", x, floats(2048, 1024))
    b.output("y", b.op("Softmax", b.op("Gelu", b.op("Add", product, floats(1024)))))
    return b.build()


def test_results_repeat_to_the_last_bit_with_graphs_and_without() -> None:
    x, results = {"x": floats(512, 2048)}, list[bytes]()
    graph = wide()
    for options in ({}, {"graphs": False}):
        with opened(**options) as device:
            results += [on(device, graph, x)["y"].tobytes() for _ in range(3)]
    assert len(set(results)) == 1


def test_sums_and_products_round_as_in_numpy(cuda: CudaDevice) -> None:
    b = pl.GraphBuilder()
    x, y = b.input("x", "float32", (5000,)), b.input("y", "float32", (5000,))
    b.output("z", b.op("Div", b.op("Sqrt", b.op("Add", b.op("Mul", x, x), y)), y))
    feeds = {"x": floats(5000), "y": abs(floats(5000)) + np.float32(0.1)}
    expected = np.sqrt(feeds["x"] * feeds["x"] + feeds["y"]) / feeds["y"]
    np.testing.assert_array_equal(on(cuda, b.build(), feeds)["z"], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_nan_keeps_its_sign_in_16_bits_and_back(cuda: CudaDevice, dtype: str) -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFD55555], np.uint32)
    feeds = {"x": bits.view(np.float32), "narrow": bits.view(np.float32).astype(dtype_of(dtype))}
    b = pl.GraphBuilder()
    b.output("y", b.op("Cast", b.input("x", "float32", (4,)), to=dtype))
    b.output("z", b.op("Cast", b.input("narrow", dtype, (4,)), to="float32"))
    found, wanted = on(cuda, b.build(), feeds), on_cpu(b.build(), feeds)
    for name, unsigned in (("y", np.uint16), ("z", np.uint32)):
        bits_found, bits_wanted = (each[name].view(unsigned) for each in (found, wanted))
        assert list(map(hex, bits_found)) == list(map(hex, bits_wanted))


def test_denormal_numbers_are_numbers(cuda: CudaDevice) -> None:
    tiny = np.array([1e-40, -1e-42, 1e-45], np.float32)
    np.testing.assert_array_equal(on(cuda, chain("Add", n=3), {"x": tiny})["y"], tiny + tiny)


def test_tf32_is_coarser_and_fast_math_is_close() -> None:
    b = pl.GraphBuilder()
    b.output("y", b.op("MatMul", b.input("x", "float32", (256, 512)), floats(512, 256)))
    graph, x = b.build(), {"x": floats(256, 512)}
    exact = on_cpu(graph, x)["y"]
    errors = []
    for options in ({}, {"tf32": True}, {"compiler": partial(compile_cubin, fast_math=True)}):
        with opened(**options) as device:
            errors.append(float(abs(on(device, graph, x)["y"] - exact).max()))
    assert errors[0] < 1e-3
    assert errors[0] < errors[1] < 1
    assert errors[2] < 1e-3


def test_uploads_overlap_kernels(cuda: CudaDevice) -> None:
    """By the GPU's own times: an upload that nothing waits for runs beside a long program."""
    n = 4096
    b = pl.GraphBuilder()
    tensor = b.input("x", "float32", (n, n))
    weights = b.constant(np.eye(n, dtype=np.float32))
    for _ in range(10):
        tensor = b.op("MatMul", tensor, weights)
    b.output("y", tensor)
    with Rig(cuda, b.build(), measure=True) as rig:
        spec = rig.graph.tensors["x"]
        elsewhere = cuda.arena("cuda:0", spec.nbytes)
        target, source = cuda.view(elsewhere, 0, spec), rig.host({"x": spec})["x"]
        computed = rig.compute()
        uploaded = cuda.copy(target, source)
        for event in (computed, uploaded):
            event.wait(WAIT_S)
        elsewhere.close()
    assert _shared_ns(computed, uploaded) > 0


def _shared_ns(a: Event, b: Event) -> int:
    return min(a.ended_ns, b.ended_ns) - max(a.started_ns, b.started_ns)


def test_measured_nodes_take_no_longer_than_their_program(cuda: CudaDevice) -> None:
    with Rig(cuda, chain("Relu", "Add", n=1_000_000), measure=True) as rig:
        event = rig.compute()
        event.wait(WAIT_S)
    assert event.node_ns is not None
    # Others may use the GPU between two nodes; what is taken for one is rounded to half a µs.
    assert 0 < sum(event.node_ns) <= event.ended_ns - event.started_ns + 1000 * len(event.node_ns)


def test_the_steady_state_allocates_nothing(cuda: CudaDevice) -> None:
    import cupy

    def refuse(nbytes: int) -> Any:
        raise AssertionError(f"allocated {nbytes} bytes")

    with Rig(cuda, wide()) as rig:
        rig.compute().wait(WAIT_S)
        free, _ = cupy.cuda.runtime.memGetInfo()
        with cupy.cuda.using_allocator(refuse):
            for _ in range(50):
                rig.compute().wait(WAIT_S)
        assert cupy.cuda.runtime.memGetInfo()[0] >= free


def test_too_large_an_arena_is_a_memory_error(cuda: CudaDevice) -> None:
    memory_bytes = cuda.capabilities.memory_bytes
    assert memory_bytes is not None
    with pytest.raises(DeviceMemoryError):
        cuda.arena("cuda:0", 2 * memory_bytes)
    with Rig(cuda, chain("Relu")) as rig:
        rig.compute().wait(WAIT_S)
