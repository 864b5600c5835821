"""What only a GPU can show: CuPy takes our calls, results are right, copies overlap kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait import devices
from plait.devices.cpu import CpuDevice
from plait.devices.cuda.device import CudaDevice
from plait.devices.errors import DeviceMemoryError, DeviceUnavailableError
from plait.devices.event import Event

from .rig import WAIT_S, Rig, chain, evaluate, some_items
from .test_cuda_kernels import CASES, SHAPE, floats, graph_of

# CuPy warns on import of things that are none of our business.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cuda() -> Iterator[CudaDevice]:
    device = CudaDevice("cuda:0")
    try:
        device.open()
    except DeviceUnavailableError as error:
        pytest.skip(f"no CUDA device: {error.what}")
    yield device
    device.close()


def test_the_self_check_passes(cuda: CudaDevice) -> None:
    status = devices.probe("cuda:0")
    assert status.found, status.reason


def test_streamed_items_come_out_right(cuda: CudaDevice) -> None:
    graph = chain("Relu", "Add", "Identity", "Add", n=100_000)
    items = some_items(graph, 30)
    with Rig(cuda, graph) as rig:
        results = rig.stream(items).results()
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_cpus_gives(cuda: CudaDevice, name: str) -> None:
    graph, x = graph_of(CASES[name]), {"x": floats(*SHAPE)}
    with Rig(CpuDevice(), graph) as rig:
        expected = rig.run(x)["y"]
    with Rig(cuda, graph) as rig:
        found = rig.run(x)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


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


def test_measured_nodes_add_up_to_their_program(cuda: CudaDevice) -> None:
    with Rig(cuda, chain("Relu", "Add", n=1_000_000), measure=True) as rig:
        event = rig.compute()
        event.wait(WAIT_S)
    assert event.node_ns is not None
    assert sum(event.node_ns) == pytest.approx(event.ended_ns - event.started_ns, rel=0.2)


def test_the_steady_state_allocates_nothing(cuda: CudaDevice) -> None:
    import cupy

    def refuse(nbytes: int) -> Any:
        raise AssertionError(f"allocated {nbytes} bytes")

    with Rig(cuda, chain("Relu", "Add", "Identity")) as rig, cupy.cuda.using_allocator(refuse):
        rig.compute().wait(WAIT_S)


def test_too_large_an_arena_is_a_memory_error(cuda: CudaDevice) -> None:
    memory_bytes = cuda.capabilities.memory_bytes
    assert memory_bytes is not None
    with pytest.raises(DeviceMemoryError):
        cuda.arena("cuda:0", 2 * memory_bytes)
    with Rig(cuda, chain("Relu")) as rig:
        rig.compute().wait(WAIT_S)
