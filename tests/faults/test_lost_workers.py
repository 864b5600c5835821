"""Workers that are killed, die of items or hang, under sessions: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from gates import Gate
from patience import WAIT_S
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.events import DeviceLost, DeviceRestored, SessionEvent

from . import fault_functions as functions
from .fault_graphs import N, answer, calling, feeds, halves

FATAL = functions.FATAL


@pytest.fixture
def worker() -> WorkerDevice:
    return WorkerDevice("worker:0")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


async def give_up_at(gate: Gate, session: pl.Session) -> None:
    """Run an item that hangs, and give it up as soon as it does."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.reached, scope.cancel)
            await session.run(feeds(FATAL))
    assert scope.cancelled_caught


def planned(worker: WorkerDevice, graph: Graph, **options: Any) -> pl.Plan:
    first = graph.nodes[0].name
    pins = {first: "worker:0", "second": "cpu"}
    return pl.plan(graph, [worker, "cpu"], pin=pins, **options)


def on_worker(worker: WorkerDevice, function: Callable[..., Array], **attributes: Any) -> pl.Plan:
    return planned(worker, calling(function, **attributes), max_in_flight=3)


def kill(worker: WorkerDevice) -> None:
    assert worker.pid is not None
    with suppress(ProcessLookupError):  # it may not be back yet
        os.kill(worker.pid, signal.SIGKILL)


def kinds(seen: list[SessionEvent]) -> Counter[str]:
    return Counter(type(event).__name__ for event in seen)


async def results_of(session: pl.Session, values: list[float]) -> list[list[float] | str]:
    """Return each item's output, or the name of its error."""
    source = (feeds(value) for value in values)
    async with session.stream(source) as stream:
        return [
            item["y"].tolist() if item.error is None else type(item.error).__name__
            async for item in stream
        ]


async def test_a_stream_over_a_worker_that_is_killed_is_whole(worker: WorkerDevice) -> None:
    seen: list[SessionEvent] = []

    def source() -> Iterator[dict[str, Any]]:
        for value in range(200):
            if value in (20, 150):
                kill(worker)
            yield feeds(value)

    plan = planned(worker, halves(), max_in_flight=4)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, on_event=seen.append) as session:
            async with session.stream(source()) as stream:
                results = [item["y"].tolist() async for item in stream]
    assert results == [answer(value) for value in range(200)]
    assert kinds(seen)["DeviceLost"] >= 1
    assert kinds(seen)["ItemDone"] == 200


async def test_a_worker_that_dies_between_items_is_started_again_at_once(
    worker: WorkerDevice,
) -> None:
    seen: list[SessionEvent] = []
    restored = trio.Event()

    def observe(event: SessionEvent) -> None:
        seen.append(event)
        if isinstance(event, DeviceRestored):
            restored.set()

    with trio.fail_after(WAIT_S):
        async with pl.Session(on_worker(worker, functions.twice), on_event=observe) as session:
            await session.run(feeds(1))
            kill(worker)
            await restored.wait()
            assert (await session.run(feeds(2)))["y"].tolist() == answer(2)
    assert [type(event).__name__ for event in seen] == [
        "ItemDone",
        "DeviceLost",
        "DeviceRestored",
        "ItemDone",
    ]
    assert worker.on_failure == []


async def test_an_item_that_a_worker_died_of_once_runs_again_there(
    worker: WorkerDevice, tmp_path: Path
) -> None:
    """Not here: what brings down a worker would bring down this process."""
    seen: list[SessionEvent] = []
    plan = on_worker(worker, functions.die_once, path=str(tmp_path / "died"))
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, on_event=seen.append) as session:
            assert await results_of(session, [1, 2, 3]) == [answer(v) for v in (1, 2, 3)]
    assert kinds(seen)["DeviceLost"] == 1
    assert kinds(seen)["PlanReplaced"] == 0


async def test_calls_of_async_functions_end_with_the_attempt_and_are_made_again(
    worker: WorkerDevice, tmp_path: Path, forget_operators: None
) -> None:
    ended: list[str] = []

    @pl.operator(name="test_lost_workers.ask")
    async def ask(x: Array) -> Array:
        try:
            if not ended:
                await trio.Event().wait()
        except trio.Cancelled:
            ended.append("cancelled")
            raise
        ended.append("done")
        return x + x

    b = pl.GraphBuilder("beside a worker")
    x = b.input("x", "float32", (N,))
    died = b.call(functions.die_once, x, name="die", path=str(tmp_path / "died"))
    b.output("y", b.op("Sub", b.op("Add", b.call(ask, x, name="ask"), died), b.op("Add", x, x)))
    plan = pl.plan(b.build(), [worker, "cpu"], pin={"die": "worker:0", "*": "cpu"})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            assert (await session.run(feeds(5)))["y"].tolist() == answer(5)
    assert ended == ["cancelled", "done"]


async def test_only_the_item_that_workers_die_of_fails(worker: WorkerDevice) -> None:
    """Those that were queued behind it are not to blame, however often the worker dies."""
    plan = on_worker(worker, functions.die_of_some)
    policy = pl.FaultPolicy(replays=1, restart_s=0)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=policy) as session:
            found = await results_of(session, [1, FATAL, 2, 3])
    assert found == [answer(1), "DeviceLostError", answer(2), answer(3)]


