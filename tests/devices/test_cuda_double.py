"""The fake GPU is as unhelpful as a real one: it waits for nothing it need not wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cupy_double import CupyDouble
from fake_arrays import FakeArray
from fake_cuda_errors import CUDARuntimeError
from fake_gpu import DEVICE_BASE, POISON, SEEDS

TO_DEVICE, TO_HOST, INSIDE = 1, 2, 3


@pytest.fixture(params=SEEDS)
def double(request: pytest.FixtureRequest) -> CupyDouble:
    return CupyDouble(request.param)


@pytest.fixture
def streams(double: CupyDouble) -> Iterator[list[Any]]:
    """A clock's stream, which nobody uses here, and three others."""
    with double.cuda.Device(0):
        yield [double.cuda.Stream(non_blocking=True) for _ in range(4)][1:]


def notes(double: CupyDouble, stream: Any, log: list[str], name: str) -> None:
    double.gpu.launch(stream.ptr, lambda: log.append(name))


def test_nothing_runs_until_somebody_waits(double: CupyDouble, streams: list[Any]) -> None:
    log: list[str] = []
    notes(double, streams[0], log, "kernel")
    assert log == []
    streams[0].synchronize()
    assert log == ["kernel"]


def test_a_stream_keeps_its_order(double: CupyDouble, streams: list[Any]) -> None:
    log: list[str] = []
    for name in "abcde":
        notes(double, streams[0], log, name)
    streams[0].synchronize()
    assert log == list("abcde")


def test_a_stream_waits_for_an_event_of_another(double: CupyDouble, streams: list[Any]) -> None:
    log: list[str] = []
    first, second, _ = streams
    notes(double, first, log, "before")
    event = double.cuda.Event()
    event.record(first)
    second.wait_event(event)
    notes(double, second, log, "after")
    second.synchronize()
    assert log == ["before", "after"]


def test_without_a_wait_some_seed_runs_either_first() -> None:
    orders = set()
    for seed in SEEDS:
        double, log = CupyDouble(seed), list[str]()
        with double.cuda.Device(0):
            _, first, second, _ = [double.cuda.Stream(non_blocking=True) for _ in range(4)]
        notes(double, first, log, "first")
        notes(double, second, log, "second")
        double.gpu.drain()
        orders.add(tuple(log))
    assert orders == {("first", "second"), ("second", "first")}


def test_a_wait_is_for_the_recording_that_was_latest_then(
    double: CupyDouble, streams: list[Any]
) -> None:
    log: list[str] = []
    first, second, third = streams
    event = double.cuda.Event()
    event.record(first)
    second.wait_event(event)
    notes(double, second, log, "waited")
    third.wait_event(never := double.cuda.Event())  # not recorded yet: nothing to wait for
    event.record(third)
    never.record(third)
    double.gpu.drain()
    assert log == ["waited"]


def test_synchronizing_an_event_that_was_not_recorded_returns_at_once(
    double: CupyDouble, streams: list[Any]
) -> None:
    double.cuda.Event().synchronize()


def test_memory_is_poisoned_and_counted(double: CupyDouble) -> None:
    memory = double.cuda.Memory(100)
    assert memory.ptr >= DEVICE_BASE
    assert set(memory.cells) == {POISON}
    assert double.gpu.live_bytes == 100
    del memory
    assert double.gpu.live_bytes == 0


def test_memory_runs_out() -> None:
    double = CupyDouble(memory_bytes=1000)
    kept = double.cuda.Memory(600)
    with pytest.raises(CUDARuntimeError, match="out of memory"):
        double.cuda.Memory(401)
    del kept
    double.cuda.Memory(1000)


def make(double: CupyDouble, shape: tuple[int, ...]) -> FakeArray:
    memory = double.cuda.Memory(512)
    return double.ndarray(shape, np.float32, memptr=double.cuda.MemoryPointer(memory, 0))


def test_the_host_sees_shapes_but_not_contents(double: CupyDouble, streams: list[Any]) -> None:
    array = make(double, (2, 3))
    assert array.shape == (2, 3)
    assert array.dtype == np.float32
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    with pytest.raises(AttributeError):
        array.ctypes  # noqa: B018


def test_kernels_compute_when_they_run(double: CupyDouble, streams: list[Any]) -> None:
    a, b = make(double, (3,)), make(double, (3,))
    with double.cuda.Device(0), streams[0]:
        double.launch(lambda: a.fill(3))
        double.launch(lambda: double.multiply(a, 2, out=b))
        double.launch(lambda: double.add(b.reshape(3, 1)[:2, 0], 1, out=b[:2]))
        assert b._cells[0] != 6
        assert [float(b[i]) for i in range(3)] == [7, 7, 6]


def test_a_kernel_that_reads_on_the_host_breaks_the_gpu(
    double: CupyDouble, streams: list[Any]
) -> None:
    array = make(double, ())
    with double.cuda.Device(0), streams[0]:
        double.launch(lambda: float(array))
        with pytest.raises(CUDARuntimeError) as raised:
            streams[0].synchronize()
    assert "on the host" in str(raised.value.__cause__)


def test_errors_are_sticky(double: CupyDouble, streams: list[Any]) -> None:
    double.gpu.break_next()
    notes(double, streams[0], [], "broken")
    for _ in range(2):
        with pytest.raises(CUDARuntimeError, match="illegal memory access"):
            streams[0].synchronize()
    with pytest.raises(CUDARuntimeError):
        double.cuda.Memory(4)


@pytest.mark.parametrize(
    ("name", "keywords"),
    [("take", {"mode": "clip"}), ("add", {"where": True}), ("mean", {"where": 1})],
)
def test_keywords_that_cupy_lacks_are_refused(name: str, keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"cupy.{name} takes no"):
        getattr(CupyDouble(), name)(0, **keywords)


