"""Host memory and constants as a CUDA device handles them, on a fake GPU."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from patience import WAIT_S
from plait.devices.cuda.memory import HostView
from plait.devices.errors import DeviceMemoryError
from plait.devices.event import Event
from plait.devices.memory import SharedArena, host_arena
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import TensorSpec

from .rig import Rig, chain, evaluate, some_items

FLOATS = TensorSpec("float32", (4,))


def test_host_arenas_are_page_locked_once_while_they_and_the_device_live(
    double: CupyDouble,
) -> None:
    device = double.device()
    device.open()
    first, second = host_arena(1 << 20), SharedArena(1 << 20)
    views = [device.view(arena, 0, FLOATS) for arena in (first, first, second)]
    assert set(double.gpu.locked) == {first.buffer.ctypes.data, second.buffer.ctypes.data}
    views.clear()
    first.close()
    del first
    gc.collect()
    assert set(double.gpu.locked) == {second.buffer.ctypes.data}
    device.close()
    assert double.gpu.locked == {}
    second.close()


def test_devices_share_page_locked_memory(double: CupyDouble) -> None:
    double.devices = 2
    arena = host_arena(1 << 20)
    one, other = double.device("cuda:0"), double.device("cuda:1")
    for device in (one, other):
        device.open()
        device.view(arena, 0, FLOATS)
    one.close()
    assert double.gpu.locked == {arena.buffer.ctypes.data: arena.nbytes}
    other.close()


def test_small_host_arenas_share_no_pages(double: CupyDouble) -> None:
    device = double.device()
    device.open()
    arenas = [host_arena(16) for _ in range(32)]
    for arena in arenas:
        view = device.view(arena, 0, FLOATS)
        assert isinstance(view, HostView)
        assert view.staging is None
    device.close()


@pytest.mark.parametrize(("n", "ranges"), [(4, 1), (300, 1), (1 << 14, 1), (1 << 15, 3)])
def test_small_arenas_of_all_slots_are_page_locked_at_once(
    double: CupyDouble, caplog: pytest.LogCaptureFixture, n: int, ranges: int
) -> None:
    graph = chain("Relu", n=n)
    plan = pl.plan(graph, [double.device(), "cpu"], pin={"*": "cuda:0"}, max_in_flight=8)
    items = some_items(graph, 16)
    with pl.BlockingSession(plan) as session:
        results = list(session.stream(items))
        assert len(double.gpu.locked) == ranges
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])
    assert not caplog.records


def test_memory_that_cannot_be_page_locked_is_reported_once(
    double: CupyDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.gpu.refuses_locking = True
    device = double.device()
    device.open()
    for arena in (host_arena(16), host_arena(0), host_arena(16)):
        device.view(arena, 0, TensorSpec("uint8", (0,)))
    device.close()
    (record,) = caplog.records
    assert "page-locked" in record.getMessage()
    assert "operation not supported" in record.getMessage()


def test_what_cupy_keeps_for_arrays_to_come_is_taken_when_memory_runs_out() -> None:
    double = CupyDouble(memory_bytes=1 << 20)
    device = double.device()
    device.open()
    double.empty((3 << 18,), np.uint8)
    assert double.gpu.live_bytes >= 3 << 18, "freed, but kept in CuPy's pool"
    arena = device.arena("cuda:0", 1 << 19)
    with pytest.raises(DeviceMemoryError, match="too little memory"):
        device.arena("cuda:0", 3 << 18)
    arena.close()
    device.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_that_cannot_be_locked_is_staged(seed: int) -> None:
    double, graph = CupyDouble(seed), chain("Relu", "Add")
    double.gpu.refuses_locking = True
    items = some_items(graph, 4)
    with Rig(double.device(), graph) as rig:
        with double.gpu.paused():
            stream = rig.stream(items)
        results = stream.results()
    assert double.gpu.pageable_copies == 0
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])


def test_an_upload_of_what_a_staged_download_brings_waits_for_it(double: CupyDouble) -> None:
    double.gpu.refuses_locking = True
    with Rig(double.device(), chain("Relu")) as rig:
        host = rig.host({"x": FLOATS})["x"]
        host.array[:] = 5
        up = rig.device.copy(rig.views["x"], host)
        up.wait(WAIT_S)
        host.array[:] = 0
        with double.gpu.paused():
            down = rig.device.copy(host, rig.views["x"])
            same = rig.device.view(host.arena, host.offset, FLOATS)  # with staging of its own
            again = threading.Thread(target=rig.device.copy, args=(rig.views["x"], same, [down]))
            again.start()
        again.join()
        host.array[:] = 0
        rig.device.copy(host, rig.views["x"]).wait(WAIT_S)
        assert host.array.tolist() == [5, 5, 5, 5]


def test_an_upload_from_a_callback_waits_for_no_download_that_is_behind_it(
    double: CupyDouble,
) -> None:
    """The thread that runs the callback is the one that would have to land the download."""
    double.gpu.refuses_locking = True
    submitted, later = threading.Event(), list[Event]()

    def upload(_: Event) -> None:
        later.append(rig.device.copy(rig.views["x"], other["x"], [second]))
        submitted.set()

    with Rig(double.device(), chain("Relu")) as rig:
        host, other = rig.host({"x": FLOATS, "y": FLOATS}), rig.host({"x": FLOATS})
        other["x"].array[:] = 7
        with double.gpu.paused():
            first = rig.device.copy(host["y"], rig.views["y"])
            second = rig.device.copy(host["x"], rig.views["x"])
            first.on_done(upload)
        assert submitted.wait(WAIT_S)
        later[0].wait(WAIT_S)
        rig.device.copy(host["x"], rig.views["x"]).wait(WAIT_S)
        assert host["x"].array.tolist() == [7, 7, 7, 7]


def biased() -> Graph:
    b = pl.GraphBuilder("biased")
    bias = b.constant(np.arange(4, dtype=np.float32), "bias")
    b.output("y", b.op("Add", b.op("Add", b.input("x", "float32", (4,)), bias), bias))
    return b.build()


def test_constants_are_uploaded_once_for_all_programs(double: CupyDouble) -> None:
    graph = biased()
    with Rig(double.device(), graph) as rig:
        before, copies = double.gpu.live_bytes, double.gpu.pageable_copies
        more = [rig.device.compile(graph, rig.views) for _ in range(3)]
        assert (double.gpu.live_bytes, double.gpu.pageable_copies) == (before, copies)
        assert rig.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 3, 5, 7]
        more.clear()


def test_constants_go_with_the_last_program(double: CupyDouble) -> None:
    with Rig(double.device(), biased()) as rig:
        before = double.gpu.live_bytes
        rig.program = None
        assert double.gpu.live_bytes == before - 512


def test_a_view_that_nobody_has_is_forgotten(double: CupyDouble) -> None:
    device = double.device()
    device.open()
    arena = device.arena("cuda:0", 512)
    array = weakref.ref(device.view(arena, 0, FLOATS).array)
    gc.collect()
    assert array() is None
    device.close()
    arena.close()
