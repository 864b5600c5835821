"""Workers on a GPU: its memory is shared, their ends are theirs alone. On the double."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from bound import Bound
from cupy_double import CupyDouble
from double_worker import worker_on
from gates import Gate
from patience import WAIT_S
from plait.devices import Device, registry
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.worker import CudaWorkerDevice
from plait.devices.errors import DeviceLostError, DeviceUnavailableError, KernelError
from plait.devices.event import Event
from plait.devices.kinds import WORKER_ON_GPU
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.plans.placement import Transfer
from plait.scheduler.runtime.events import DeviceLost, SessionEvent

from . import cuda_worker_functions as functions

X = np.array([1, 2, 3, 4], np.float32)
MINUS = -X
GRACE_S = 0.3
"""Enough for a kernel to be compiled, and to begin."""
ENDS = {
    "killed": "killed by signal 9",
    "segfault": "killed by signal 11",
    "exit": "exited with status 3",
    "wild": "killed: cudaErrorIllegalAddress: an illegal memory access was encountered",
}


@dataclass
class Machine:
    """A GPU, real or not, and the devices on it."""

    double: CupyDouble | None

    def worker(self, name: str = "worker:cuda:0") -> CudaWorkerDevice:
        if self.double is None:
            return CudaWorkerDevice(name)
        return worker_on(self.double, name)

    def cuda(self) -> CudaDevice:
        return CudaDevice("cuda:0") if self.double is None else self.double.device()


@pytest.fixture
def machine() -> Iterator[Machine]:
    double = CupyDouble(shares=True)
    yield Machine(double)
    double.gpu.check_freed()


@pytest.fixture
def worker(machine: Machine) -> Iterator[CudaWorkerDevice]:
    made = machine.worker()
    made.open()
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    yield made
    made.close()


def calling(
    function: Callable[..., Any], *, n: int = 4, constant: Array | None = None, **attributes: Any
) -> Graph:
    """Return y = function(x), with a constant as a second input if one is given."""
    b = pl.GraphBuilder("calling")
    given = [b.input("x", "float32", (n,)), *([] if constant is None else [b.constant(constant)])]
    b.output("y", b.call(function, *given, name="call", **attributes))
    return b.build()


def between(function: Callable[..., Any], **attributes: Any) -> Graph:
    """Return y = relu(function(x + x))."""
    b = pl.GraphBuilder("between")
    x = b.input("x", "float32", (4,))
    h = b.call(function, b.op("Add", x, x, name="before"), name="call", **attributes)
    b.output("y", b.op("Relu", h, name="after"))
    return b.build()


def planned(machine: Machine, graph: Graph, **options: Any) -> tuple[pl.Plan, CudaWorkerDevice]:
    worker = machine.worker()
    pins = {"call": worker.name, "*": "cuda:0"}
    return pl.plan(graph, [worker, machine.cuda(), "cpu"], pin=pins, **options), worker


def lost(event: Event) -> DeviceLostError:
    with pytest.raises(DeviceLostError) as caught:
        event.wait(WAIT_S)
    return caught.value


# What it computes


def test_a_function_gets_and_returns_arrays_on_the_gpu(worker: CudaWorkerDevice) -> None:
    with Bound(worker, calling(functions.scale)) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X * 2)


def test_it_runs_in_a_process_of_its_own(worker: CudaWorkerDevice) -> None:
    with Bound(worker, calling(functions.process_id)) as bound:
        assert bound.run(x=X)["y"].tolist() == [worker.pid] != [os.getpid()]


def test_several_results_constants_and_kernels(worker: CudaWorkerDevice) -> None:
    b = pl.GraphBuilder("several")
    x = b.op("Add", b.input("x", "float32", (4,)), np.float32(-2))
    for name, y in zip("pn", b.call(functions.split_sign, x), strict=True):
        b.output(name, b.call(functions.add_constant, y, np.full(4, 7, np.float32)))
    with Bound(worker, b.build()) as bound:
        found = bound.run(x=X)
    np.testing.assert_array_equal(found["p"], np.maximum(X - 2, 0) + 7)
    np.testing.assert_array_equal(found["n"], np.minimum(X - 2, 0) + 7)


@pytest.mark.extended
def test_work_that_a_function_only_queued_is_done_when_its_program_is(
    worker: CudaWorkerDevice,
) -> None:
    x = np.arange(1 << 22, dtype=np.float32)
    with Bound(worker, calling(functions.scale_late, n=x.size)) as bound:
        for factor in (1, 2):
            np.testing.assert_array_equal(bound.run(x=x * factor)["y"], 2 * x * factor)


def test_times_of_nodes_are_measured(worker: CudaWorkerDevice) -> None:
    with Bound(worker, between(functions.scale), measure=True) as bound:
        bound.put({"x": X})
        event = bound.submit()
        event.wait(WAIT_S)
        np.testing.assert_array_equal(bound.get()["y"], X * 4)
    assert event.node_ns is not None
    assert len(event.node_ns) == 3
    assert min(event.node_ns) > 0


@pytest.mark.usefixtures("forget_operators")
def test_a_function_may_be_sent_by_value(worker: CudaWorkerDevice) -> None:
    pytest.importorskip("cloudpickle")

    @pl.operator(arrays="cuda", by_value=True, name="test_cuda_worker.triple")
    def triple(x: Array) -> Array:
        return x * x.dtype.type(3)

    with Bound(worker, calling(triple)) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X * 3)


def test_errors_name_the_node_and_leave_the_process(worker: CudaWorkerDevice) -> None:
    pid = worker.pid
    wrong = {
        functions.return_a_host_array: r"returned a ndarray that is not on 'cuda:0'",
        functions.return_another_shape: r"is float32\[1\], declared was float32\[4\]",
    }
    for function, told in wrong.items():
        with Bound(worker, calling(function)) as bound:
            bound.put({"x": X})
            with pytest.raises(KernelError, match=told) as caught:
                bound.submit().wait(WAIT_S)
        assert caught.value.at is not None
        assert "'call'" in caught.value.at
    with Bound(worker, calling(functions.fail_if_negative)) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X)
        bound.put({"x": MINUS})
        with pytest.raises(KernelError, match="a number is negative"):
            bound.submit().wait(WAIT_S)
        np.testing.assert_array_equal(bound.run(x=X)["y"], X)
    assert worker.pid == pid


# What it shares


def test_nothing_is_copied_between_a_gpu_and_its_worker(machine: Machine) -> None:
    plan, worker = planned(machine, between(functions.scale))
    assert "transfers: 2, 32 bytes per item" in plan.report()
    # Not by the worker's own, which would have the host keep the order.
    assert [one.device for one in plan.steps if isinstance(one.work, Transfer)] == ["cuda:0"] * 2
    assert pl.run(plan, {"x": X})["y"].tolist() == (X * 4).tolist()
    assert worker.pid is None


def test_a_stream_in_flight_over_both_is_in_order(machine: Machine) -> None:
    plan, _ = planned(machine, between(functions.scale, by=3.0), max_in_flight=4)

    async def stream() -> list[Array]:
        feeds = [{"x": X * item} for item in range(40)]
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            return [item["y"] async for item in results]

    for item, found in enumerate(trio.run(stream)):
        np.testing.assert_array_equal(found, X * item * 6)


@pytest.mark.extended
def test_several_workers_on_one_gpu(machine: Machine) -> None:
    b = pl.GraphBuilder("two processes")
    x = b.input("x", "float32", (4,))
    for name in "ab":
        b.output(name, b.call(functions.process_id, x, name=name))
    graph = b.build()
    workers = [machine.worker(), machine.worker("worker:cuda:0:b")]
    plan = pl.plan(graph, workers, pin={"a": "worker:cuda:0", "b": "worker:cuda:0:b"})
    found = pl.run(plan, {"x": X})
    assert len({found["a"].item(), found["b"].item(), os.getpid()}) == 3


@pytest.mark.extended
def test_a_range_has_a_worker_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    double = CupyDouble(devices=2, shares=True)
    entry = registry._registered[WORKER_ON_GPU]._replace(factory=partial(worker_on, double))
    monkeypatch.setitem(registry._registered, WORKER_ON_GPU, entry)
    plan = pl.plan(calling(functions.process_id), ["worker:cuda:0..1"], max_in_flight=2)
    assert plan.every_device == ("worker:cuda:0", "worker:cuda:1")

    async def stream() -> list[int]:
        feeds = [{"x": X}] * 6
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            return [item["y"].item() async for item in results]

    found = trio.run(stream)
    assert len({*found, os.getpid()}) == 3
    assert double.contexts == {0, 1}


def test_an_object_of_a_class_keeps_what_it_has_on_the_gpu(machine: Machine) -> None:
    graph = calling(functions.Weights, constant=np.full(4, 5, np.float32))
    plan, _ = planned(machine, graph)
    assert pl.run(plan, {"x": X})["y"].tolist() == (X * 50).tolist()


def test_memory_stays_until_the_process_has_let_go_of_it(machine: Machine, gate: Gate) -> None:
    """CUDA leaves open what becomes of a process that still has what was freed."""
    assert machine.double is not None
    gpu, worker = machine.double.gpu, machine.worker()
    worker.open()
    gc.collect()
    with Bound(worker, calling(functions.wait_for, path=gate.path)) as blocker:
        before = gpu.live_bytes
        bound = Bound(worker, calling(functions.scale))
        bound.run(x=X)
        during = gpu.live_bytes
        assert during > before
        event = blocker.submit()
        trio.run(gate.reached)
        bound.close()
        del bound
        gc.collect()
        assert gpu.live_bytes == during
        gate.close()
        event.wait(WAIT_S)
        # Answers come in order.
        with Bound(worker, calling(functions.scale)) as last:
            last.run(x=X)
            assert gpu.live_bytes == before + last.views["x"].arena.nbytes
    worker.close()


# How it ends


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_process_that_ends_takes_nothing_along(
    how: str, machine: Machine, worker: CudaWorkerDevice
) -> None:
    """Neither the GPU for this process, nor what lies in the memory that both use."""
    cuda = machine.cuda()
    cuda.open()
    with Bound(cuda, between_on_gpu()) as other:
        with Bound(worker, calling(functions.end_if_negative, how=how)) as bound:
            bound.put({"x": MINUS})
            error = lost(bound.submit())
            assert error.what == f"worker:cuda:0 died: {ENDS[how]}"
            assert error.at is not None
            assert "while running subgraph 'calling'" in error.at
            assert worker.failure is not None
            assert worker.can_restart
            np.testing.assert_array_equal(other.run(x=X)["y"], X * 2)
            np.testing.assert_array_equal(_read(worker, bound), MINUS)
        worker.open()
        with Bound(worker, calling(functions.scale)) as again:
            np.testing.assert_array_equal(again.run(x=X)["y"], X * 2)
        assert cuda.failure is None
    cuda.close()


def between_on_gpu() -> Graph:
    b = pl.GraphBuilder("on the GPU")
    x = b.input("x", "float32", (4,))
    b.output("y", b.op("Add", x, x))
    return b.build()


def _read(device: Device, bound: Bound) -> Array:
    device.copy(bound.hosts["x"], bound.views["x"]).wait(WAIT_S)
    return bound.hosts["x"].array


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "wild"])
def test_the_item_that_workers_die_of_fails_and_all_others_are_whole(
    how: str, machine: Machine
) -> None:
    plan, _ = planned(machine, between(functions.end_if_negative, how=how), max_in_flight=3)
    policy = pl.FaultPolicy(replays=1, restart_s=0.0)
    feeds = [{"x": MINUS if item == 5 else X * item} for item in range(12)]

    async def stream() -> list[Array | type[BaseException]]:
        async with pl.Session(plan, faults=policy) as session:
            async with session.stream(feeds) as results:
                return [
                    item["y"] if item.error is None else type(item.error) async for item in results
                ]

    for item, found in enumerate(trio.run(stream)):
        if item == 5:
            assert found is DeviceLostError
        else:
            np.testing.assert_array_equal(found, X * item * 4)


@pytest.mark.slow
@pytest.mark.parametrize("function", [functions.wait_for, functions.compute_endlessly])
def test_an_item_that_is_given_up_has_its_worker_killed(
    function: Callable[..., Any], machine: Machine, gate: Gate
) -> None:
    plan, _ = planned(machine, between(function, path=gate.path))

    async def give_up() -> None:
        lost, scope = trio.Event(), trio.CancelScope()

        def observe(event: SessionEvent) -> None:
            if isinstance(event, DeviceLost):
                lost.set()

        def leave() -> None:
            if function is functions.compute_endlessly:
                gate.close()  # the kernel may begin
            scope.cancel()

        policy = pl.FaultPolicy(grace_s=GRACE_S)
        async with pl.Session(plan, faults=policy, on_event=observe) as session:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(gate.reached, leave)
                    await session.run({"x": X})
            assert scope.cancelled_caught
            with trio.fail_after(WAIT_S):
                await lost.wait()

    trio.run(give_up)
    assert pl.run(between_on_gpu(), {"x": X}, [machine.cuda()])["y"].tolist() == (X * 2).tolist()


def test_a_worker_killed_while_it_is_idle_is_started_again(machine: Machine) -> None:
    plan, worker = planned(machine, between(functions.scale))

    async def kill() -> None:
        async with pl.Session(plan) as session:
            for _ in range(3):
                assert (await session.run({"x": X}))["y"].tolist() == (X * 4).tolist()
                assert worker.pid is not None
                os.kill(worker.pid, signal.SIGKILL)
            assert (await session.run({"x": X}))["y"].tolist() == (X * 4).tolist()

    trio.run(kill)


# What is refused


def test_a_system_that_shares_no_memory_is_told_of_when_it_is_opened(double: CupyDouble) -> None:
    worker = worker_on(double)
    with pytest.raises(DeviceUnavailableError, match="cannot be shared") as caught:
        worker.open()
    assert "cudaErrorNotSupported" in caught.value.what
    assert caught.value.fix is not None
    assert "CUDA IPC" in caught.value.fix
    assert worker.pid is None


def test_functions_go_where_their_arrays_are() -> None:
    double = CupyDouble(shares=True)
    worker = worker_on(double)
    with pytest.raises(pl.PlanError, match="takes arrays on a GPU: 'worker:cuda:0'"):
        pl.plan(calling(functions.scale), ["cpu", "formal", double.device()])
    with pytest.raises(pl.PlanError, match="takes numpy's arrays"):
        pl.plan(calling(functions.scale_on_host), [worker])
    plan = pl.plan(calling(functions.scale), ["cpu", worker])
    assert plan.assignment == {"call": "worker:cuda:0"}


def test_a_name_says_which_gpu_and_options_are_those_of_workers() -> None:
    device = pl.device("worker:cuda:1:tracker", threads=2)
    assert isinstance(device, CudaWorkerDevice)
    assert (device.name, device._gpu.name, device.options) == (
        "worker:cuda:1:tracker",
        "cuda:1",
        {"threads": 2},
    )
    with pytest.raises(DeviceUnavailableError, match="'cuda:x' is not a CUDA device"):
        pl.device("worker:cuda:x")


def test_a_gpu_that_is_lost_takes_its_worker_along(machine: Machine) -> None:
    assert machine.double is not None
    worker = machine.worker()
    worker.open()
    machine.double.gpu._broken = None
    with Bound(worker, calling(functions.scale)) as bound:
        machine.double.gpu._break(RuntimeError("broken"))
        with pytest.raises(DeviceLostError):
            bound.put({"x": X})
        assert worker.failure is not None
        assert not worker.can_restart
    worker.close()