@pytest.mark.parametrize("in_flight", [3, 4])
async def test_without_replays_items_that_were_queued_fail_too(
    in_flight: int, worker: WorkerDevice
) -> None:
    """Of their inputs there are no copies, and the source has used its array again."""
    plan = on_worker(worker, functions.die_of_some)
    memory, values = feeds(0), [1, FATAL, 2, 3, 4]

    def source() -> Iterator[dict[str, Any]]:
        for value in values:
            memory["x"][...] = feeds(value)["x"]
            yield memory

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=pl.FaultPolicy(replays=0)) as session:
            async with session.stream(source(), max_in_flight=in_flight) as stream:
                found = [None if item.error else item["y"].tolist() async for item in stream]
    assert found[1] is None
    # Those that come when the worker is back are as good as any.
    assert all(one in (None, answer(value)) for one, value in zip(found, values, strict=True))


async def test_a_node_with_effects_is_not_run_again(worker: WorkerDevice, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    plan = on_worker(worker, functions.write_and_die, path=str(path))
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            with pytest.raises(pl.DeviceLostError, match="killed by signal 9") as caught:
                await session.run(feeds(FATAL))
            assert (await session.run(feeds(2)))["y"].tolist() == answer(2)
    assert caught.value.fix is not None
    assert "node 'call'" in caught.value.fix
    assert "has effects, so the item was not run again" in caught.value.fix
    assert path.read_text().split() == [f"{FATAL}.0", "2.0"]


async def test_a_worker_that_hangs_is_killed_after_a_time_of_grace(
    worker: WorkerDevice, gate: Gate
) -> None:
    seen: list[SessionEvent] = []
    plan = on_worker(worker, functions.hang_on_some, path=gate.path)
    policy = pl.FaultPolicy(grace_s=0.05)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, on_event=seen.append, faults=policy) as session:
            await give_up_at(gate, session)
            assert (await session.run(feeds(1)))["y"].tolist() == answer(1)
    (lost,) = (event for event in seen if isinstance(event, DeviceLost))
    assert "it continued for 0.05 s after its item was cancelled" in str(lost.error)


async def test_items_beside_one_that_hangs_run_again(worker: WorkerDevice, gate: Gate) -> None:
    plan = on_worker(worker, functions.hang_on_some, path=gate.path)
    policy = pl.FaultPolicy(grace_s=0.05)
    outputs: list[list[float]] = []

    async def run(session: pl.Session, value: int) -> None:
        outputs.append((await session.run(feeds(value)))["y"].tolist())

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=policy) as session, trio.open_nursery() as nursery:
            nursery.start_soon(run, session, 1)
            nursery.start_soon(run, session, 2)
            await give_up_at(gate, session)
    assert sorted(outputs) == [answer(1), answer(2)]


async def test_a_session_whose_worker_hangs_can_be_closed(worker: WorkerDevice, gate: Gate) -> None:
    plan = on_worker(worker, functions.hang_on_some, path=gate.path)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, faults=pl.FaultPolicy(grace_s=0.05)) as session:
            async with session.stream([feeds(FATAL)]):
                await gate.reached()


async def test_running_out_of_memory_fails_one_item() -> None:
    plan = pl.plan(calling(functions.run_out_of_memory_on_some))
    async with pl.Session(plan) as session:
        found = await results_of(session, [1, FATAL, 2])
    assert found == [answer(1), "DeviceMemoryError", answer(2)]


async def test_rows_that_a_generator_yields_survive_the_worker_that_runs_them(
    worker: WorkerDevice,
) -> None:
    numbers = pl.TensorSpec("float32", ("numbers",))
    strikes = [3.0, 11.0]

    @pl.operator(numbers, inputs=[numbers], name="test_lost_workers.yielded")
    async def yielded(values: Array) -> AsyncIterator[float]:
        for value in values:
            yield value
            if value in strikes:
                strikes.remove(value)
                kill(worker)
            await trio.lowlevel.checkpoint()

    body = pl.GraphBuilder("body")
    body.output("y", body.op("Neg", body.input("x", "float32", ("rows",))))
    b = pl.GraphBuilder("rows")
    made = b.call(yielded, b.input("x", "float32", ("count",)), name="yielded")
    b.output("y", b.each(made, body.build(), name="read", batch=2))
    devices: list[WorkerDevice | str] = [worker, "cpu"]
    bounds = {"count": 4}
    pins = {"yielded": "cpu", "read/*": "worker:0"}
    plan = pl.plan(b.build(), devices, pin=pins, bounds=bounds, max_in_flight=3)
    source = ({"x": np.arange(4 * n, 4 * n + 4, dtype="float32")} for n in range(8))
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, session.stream(source) as results:
            found = [item["y"].tolist() async for item in results]
    assert found == [[-4 * n, -4 * n - 1, -4 * n - 2, -4 * n - 3] for n in range(8)]
    assert not strikes
