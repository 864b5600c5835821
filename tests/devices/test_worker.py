"""The worker device: another process, the same results."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait import devices
from plait.devices.cpu import CpuDevice
from plait.devices.errors import DeviceError, DeviceUnavailableError
from plait.devices.memory import HOST, SHARED, SharedArena, host_arena
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec
from random_graphs import expected, feeds, graphs

from . import worker_functions as functions
from .worker_bench import Bound, calls, place, unary


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerDevice]:
    """Return one open worker for all tests that leave it as it was."""
    device = WorkerDevice("worker:0")
    device.open()
    yield device
    device.close()


def twice() -> Graph:
    """Return y = x + x."""
    b = pl.GraphBuilder("twice")
    x = b.input("x", "float32", (4,))
    b.output("y", b.op("Add", x, x))
    return b.build()


def test_the_self_check_finds_a_worker() -> None:
    status = devices.probe("worker:0")
    assert status.found, status.reason
    assert status.memory_bytes is not None


def test_programs_run_in_another_process(worker: WorkerDevice) -> None:
    with Bound(worker, calls(functions.process_id)) as bound:
        (pid,) = bound.run()["y"]
    assert pid == worker.pid != os.getpid()


def test_two_workers_are_two_processes() -> None:
    first, second = WorkerDevice("worker:0"), WorkerDevice("worker:1")
    for device in (first, second):
        device.open()
    assert None is not first.pid != second.pid is not None
    for device in (first, second):
        device.close()


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.integers(0, 99))
def test_graphs_compute_what_they_say(worker: WorkerDevice, graph: Graph, seed: int) -> None:
    inputs = feeds(graph, seed)
    with Bound(worker, graph) as bound:
        results = bound.run(**inputs)
    for name, wanted in expected(graph, inputs).items():
        np.testing.assert_array_equal(results[name], wanted)


def test_bits_are_those_of_the_cpu_device(worker: WorkerDevice) -> None:
    graph = calls(functions.scale, functions.scale, n=1003)
    bits = np.random.default_rng(1).integers(0, 2**32, 1003, np.uint32)
    x = bits.view(np.float32)  # every kind of number: NaNs, infinities, subnormals
    cpu = CpuDevice("cpu")
    cpu.open()
    with Bound(worker, graph) as there, Bound(cpu, graph) as here:
        got, wanted = there.run(x=x)["y"], here.run(x=x)["y"]
    cpu.close()
    np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


def test_overflow_and_division_of_nothing_are_silent_as_on_cpu(worker: WorkerDevice) -> None:
    with Bound(worker, twice()) as bound:
        np.testing.assert_array_equal(bound.run(x=np.float32(3e38))["y"], np.full(4, np.inf))


def test_arenas_of_the_cpu_device_are_shared(worker: WorkerDevice) -> None:
    cpu, graph = CpuDevice("cpu"), twice()
    arena = cpu.arena(SHARED, 4096)
    assert isinstance(arena, SharedArena)
    views = place(cpu, arena, dict(graph.tensors))
    views["x"].array[...] = [1, 2, 3, 4]
    worker.submit(worker.compile(graph, views)).wait(WAIT_S)
    np.testing.assert_array_equal(views["y"].array, [2, 4, 6, 8])
    arena.close()


def test_a_view_on_the_same_bytes_needs_no_copy(worker: WorkerDevice) -> None:
    graph, spec = unary("Identity"), TensorSpec("float32", (4,))
    arena = worker.arena(SHARED, 512)
    views = {name: worker.view(arena, 0, spec) for name in ("x", "y")}
    views["x"].array[...] = 7
    event = worker.submit(worker.compile(graph, views, measure=True))
    event.wait(WAIT_S)
    assert event.node_ns == (0,)
    np.testing.assert_array_equal(views["y"].array, np.full(4, 7))
    arena.close()


def test_copies_go_both_ways_between_host_and_shared_memory(worker: WorkerDevice) -> None:
    spec = TensorSpec("int32", (5,))
    host, shared = host_arena(1024), worker.arena(SHARED, 1024)
    source, target = worker.view(host, 0, spec), worker.view(host, 512, spec)
    inside = worker.view(shared, 0, spec)
    source.array[...] = np.arange(5)
    worker.copy(inside, source).wait(WAIT_S)
    worker.copy(target, inside).wait(WAIT_S)
    np.testing.assert_array_equal(target.array, np.arange(5))
    assert (host.memory, shared.memory) == (HOST, SHARED)
    shared.close()


def large_constant() -> Graph:
    b = pl.GraphBuilder("large")
    x = b.input("x", "float32", (1,))
    b.output("y", b.op("Add", x, np.arange(8 << 20, dtype=np.float32)))
    return b.build()


def test_constants_are_mapped_not_copied(worker: WorkerDevice) -> None:
    graph = large_constant()
    before = private_bytes(worker)
    with Bound(worker, graph) as bound:
        np.testing.assert_array_equal(
            bound.run(x=np.float32(1))["y"], np.arange(8 << 20, dtype=np.float32) + 1
        )
        assert private_bytes(worker) - before < 4 << 20
        assert mapped_bytes(worker) > 64 << 20  # the constant, and the output


def test_a_graph_is_sent_once_for_all_slots(worker: WorkerDevice) -> None:
    with Bound(worker, large_constant()) as bound:
        before = mapped_bytes(worker)
        again = worker.compile(bound.graph, bound.views)
        assert mapped_bytes(worker) == before
        for program in (bound.program, again):
            worker.submit(program).wait(WAIT_S)


def test_what_the_parent_drops_is_unmapped(worker: WorkerDevice) -> None:
    with Bound(worker, twice()) as small:
        small.run()
        before = mapped_bytes(worker)
        with Bound(worker, large_constant()) as large:
            large.run()
        assert mapped_bytes(worker) > before
        del large
        gc.collect()
        small.run()  # answered after whatever was forgotten
        assert mapped_bytes(worker) == before


def private_bytes(worker: WorkerDevice) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return 1024 * next(int(li.split()[1]) for li in status.splitlines() if "RssAnon" in li)


def mapped_bytes(worker: WorkerDevice) -> int:
    maps = Path(f"/proc/{worker.pid}/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in maps if "plait-arena" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in spans)


def test_a_function_gets_its_attributes_and_gives_several_outputs(worker: WorkerDevice) -> None:
    b = pl.GraphBuilder("functions")
    x = b.input("x", "float32", (3,))
    scaled = b.call(functions.scale, x, by=-3.0)
    for name, tensor in zip(("up", "down"), b.call(functions.split_sign, scaled), strict=True):
        b.output(name, tensor)
    with Bound(worker, b.build()) as bound:
        results = bound.run(x=np.array([1, -2, 0], np.float32))
    np.testing.assert_array_equal(results["up"], [0, 6, 0])
    np.testing.assert_array_equal(results["down"], [-3, 0, 0])


def test_a_function_may_have_a_name_of_its_own(worker: WorkerDevice) -> None:
    with Bound(worker, calls(functions.negate)) as bound:
        np.testing.assert_array_equal(bound.run(x=np.float32(3))["y"], np.full(4, -3))


def test_operators_and_kernels_of_the_users_run_in_a_worker(worker: WorkerDevice) -> None:
    with Bound(worker, unary("test.Halve")) as bound:
        np.testing.assert_array_equal(bound.run(x=np.float32(3))["y"], np.full(4, 1.5))


MODULE = """
import numpy as np
import plait as pl

