"""Async functions as nodes: awaited on the session's loop, in no lane and on no thread."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.devices.errors import KernelError
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.scheduler.errors import UnsupportedOpError
from trio.testing import MockClock, wait_all_tasks_blocked

Array = np.ndarray[Any, Any]
VECTOR = pl.TensorSpec("float32", ("n",))


class Calls:
    """What is under way, and how much of it at most."""

    gate: trio.Event | None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.now = self.most = self.begun = self.cancelled = 0
        self.gate = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        self.begun += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1


calls = Calls()
caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.reset()
    seen.clear()


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.limited", concurrency=16)
async def limited(x: Array) -> Array:
    async with calls.one():
        if calls.gate is None:
            await trio.sleep(1)
        else:
            await calls.gate.wait()
    return x + 1


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.uneven")
async def uneven(x: Array, *, by: float = 1.0) -> Array:
    async with calls.one():
        await trio.sleep(float(x[0]) % 7)
    return x + np.float32(by)


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.picky")
async def picky(x: Array) -> Array:
    await trio.lowlevel.checkpoint()
    if x[0] < 0:
        raise ValueError("negative")
    return x + 1


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.for_ever")
async def for_ever(x: Array) -> Array:
    async with calls.one():
        await trio.Event().wait()
    return x


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.where")
async def where(x: Array) -> Array:
    seen.append((threading.get_ident(), caller.get()))
    caller.set("changed")
    return x


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.writes", effects=True)
async def writes(x: Array) -> Array:
    async with calls.one():
        await trio.sleep(1)
        seen.append(float(x[0]))
    return x


@pl.operator(VECTOR, inputs=[VECTOR], name="test_async.wrong")
async def wrong(x: Array) -> Array:
    return x.astype(np.int32)


def graph(*functions: Callable[..., Any], n: int | str = 2) -> pl.Graph:
    """Return the functions one behind the other."""
    b = pl.GraphBuilder("chain")
    tensor = b.input("x", "float32", (n,))
    for index, function in enumerate(functions):
        tensor = b.call(function, tensor, name=f"{function.__name__}{index}")
    b.output("y", tensor)
    return b.build()


def item(value: float, n: int = 2) -> dict[str, Array]:
    return {"x": np.full(n, value, np.float32)}


def items(count: int) -> Iterator[dict[str, Array]]:
    return (item(value) for value in range(count))


async def stream(session: pl.Session, source: Any, **options: Any) -> list[Any]:
    async with session.stream(source, **options) as results:
        return [one.error or float(one["y"][0]) async for one in results]


async def until(condition: Callable[[], object]) -> None:
    """Wait for what follows when threads have done what they do; no clock moves for it."""
    while not condition():
        await wait_all_tasks_blocked()


def calls_waiting(session: pl.Session) -> int:
    status = session.status().devices.get("calls of test_async.limited")
    return 0 if status is None else status.waiting


async def test_a_thousand_calls_sixteen_at_a_time(autojump_clock: MockClock) -> None:
    async with pl.Session(pl.plan(graph(limited), max_in_flight=40)) as session:
        # Slots are made on threads, which no clock waits for: all are made before it starts.
        calls.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, session, items(40))
            await until(lambda: calls_waiting(session) == 40 - 16)
            calls.gate.set()
        calls.gate, started = None, trio.current_time()
        assert await stream(session, items(1000)) == [value + 1.0 for value in range(1000)]
        assert (calls.most, calls.now) == (16, 0)
        assert trio.current_time() - started == 63  # rounds of 16


async def test_the_limit_holds_over_all_nodes_and_plans_of_a_session() -> None:
    plan = pl.plan(graph(limited, limited, n="n"), max_in_flight=20)
    calls.gate = trio.Event()
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        for length in (2, 3, 4):
            for _ in range(10):
                nursery.start_soon(session.run, item(0, length))
        await until(lambda: calls_waiting(session) == 30 - 16)
        assert calls.now == 16
        calls.gate.set()
    assert (calls.begun, calls.most, calls.now) == (60, 16, 0)


async def test_older_items_are_called_for_first(autojump_clock: MockClock) -> None:
    plan = pl.plan(graph(writes), max_in_flight=8)
    async with pl.Session(plan) as session:
        await stream(session, items(20))
    assert seen == list(range(20))
    assert calls.most == 1  # it has effects, and says nothing of how many calls may be at once


@pytest.mark.parametrize("ordered", [True, False])
async def test_results_keep_their_order_however_long_calls_take(
    ordered: bool, autojump_clock: MockClock
) -> None:
    plan = pl.plan(graph(uneven, uneven), max_in_flight=10)
    async with pl.Session(plan) as session:
        got = await stream(session, items(60), ordered=ordered)
    expected = [value + 2.0 for value in range(60)]
    assert (got if ordered else sorted(got)) == expected
    assert got != expected or ordered


async def test_it_runs_on_the_loop_with_what_the_opener_of_the_session_sees() -> None:
    caller.set("opener")
    async with pl.Session(pl.plan(graph(where, where))) as session:
        await session.run(item(1))
    assert seen == [(threading.get_ident(), "opener")] * 2
    assert caller.get() == "opener"


async def test_devices_work_while_it_waits() -> None:
    b = pl.GraphBuilder("beside")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Neg", b.call(for_ever, x, name="waits")))
    b.output("z", b.op("Neg", b.op("Relu", x)))
    async with pl.Session(pl.plan(b.build(), max_in_flight=2)) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, item(1))
            await until(lambda: calls.now)
            assert (await session.run(item(3), "z")).tolist() == [-3, -3]
            status = session.status().devices
            assert status["calls of test_async.for_ever"].at_work == 1
            assert status["cpu"].at_work == 0
            nursery.cancel_scope.cancel()
        assert (calls.now, calls.cancelled) == (0, 1)


async def test_an_item_that_fails_fails_alone() -> None:
    async with pl.Session(pl.plan(graph(picky, picky), max_in_flight=4)) as session:
        source = [item(value) for value in (0, -5, 2, -1, 4)]
        got = await stream(session, source)
        assert [got[0], got[2], got[4]] == [2, 4, 6]
        for error, node in ((got[1], "picky0"), (got[3], "picky0")):
            assert isinstance(error, KernelError)
            assert f"node {node!r}" in str(error)
            assert "ValueError: negative" in str(error)
            assert isinstance(error.__cause__, ValueError)
        async with session.stream(source, on_error="raise") as results:
            assert (await anext(results))["y"][0] == 2
            with pytest.raises(KernelError, match="negative"):
                await anext(results)
            assert (await anext(results))["y"][0] == 4
        with pytest.raises(KernelError, match="negative"):
            await session.run(item(-1))
        assert (await session.run(item(1)))["y"][0] == 3


async def test_a_failure_elsewhere_ends_the_calls_of_its_item() -> None:
    b = pl.GraphBuilder("beside a failure")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Add", b.call(for_ever, x, name="waits"), b.call(picky, x, name="fails")))
    async with pl.Session(pl.plan(b.build())) as session:
        with pytest.raises(KernelError, match="negative"):
            await session.run(item(-1))
        assert (calls.begun, calls.cancelled, calls.now) == (1, 1, 0)


async def test_what_it_returns_is_checked() -> None:
    async with pl.Session(pl.plan(graph(wrong))) as session:
        with pytest.raises(KernelError, match=r"output 0 of the function is int32\[2\]"):
            await session.run(item(1))


async def test_a_deadline_ends_the_call(autojump_clock: MockClock) -> None:
    async with pl.Session(pl.plan(graph(for_ever), max_in_flight=3)) as session:
        with pytest.raises(pl.DeadlineError):
            await session.run(item(1), deadline_s=2)
        assert trio.current_time() == 2
        got = await stream(session, items(6), deadline_s=5)
        assert all(isinstance(error, pl.DeadlineError) for error in got)
    assert calls.now == 0
    assert calls.cancelled == calls.begun


async def test_cancelling_in_the_middle_leaves_nothing(autojump_clock: MockClock) -> None:
    plan = pl.plan(graph(limited, uneven, for_ever), max_in_flight=12)
    async with pl.Session(plan) as session:
        tasks = trio.lowlevel.current_statistics().tasks_living
        for seconds in (0.0, 0.5, 1.5, 9.0):
            with trio.move_on_after(seconds):
                await stream(session, items(100))
            assert calls.now == 0
            assert session.status().in_flight == 0
            assert trio.lowlevel.current_statistics().tasks_living == tasks
        with trio.move_on_after(1):
            async with session.stream(items(50)) as results:
                await anext(results)
        assert calls.now == 0
    assert calls.begun > calls.cancelled > 0


async def test_leaving_the_session_cancels_the_calls() -> None:
    async with trio.open_nursery() as nursery:

        async def run(session: pl.Session) -> None:
            with pytest.raises(pl.SessionError):
                await session.run(item(1))

        async with pl.Session(pl.plan(graph(for_ever), max_in_flight=4)) as session:
            for _ in range(4):
                nursery.start_soon(run, session)
            await until(lambda: calls.now == 4)
        assert (calls.now, calls.cancelled) == (0, 4)


async def test_a_call_that_ends_in_spite_of_being_cancelled_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    @pl.operator(VECTOR, inputs=[VECTOR], name="test_async.shielded")
    async def shielded(x: Array) -> Array:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return x

    async with pl.Session(pl.plan(graph(shielded))) as session:
        with trio.move_on_after(1) as scope:
            await session.run(item(1))
        assert scope.cancelled_caught
        assert trio.current_time() == 3
        assert (await session.run(item(7)))["y"].tolist() == [7, 7]


async def test_errors_of_a_nursery_in_it_are_the_error_of_the_node() -> None:
    @pl.operator(VECTOR, inputs=[VECTOR], name="test_async.nursery")
    async def nursery(x: Array) -> Array:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(trio.sleep_forever)
            raise ValueError("inside")

    async with pl.Session(pl.plan(graph(nursery))) as session:
        with pytest.raises(KernelError) as caught:
            await session.run(item(1))
    assert isinstance(caught.value.__cause__, ExceptionGroup)


async def test_lengths_that_it_computes_are_those_of_what_follows() -> None:
    @pl.operator(pl.TensorSpec("float32", ("found",)), inputs=[VECTOR], name="test_async.found")
    async def found(x: Array) -> Array:
        await trio.lowlevel.checkpoint()
        return np.arange(x[0], dtype=np.float32)

    b = pl.GraphBuilder("counted")
    rows = b.call(found, b.input("x", "float32", (2,)), name="found")
    b.output("y", b.call(uneven, b.op("Neg", rows), by=2.0))
    for bounds in ({"found": 9}, {"found": (1, 9)}):
        plan = pl.plan(b.build(), bounds=bounds, max_in_flight=3)
        async with pl.Session(plan) as session:
            for count in (4, 9, 1):
                got = (await session.run(item(count)))["y"]
                assert got.tolist() == [2 - value for value in range(count)]
            with pytest.raises(pl.PlaitError, match="its bound is 9"):
                await session.run(item(10))


async def test_a_loop_may_call_it() -> None:
    body = pl.GraphBuilder("body")
    body.input("i", "int64", ())
    body.input("go", "bool", ())
    state = body.call(picky, body.input("state", "float32", (2,)), name="step")
    body.output("again", body.op("Identity", "go"))
    body.output("next", state)
    b = pl.GraphBuilder("loop")
    x, count = b.input("x", "float32", (2,)), b.input("count", "int64", ())
    b.output("y", b.op("Loop", count, np.array(True), x, body=body.build()))
    async with pl.Session(pl.plan(b.build())) as session:
        for times in (3, 1):
            got = await session.run({**item(2), "count": np.array(times, np.int64)})
            assert got["y"].tolist() == [2 + times] * 2


@pytest.mark.parametrize("device", ["worker:0", "formal", "ort"])
def test_devices_that_cannot_await_say_so(device: str) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        pl.plan(graph(picky), device)
    assert f"async functions do not run on {device!r}" in str(caught.value)
    assert "'cpu'" in (caught.value.fix or "")
    assert pl.plan(graph(picky), [device, "cpu"]).assignment == {"picky0": "cpu"}
    with pytest.raises(UnsupportedOpError, match="change the pin"):
        pl.plan(graph(picky), [device, "cpu"], pin={"picky0": device})


async def test_what_is_for_another_loop_is_told_apart() -> None:
    import asyncio

    @pl.operator(VECTOR, inputs=[VECTOR], name="test_async.of_asyncio")
    async def of_asyncio(x: Array) -> Array:
        await asyncio.sleep(1)
        return x

    async with pl.Session(pl.plan(graph(of_asyncio))) as session:
        with pytest.raises(KernelError, match="no running event loop") as caught:
            await session.run(item(1))
    assert "AsyncioSession" in (caught.value.fix or "")


async def test_all_items_in_flight_wait_at_once_whatever_their_size() -> None:
    """Memory is not laid out as if stages took turns: an item that waits keeps none from going."""
    plan = pl.plan(graph(for_ever, n=100_000), max_in_flight=20)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        nursery.start_soon(stream, session, (item(5, 100_000) for _ in range(40)))
        await until(lambda: calls.now == 20)
        nursery.cancel_scope.cancel()
    assert (calls.begun, calls.now) == (20, 0)


async def test_results_that_nobody_reads_are_no_others(autojump_clock: MockClock) -> None:
    @pl.operator([VECTOR, VECTOR], inputs=[VECTOR], name="test_async.two")
    async def two(x: Array) -> tuple[Array, Array]:
        await trio.sleep(float(x[0]) % 3)
        return x + 1, x - 1

    b = pl.GraphBuilder("unread")
    x = b.input("x", "float32", (20_000,))
    for index in range(3):
        b.output(f"y{index}", b.call(two, b.op("Add", x, float(index)))[index % 2])
    async with pl.Session(pl.plan(b.build(), max_in_flight=4)) as session:
        async with session.stream(item(value, 20_000) for value in range(20)) as results:
            async for one in results:
                for index in range(3):
                    assert set(one[f"y{index}"]) == {one.index + index + 1 - 2 * (index % 2)}


async def test_the_profile_says_what_was_waited_for(autojump_clock: MockClock) -> None:
    plan = pl.plan(graph(limited), max_in_flight=4)
    async with pl.Session(plan, measure=True) as session:
        await stream(session, items(8))
    profile = session.profile()
    assert profile.waits["test_async.limited"]["calls"] == 8
    assert profile.busy_s == {}
    assert "test_async.limited: waited" in profile.table()
    assert "in 8 calls" in profile.table()
    spent = profile.attribution()
    assert spent.waiting_ns > spent.compute_ns == 0
    assert spent.residual_ns == 0
    (node,) = profile.nodes
    assert node.runs == 8
    trace = [one for one in _events(profile) if one.get("cat") == "calls of test_async.limited"]
    assert [one["ph"] for one in trace] == ["b", "e"] * 8


def _events(profile: pl.Profile) -> list[dict[str, Any]]:
    from plait.scheduler.reports.chrome import make_trace_events

    return make_trace_events(profile)


async def test_costs_know_how_long_it_took() -> None:
    plan = pl.plan(graph(picky), max_in_flight=4)
    async with pl.Session(plan) as session:
        await stream(session, items(8))
        costs = pl.Costs.from_profile(session.profile(), plan)
    (step,) = plan.steps
    assert costs.basis("cpu", step.work.graph, step.work.graph.nodes[0]) != "model"  # type: ignore[union-attr]


def test_run_and_the_blocking_session_await_it_on_their_loop() -> None:
    planned = pl.plan(graph(picky, picky), max_in_flight=4)
    assert pl.run(planned, item(1))["y"].tolist() == [3, 3]
    with pl.BlockingSession(planned) as session:
        assert session.run(item(1))["y"].tolist() == [3, 3]
        with session.stream(items(20)) as results:
            assert [float(one["y"][0]) for one in results] == [value + 2.0 for value in range(20)]
        with pytest.raises(KernelError, match="negative"):
            session.run(item(-1))


def test_it_runs_beside_devices_on_a_virtual_clock() -> None:
    sim = SimDevice("sim:a", SimModel(flops_per_s=1e6), VirtualClock())
    b = pl.GraphBuilder("virtual")
    hidden = b.op("Relu", b.input("x", "float32", (2,)), name="there")
    b.output("y", b.op("Neg", b.call(picky, hidden, name="here"), name="back"))
    plan = pl.plan(b.build(), [sim, "cpu"], pin={"here": "cpu", "*": "sim:a"})

    async def main() -> Any:
        async with pl.Session(plan) as session:
            return (await session.run(item(4)))["y"].tolist()

    assert trio.run(main) == [-5, -5]
