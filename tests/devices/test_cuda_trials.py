"""Trials of kernels when a plan is opened: in its own memory, apart from items, without harm."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import moving
from cupy_double import CupyDouble
from fake_cublas import FakeCublas
from fake_cudnn import FakeCudnn
from patience import WAIT_S
from plait.devices.cuda import attention, byte_products, cudnn
from plait.devices.cuda.trials import Trials
from plait.devices.streams.queues import COMPUTE
from plait.graph.core.ir import Graph
from plait.graph.values import recent
from plait.graph.values.tensor import Array
from plait.scheduler.plans.regions import MemoryPlan, Pool, Region
from plait.scheduler.runtime.opened.arenas import OpenArenas
from pocl import pocl_device

from .rig import Rig, place, room
from .test_cuda_cublas import graph_of, half, numbers
from .test_cuda_cudnn import IMAGE, conv, folder, told, with_cudnn

__all__ = ["folder"]  # a fixture

Make = Callable[[pl.GraphBuilder, str], Any]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send small attention and products of bytes to libraries."""
    pocl_device()
    monkeypatch.setattr(attention, "LEAST", 0)
    monkeypatch.setattr(byte_products, "LEAST", 0)


def attend(b: pl.GraphBuilder, x: str) -> Any:
    return b.op("Attention", x, x, x)


def run_cupy(b: pl.GraphBuilder, x: str) -> Any:
    return b.op("Einsum", x, numbers(16, 16), equation="ij,jk->ik")


def multiply_bytes(b: pl.GraphBuilder, x: str) -> Any:
    return b.op("MatMulInteger", x, numbers(16, 16, dtype="uint8"))


NODES: dict[str, tuple[Array, Make]] = {
    "product": (numbers(16, 16), lambda b, x: b.op("MatMul", x, numbers(16, 16))),
    "convolution": (IMAGE, conv(half(5, 4, 3, 3), half(5))),
    "attention": (half(2, 4, 8, 8), attend),
    "bytes": (numbers(16, 16, dtype="uint8"), multiply_bytes),
    "cupy": (numbers(16, 16), run_cupy),
}


def open_session(double: CupyDouble, graph: Graph) -> pl.BlockingSession:
    device = with_cudnn(double, FakeCudnn(double.gpu))
    plan = pl.plan(graph, [device, "cpu"], pin={"*": "cuda:0"}, max_in_flight=1)
    return pl.BlockingSession(plan)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NODES)
def test_a_plan_opens_in_the_memory_that_it_needs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials take none beside it: the second GPU has no byte more than the first one has used."""
    monkeypatch.setenv("PLAIT_KERNEL_CACHE", "off")  # so that both measure
    x, make = NODES[name]
    graph, ample = graph_of(x, make), CupyDouble()
    wanted = pl.run(graph, {"x": x}, devices=["cpu"])["y"]
    with open_session(ample, graph) as session:
        session.run({"x": x})
        used = ample.gpu.live_bytes
    double = CupyDouble(memory_bytes=used)
    with open_session(double, graph) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-2, atol=1e-2)
    double.gpu.check_freed()


@contextmanager
def hold(double: CupyDouble, device: Any) -> Iterator[None]:
    """Hold the stream of items until the end of the block."""
    over = threading.Event()
    double.gpu.call_on_host(device._open.queues.stream(COMPUTE).ptr, over.wait)
    try:
        yield
    finally:
        over.set()


def finish(work: Callable[[], object]) -> bool:
    """Return whether work on another thread comes to an end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return not thread.is_alive()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NODES)
def test_compiling_does_not_wait_for_items(double: CupyDouble, name: str) -> None:
    x, make = NODES[name]
    graph = graph_of(x, make)
    device = with_cudnn(double, FakeCudnn(double.gpu))
    with Rig(device, graph_of(numbers(4), lambda b, x: b.op("Relu", x))) as rig:
        rig.run({"x": numbers(4)})
        with hold(double, device):
            running = rig.compute()
            assert finish(lambda: Rig(device, graph).arena.close())
            assert not running.done
        running.wait(WAIT_S)


def multiply_itself(b: pl.GraphBuilder, x: str) -> Any:
    return b.op("MatMul", x, x)


@pytest.mark.parametrize("is_unused", [True, False])
def test_kernels_are_tried_in_unused_memory_alone(double: CupyDouble, is_unused: bool) -> None:
    """Arenas of a plan may have items in flight when a new length is bound in them."""
    x = numbers(8, 8)
    device = double.generating()
    with Rig(device, graph_of(x, multiply_itself)) as rig:
        rig.run({"x": x})
        before = rig.arena.buffer.cells.copy()
        rig.arena.is_unused = is_unused
        smaller = graph_of(x[:4, :4], multiply_itself)
        device.compile(smaller, place(device, rig.arena, moving(device, smaller)))
        assert np.array_equal(rig.arena.buffer.cells, before) is not is_unused