@pl.operator()
def thrice(x):
    return x * np.float32(3)
"""


def test_a_module_on_the_path_is_imported(
    worker: WorkerDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_a_worker_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_of_a_worker_test")
    with Bound(worker, calls(module.thrice)) as bound:
        np.testing.assert_array_equal(bound.run(x=np.float32(2))["y"], np.full(4, 6))


def test_a_module_that_fails_to_import_is_named(
    worker: WorkerDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = f"import os\nif os.getpid() != {os.getpid()}: raise RuntimeError('not here')\n"
    (tmp_path / "module_that_fails_elsewhere.py").write_text(guard + MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_that_fails_elsewhere")
    with pytest.raises(DeviceError, match=r"cannot import module 'module_that_fails") as caught:
        Bound(worker, calls(module.thrice))
    assert type(caught.value.__cause__) is RuntimeError
    with Bound(worker, calls(functions.scale)) as bound:
        bound.run()


def test_a_module_that_exits_when_it_is_imported_leaves_the_worker_alive(
    worker: WorkerDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = f"import os, sys\nif os.getpid() != {os.getpid()}: sys.exit('bye')\n"
    (tmp_path / "module_that_exits_elsewhere.py").write_text(guard + MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_that_exits_elsewhere")
    with pytest.raises(DeviceError, match="SystemExit: bye"):
        Bound(worker, calls(module.thrice))
    with Bound(worker, calls(functions.scale)) as bound:
        bound.run()


def test_a_function_inside_a_function_is_refused(worker: WorkerDevice) -> None:
    @pl.operator(name="test.hidden")
    def hidden(x: Array) -> Array:
        return x

    graph = calls(hidden)
    (node,) = graph.nodes
    assert not worker.supports(node, graph.call(node)).ok
    with pytest.raises(DeviceError, match="inside a function") as caught:
        Bound(worker, graph)
    assert "top level of a module" in str(caught.value)


def test_what_the_cpu_device_runs_a_worker_runs(worker: WorkerDevice) -> None:
    graph = twice()
    (node,) = graph.nodes
    assert worker.supports(node, graph.call(node)).ok


def test_an_event_tells_when_and_how_long_nodes_ran(worker: WorkerDevice) -> None:
    with Bound(worker, calls(functions.scale, functions.negate), measure=True) as bound:
        before = time.perf_counter_ns()
        event = worker.submit(bound.program)
        event.wait(WAIT_S)
        after = time.perf_counter_ns()
    assert before <= event.started_ns <= event.ended_ns <= after
    assert event.node_ns is not None
    assert len(event.node_ns) == 2
    assert 0 < sum(event.node_ns) <= event.ended_ns - event.started_ns


def test_programs_do_not_measure_unless_asked(worker: WorkerDevice) -> None:
    with Bound(worker, twice()) as bound:
        event = worker.submit(bound.program)
        event.wait(WAIT_S)
    assert event.node_ns is None


def test_events_complete_in_order_on_one_thread(worker: WorkerDevice) -> None:
    order: list[int] = []
    threads: set[str] = set()

    def mark(number: int) -> Callable[[object], None]:
        def done(_: object) -> None:
            order.append(number)
            threads.add(threading.current_thread().name)

        return done

    with Bound(worker, twice()) as bound:
        events = [worker.submit(bound.program, on_done=mark(i)) for i in range(200)]
        events[-1].wait(WAIT_S)
    assert order == list(range(200))
    assert threads == {"plait-worker:0"}


def test_a_callback_may_submit_the_next_program(worker: WorkerDevice) -> None:
    left, finished = [50], threading.Event()

    def again(_: object) -> None:
        left[0] -= 1
        if left[0]:
            worker.submit(bound.program, on_done=again)
        else:
            finished.set()

    with Bound(worker, twice()) as bound:
        worker.submit(bound.program, on_done=again)
        assert finished.wait(WAIT_S)


@pytest.mark.slow
def test_threads_may_submit_and_compile_at_once(worker: WorkerDevice) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                with Bound(worker, calls(functions.scale, functions.scale)) as bound:
                    np.testing.assert_array_equal(
                        bound.run(x=np.float32(number))["y"], np.full(4, 4 * number)
                    )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []


def test_opening_twice_keeps_the_process(worker: WorkerDevice) -> None:
    pid = worker.pid
    worker.open()
    assert worker.pid == pid


def test_a_closed_worker_refuses_and_opens_again() -> None:
    device = WorkerDevice("worker:0")
    device.close()
    with Bound(CpuDevice("cpu"), twice()) as bound:
        with pytest.raises(DeviceUnavailableError, match="'worker:0' is closed"):
            device.compile(bound.graph, bound.views)
        for _ in range(2):
            device.open()
            program = device.compile(bound.graph, bound.views)
            device.submit(program).wait(WAIT_S)
            device.close()
            device.close()
            assert device.pid is None
            with pytest.raises(DeviceUnavailableError, match="'worker:0' is closed"):
                device.submit(program)


def test_a_program_of_a_former_life_is_refused() -> None:
    device = WorkerDevice("worker:0")
    device.open()
    with Bound(device, twice()) as bound:
        device.close()
        device.open()
        with pytest.raises(DeviceUnavailableError, match="closed"):
            device.submit(bound.program).wait(WAIT_S)
    device.close()


@pytest.mark.slow
def test_opening_and_closing_leaves_no_descriptor() -> None:
    def live() -> None:
        device = WorkerDevice("worker:0")
        device.open()
        with Bound(device, calls(functions.scale)) as bound:
            bound.run()
        device.close()

    live()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        live()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_system_without_signals_and_descriptors_of_posix_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(signal, "pthread_sigmask")
    monkeypatch.delattr(socket, "socketpair")
    monkeypatch.delattr(socket, "send_fds")
    monkeypatch.delattr(os, "memfd_create", raising=False)
    for name in ("cpu", "worker"):
        status = pl.devices.probe(name)
        assert status.found == (name == "cpu")
    assert status.reason == (
        "'worker' takes what this system lacks: "
        "signal.pthread_sigmask, socket.socketpair, socket.send_fds; use 'cpu'"
    )