def test_functions_that_cupy_lacks_are_missing() -> None:
    assert not hasattr(CupyDouble(), "errstate")
    assert hasattr(CupyDouble(), "einsum")
    assert CupyDouble().float32 is np.float32


def test_copies_of_locked_memory_are_queued(double: CupyDouble, streams: list[Any]) -> None:
    host = double.cuda.alloc_pinned_memory(16)
    memory = double.cuda.Memory(16)
    runtime = double.cuda.runtime
    runtime.memcpyAsync(memory.ptr, host.ctypes.data, 16, TO_DEVICE, streams[0].ptr)
    host[:] = 7  # a race: a real GPU may see either
    streams[0].synchronize()
    assert set(memory.cells) == {7}
    memory.cells[:] = 9
    runtime.memcpyAsync(host.ctypes.data, memory.ptr, 16, TO_HOST, streams[0].ptr)
    assert set(host) == {7}
    streams[0].synchronize()
    assert set(host) == {9}
    assert double.gpu.pageable_copies == 0


def test_copies_of_other_memory_are_staged_and_counted(
    double: CupyDouble, streams: list[Any]
) -> None:
    host, memory = np.full(16, 3, np.uint8), double.cuda.Memory(16)
    runtime = double.cuda.runtime
    runtime.memcpyAsync(memory.ptr, host.ctypes.data, 16, TO_DEVICE, streams[0].ptr)
    host[:] = 0
    runtime.memcpyAsync(host.ctypes.data, memory.ptr, 16, TO_HOST, streams[0].ptr)
    assert set(host) == {3}
    assert double.gpu.pageable_copies == 2


def test_copies_in_the_wrong_direction_are_refused(double: CupyDouble, streams: list[Any]) -> None:
    host, memory = np.zeros(16, np.uint8), double.cuda.Memory(16)
    with pytest.raises(CUDARuntimeError, match="invalid argument"):
        double.cuda.runtime.memcpyAsync(host.ctypes.data, memory.ptr, 16, TO_DEVICE, streams[0].ptr)


def test_a_copy_over_the_end_of_memory_is_an_illegal_access(
    double: CupyDouble, streams: list[Any]
) -> None:
    host, memory = double.cuda.alloc_pinned_memory(64), double.cuda.Memory(16)
    double.cuda.runtime.memcpyAsync(memory.ptr, host.ctypes.data, 64, TO_DEVICE, streams[0].ptr)
    with pytest.raises(CUDARuntimeError, match="illegal memory access"):
        streams[0].synchronize()


def test_pages_are_locked_once() -> None:
    double, host = CupyDouble(), np.zeros(8192, np.uint8)
    runtime = double.cuda.runtime
    runtime.hostRegister(host.ctypes.data, 100, 1)
    with pytest.raises(CUDARuntimeError, match="registered already"):
        runtime.hostRegister(host.ctypes.data + 100, 8, 1)
    runtime.hostUnregister(host.ctypes.data)
    with pytest.raises(CUDARuntimeError, match="not registered"):
        runtime.hostUnregister(host.ctypes.data)


def test_times_need_events_with_timing(double: CupyDouble, streams: list[Any]) -> None:
    timed, plain = [double.cuda.Event(disable_timing=off) for off in (False, True)]
    later = double.cuda.Event()
    for event in (timed, plain, later):
        event.record(streams[0])
    with pytest.raises(CUDARuntimeError):  # not reached yet
        double.cuda.get_elapsed_time(timed, later)
    later.synchronize()
    assert double.cuda.get_elapsed_time(timed, later) > 0
    with pytest.raises(CUDARuntimeError):
        double.cuda.get_elapsed_time(plain, later)


def test_while_paused_who_waits_waits(double: CupyDouble, streams: list[Any]) -> None:
    log: list[str] = []
    thread = threading.Thread(target=streams[0].synchronize)
    with double.gpu.paused():
        notes(double, streams[0], log, "kernel")
        thread.start()
        assert log == []
    thread.join()
    assert log == ["kernel"]


def test_what_is_captured_runs_when_its_graph_is_launched(
    double: CupyDouble, streams: list[Any]
) -> None:
    log: list[str] = []
    capturing, other, _ = streams
    capturing.begin_capture()
    notes(double, capturing, log, "captured")
    graph = capturing.end_capture()
    double.gpu.drain()
    assert log == []
    graph.upload(capturing)
    for _ in range(2):
        notes(double, other, log, "before")
        graph.launch(other)
    other.synchronize()
    assert log == ["before", "captured"] * 2


def test_while_a_stream_is_captured_nobody_waits_for_it(
    double: CupyDouble, streams: list[Any]
) -> None:
    streams[0].begin_capture()
    event, host = double.cuda.Event(), np.zeros(4, np.uint8)
    memory = double.cuda.Memory(4)
    copy = double.cuda.runtime.memcpyAsync
    for refused in (
        streams[0].synchronize,
        lambda: event.record(streams[0]),
        lambda: streams[0].wait_event(event),
        lambda: copy(memory.ptr, host.ctypes.data, 4, TO_DEVICE, streams[0].ptr),
    ):
        with pytest.raises(CUDARuntimeError, match="when stream is capturing"):
            refused()


def test_a_copy_inside_the_gpu_is_queued(double: CupyDouble, streams: list[Any]) -> None:
    one, other = double.cuda.Memory(8), double.cuda.Memory(8)
    one.cells[:] = 5
    double.cuda.runtime.memcpyAsync(other.ptr, one.ptr, 8, INSIDE, streams[0].ptr)
    assert set(other.cells) == {POISON}
    streams[0].synchronize()
    assert set(other.cells) == {5}