def test_without_memory_for_a_trial_kernels_are_generated(
    double: CupyDouble, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no choice is kept: another process may have room to measure."""
    asked, library = told(monkeypatch, {"cudnn 0": 1.0, "generated": 2.0}), FakeCudnn(double.gpu)
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3)))
    wanted = pl.run(graph, {"x": IMAGE}, devices=["cpu"])["y"]
    device = with_cudnn(double, library)
    with Rig(device, graph_of(numbers(4), lambda b, x: b.op("Relu", x))) as other:
        specs = moving(device, graph)
        arena = device.arena("cuda:0", sum(map(room, specs.values())))
        double.gpu.memory_bytes = double.gpu.live_bytes + 4096  # enough for the weights
        program = device.compile(graph, place(device, arena, specs))
        double.gpu.memory_bytes = 1 << 28
        assert (asked, list(folder.iterdir()), library.calls) == ([], [], 0)
        del program
        with Rig(device, graph) as rig:
            np.testing.assert_array_equal(rig.run({"x": IMAGE})["y"], wanted)
        assert other.device is device
        arena.close()


def list_unused(arenas: OpenArenas, index: int) -> list[bool]:
    with arenas.of(index) as found:
        return [found["host", name].is_unused for name in ("shared", "own")]


def test_arenas_are_unused_until_a_slot_is_made() -> None:
    regions = [Region("host", "shared", 64, 1), Region("host", "own", 64, 2)]
    pool = Pool("host", {one.name: one for one in regions}, 2, "", 128, 128, 128)
    arenas = OpenArenas(MemoryPlan({}, {"host": pool}), {})
    arenas.open()
    with pytest.raises(ZeroDivisionError), arenas.of(0):
        raise ZeroDivisionError
    assert [list_unused(arenas, index) for index in (0, 1, 0)] == [
        [True, True],
        [False, True],
        [False, False],
    ]
    arenas.close()


def test_a_new_length_does_no_harm_to_an_item_in_flight(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, tried, lend = numbers(6, 5), threading.Semaphore(0), Trials.of

    def count(self: Trials, *given: Any) -> Any:
        tried.release()
        return lend(self, *given)

    monkeypatch.setattr(Trials, "of", count)
    b = pl.GraphBuilder("lengths")
    b.output("y", b.op("MatMul", b.input("x", "float32", ("n", 6)), weights))
    device, bounds = double.generating(), {"n": (1, 12)}
    plan = pl.plan(b.build(), [device, "cpu"], pin={"*": "cuda:0"}, bounds=bounds, max_in_flight=1)
    items = [{"x": numbers(n, 6)} for n in (3, 3, 7)]
    with pl.BlockingSession(plan) as session:
        session.run(items[0])
        while tried.acquire(blocking=False):
            pass
        with hold(double, device):
            results = [session.submit(item) for item in items[1:]]
            assert tried.acquire(timeout=WAIT_S)
        for item, result in zip(items[1:], results, strict=True):
            np.testing.assert_array_equal(result.result()["y"], item["x"] @ weights)


# Work that cannot be recorded


@pytest.mark.usefixtures("folder")
def test_an_engine_that_cannot_be_recorded_drops_out_of_a_choice(
    double: CupyDouble,
) -> None:
    library = FakeCudnn(double.gpu, uncapturable={11, 12}, kernels={12: 2, 14: 3})
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3), half(5)))
    wanted = pl.run(graph, {"x": IMAGE}, devices=["cpu"])["y"]
    with Rig(with_cudnn(double, library), graph) as rig:
        np.testing.assert_array_equal(rig.run({"x": IMAGE})["y"], wanted)


@pytest.mark.parametrize(("graphs", "engines"), [(True, set()), (False, {11})])
def test_an_engine_that_cannot_be_recorded_is_replaced_by_a_kernel(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, graphs: bool, engines: set[int]
) -> None:
    monkeypatch.setenv("PLAIT_FIGURES", "off")
    library = FakeCudnn(double.gpu, uncapturable={11})
    graph = graph_of(IMAGE, conv(half(5, 4, 3, 3), half(5)))
    wanted = pl.run(graph, {"x": IMAGE}, devices=["cpu"])["y"]
    with Rig(with_cudnn(double, library, graphs=graphs), graph) as rig:
        library.computed.clear()
        np.testing.assert_array_equal(rig.run({"x": IMAGE})["y"], wanted)
        assert {engine for engine, _ in library.computed} == engines


def test_a_product_that_cannot_be_recorded_is_generated(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply = FakeCublas.cublasLtMatmul

    def fail(self: FakeCublas, *given: Any) -> int:
        return 13 if double.gpu.is_capturing(given[-1].value) else multiply(self, *given)

    monkeypatch.setattr(FakeCublas, "cublasLtMatmul", fail)
    x, make = NODES["product"]
    graph = graph_of(x, lambda b, x: str(make(b, make(b, x))))
    wanted = pl.run(graph, {"x": x}, devices=["cpu"])["y"]
    with Rig(double.generating(), graph) as rig:
        np.testing.assert_allclose(rig.run({"x": x})["y"], wanted)


# Many shapes


@pytest.mark.usefixtures("folder")
def test_a_service_of_many_shapes_keeps_a_limited_number_of_plans(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "KEPT_PLANS", 2)
    monkeypatch.setattr(recent, "KEPT_SHAPES", 2)
    library = FakeCudnn(double.gpu, {12: 2, 14: 3})
    device = with_cudnn(double, library)
    weights = half(5, 4, 3, 3)
    counts = list[int]()
    images = [IMAGE[:, :, : 7 - cut] for cut in range(4)] * 2
    graphs = [graph_of(image, conv(weights)) for image in images]
    with Rig(device, graphs[0]) as first:
        for graph, image in zip(graphs, images, strict=True):
            rig = Rig(device, graph)
            np.testing.assert_array_equal(
                rig.run({"x": image})["y"], pl.run(graph, {"x": image}, devices=["cpu"])["y"]
            )
            rig.program = None
            rig.arena.close()
            gc.collect()
            counts.append(library.descriptors)
        # Its plan was dropped long ago, and is alive with its recording.
        np.testing.assert_array_equal(
            first.run({"x": IMAGE})["y"], pl.run(graphs[0], {"x": IMAGE}, devices=["cpu"])["y"]
        )
    assert max(counts[4:]) <= counts[3]
