"""Variables that items hand on as they run: turns, faults, cancellation, and callers beside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from ordered_functions import BAD, S, begun, gates, seen, slow, told, worked
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.running.launcher import ItemLauncher
from plait.scheduler.simulation.workload import SimulatedHost


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for one in (seen, told, begun):
        one.clear()
    gates.clear()


@pl.operator(S, inputs=[S], name="test_overlapping.check", effects=True, ordered=False)
def check(x: Array) -> Array:
    """Fail for some items after they have handed on their sum."""
    gate = gates.get(int(x[0]))
    assert gate is None or gate.wait(WAIT_S)
    if x[0] in told:
        raise ValueError("a bad item")
    return x


def make_graph(before: Any = slow) -> pl.Graph:
    """Return a graph of the sum so far, between a slow function and one that may fail."""
    b = pl.GraphBuilder("sums")
    h = b.call(before, b.input("x", "float32", (4,)), name="slow")
    total = b.variable("total", np.zeros(4, "float32"))
    b.output("before", b.op("Identity", total))
    now = total.assign(total + h)
    b.output("sum", now)
    b.output("checked", b.call(check, b.after(h, now), name="check"))
    return b.build()


def make_plan(devices: Any = ("cpu:0..3",), **options: Any) -> pl.Plan:
    return pl.plan(make_graph(), devices, **{"max_in_flight": 4, **options})


def feed(value: float) -> dict[str, Array]:
    return {"x": np.full(4, value, np.float32)}


def expect(values: list[float], bad: set[float]) -> list[float | None]:
    total, found = 0.0, list[float | None]()
    for value in values:
        total += 0.0 if value in bad else value
        found.append(None if value in bad else total)
    return found


def stream(session: pl.BlockingSession, values: list[float]) -> list[float | None]:
    items = session.stream(map(feed, values))
    return [None if item.error else float(item["sum"][0]) for item in items]


@pytest.mark.parametrize("devices", ["cpu", ["cpu:0..1"]])
def test_a_plan_for_more_items_hands_variables_on(devices: Any) -> None:
    one, four = (make_plan(devices, max_in_flight=count) for count in (1, 4))
    assert one.replan(4 // one.variants) == four
    assert four.replan(1) == one
    assert four.graph.late


def test_items_that_failed_late_are_as_if_they_had_not_been() -> None:
    told.extend([3, 4, 8])
    values = [*map(float, range(12)), BAD, 12.0]
    with pl.BlockingSession(make_plan()) as session:
        assert stream(session, values) == expect(values, {3, 4, 8, BAD})
        assert session.variables["total"][0] == expect(values, {3, 4, 8, BAD})[-1]


async def test_what_a_late_failure_takes_back_is_computed_again() -> None:
    """Item 1 hands its sum on and fails when all others are through with it."""
    told.append(1)
    gates[1] = threading.Event()
    found: dict[int, float] = {}

    async with pl.Session(make_plan(max_in_flight=1)) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream_in, session, found)
            with trio.fail_after(WAIT_S):
                while begun.count(3) < 1:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
            gates[1].set()
        assert (await session.fetch_variables())["total"][0] == 5
    assert found == {0: 0, 1: -1, 2: 2, 3: 5}
    assert begun.count(2) >= 1


async def stream_in(session: pl.Session, found: dict[int, float]) -> None:
    async with session.stream(map(feed, range(4)), max_in_flight=4) as results:
        async for item in results:
            found[item.index] = -1 if item.error else float(item["sum"][0])


async def test_a_cancelled_item_leaves_no_trace() -> None:
    gates[1] = threading.Event()
    found: dict[int, float] = {}

    async def run(value: int, scope: trio.CancelScope) -> None:
        with scope:
            found[value] = float((await session.run(feed(value)))["sum"][0])

    async with pl.Session(make_plan()) as session, trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(3)]
        for value, scope in enumerate(scopes, 1):
            nursery.start_soon(run, value, scope)
            with trio.fail_after(WAIT_S):
                while len(begun) < value:  # noqa: ASYNC110
                    await trio.sleep(0.001)
        scopes[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        gates[1].set()
    assert found == {2: 2, 3: 5}


def test_an_item_that_misses_its_deadline_leaves_no_trace() -> None:
    gates[2] = threading.Event()
    opening = threading.Timer(0.3, gates[2].set)

    def source() -> Iterator[dict[str, Array]]:
        for value in range(6):
            if value == 2:
                opening.start()
            yield feed(value)

    with pl.BlockingSession(make_plan()) as session:
        items = [*session.stream(source(), deadline_s=0.1)]
        total = float(session.variables["total"][0])
    opening.join()
    assert isinstance(items[2].error, pl.DeadlineError)
    assert total == sum(item.index for item in items if item.error is None)


async def test_callers_assign_and_look_between_items() -> None:
    sums: list[float] = []

    async def consume() -> None:
        async with session.stream(map(feed, [1.0] * 40), max_in_flight=4) as results:
            async for item in results:
                sums.append(float(item["sum"][0]))
                assert session.variables["total"][0] >= 1

    async with pl.Session(make_plan()) as session, trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        while len(sums) < 5:  # noqa: ASYNC110
            await trio.sleep(0.001)
        before = (await session.fetch_variables())["total"][0]
        await session.assign({"total": np.full(4, 1000, np.float32)})
    assert 5 <= before <= 40
    high = sums.index(next(one for one in sums if one > 1000))
    assert sums == [*range(1, high + 1), *range(1001, 1001 + 40 - high)]


async def test_plans_that_only_read_see_what_is_committed() -> None:
    plan = make_plan()
    async with pl.Session(plan) as session:
        async with session.stream(map(feed, [1.0] * 20), max_in_flight=4) as results:
            async for item in results:
                seen_now = await session.run({}, "total")
                assert seen_now[0] >= item["sum"][0]
                assert session.variables["total"][0] >= seen_now[0]
        assert (await session.run({}, "total"))[0] == 20


def test_values_are_saved_and_carried_between_sessions(tmp_path: Path) -> None:
    plan = make_plan()
    plan.save(tmp_path / "sums.plan")
    with pl.BlockingSession(plan) as session:
        stream(session, [1.0, 2.0, 3.0])
        session.save_variables(tmp_path / "sums")
    again = pl.load_plan(tmp_path / "sums.plan")
    assert again.graph.late == plan.graph.late
    with pl.BlockingSession(again) as session:
        session.load_variables(tmp_path / "sums")
        assert stream(session, [4.0]) == [10.0]


def test_items_of_several_shapes_share_a_variable() -> None:
    b = pl.GraphBuilder("rows")
    rows = b.input("x", "float32", ("n", 4))
    total = b.variable("total", np.zeros(4, "float32"))
    b.output("sum", total.assign(total + b.op("ReduceSum", rows, np.array([0]), keepdims=0)))
    plan = pl.plan(b.build(), ["cpu:0..1"], max_in_flight=4)
    fed = [{"x": np.ones((1 + index % 3, 4), np.float32)} for index in range(20)]
    with pl.BlockingSession(plan) as session:
        found = [float(item["sum"][0]) for item in session.stream(fed)]
    assert found == np.cumsum([1 + index % 3 for index in range(20)]).tolist()


def test_a_live_stream_counts_the_items_that_it_keeps() -> None:
    with pl.BlockingSession(make_plan()) as session:
        kept = [*session.stream(map(feed, [1.0] * 50), keep="latest")]
        assert session.variables["total"][0] == len(kept)


def test_worker_processes_hand_variables_on() -> None:
    graph = make_graph(worked)
    pins = {"slow": "worker:0..1", "*": "cpu"}
    plan = pl.plan(graph, ["worker:0..1", "cpu"], pin=pins, max_in_flight=4)
    values = [*map(float, range(30))]
    with pl.BlockingSession(plan) as session:
        assert stream(session, values) == expect(values, set())


def test_simulations_say_that_the_state_binds() -> None:
    plan = make_plan(max_in_flight=8)
    host = SimulatedHost()
    found = pl.simulate(plan, items=200, host=host, faster={"Add": 1e-4, "slow": 100})
    assert found.bottleneck == "order of variable total"
    assert pl.simulate(plan, items=200, host=host).bottleneck != found.bottleneck


def test_short_items_run_where_they_are_asked_for() -> None:
    b = pl.GraphBuilder("short")
    total = b.variable("total", np.zeros(4, "float32"))
    now = total.assign(total + b.input("x", "float32", (4,)))
    b.output("sum", b.op("Gather", now, b.input("index", "int64", (1,))))
    plan = pl.plan(b.build(), "cpu", max_in_flight=4)
    fed = [{**feed(1), "index": np.array([9 if i % 7 == 5 else 0])} for i in range(60)]
    found = []
    with pl.BlockingSession(plan) as session:
        for one in fed:
            try:
                found.append(float(session.run(one)["sum"][0]))
            except pl.PlaitError:
                found.append(-1.0)
        assert session.variables["total"][0] == max(found)
    assert [value for value in found if value > 0] == [*range(1, found.count(-1.0) * -1 + 61)]
    assert found.count(-1.0) == sum(i % 7 == 5 for i in range(60))


async def test_an_item_that_gets_its_inputs_while_an_earlier_one_starts_again_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Item 0 fails late, so that item 1 starts again, while item 2 has a slot and no inputs yet."""
    told.append(0)
    gates[0] = threading.Event()
    write, calls = ItemLauncher._write, list[int]()

    async def slow_write(launcher: ItemLauncher, *arguments: Any) -> None:
        calls.append(len(calls))
        number = len(calls)
        if number == 3:
            with trio.fail_after(WAIT_S):
                while len(begun) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                await trio.testing.wait_all_tasks_blocked()
                gates[0].set()
                while len(calls) < 4 or begun.count(1) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.001)
        await write(launcher, *arguments)

    monkeypatch.setattr(ItemLauncher, "_write", slow_write)
    found: dict[int, float] = {}
    async with pl.Session(make_plan()) as session:
        async with session.stream(map(feed, range(3)), max_in_flight=4) as results:
            async for item in results:
                found[item.index] = -1 if item.error else float(item["sum"][0])
    assert found == {0: -1, 1: 1, 2: 3}


async def test_an_item_that_starts_while_an_earlier_one_is_recalled_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Item 0 fails late; item 1, which read its sum, has not ended; item 2 gets its inputs."""
    holds, late, written = [threading.Event() for _ in range(2)], list[int](), trio.Event()

    def hold(x: Array) -> Array:
        late.append(int(x[0]))
        if x[0] < 2 and late.count(int(x[0])) == 1:
            assert holds[int(x[0])].wait(WAIT_S)
        if x[0] == 0:
            raise ValueError("a bad item")
        return x

    b = pl.GraphBuilder("sums")
    h = b.input("x", "float32", (4,))
    total = b.variable("total", np.zeros(4, "float32"))
    now = total.assign(total + h)
    b.output("sum", now)
    held = pl.operator(S, inputs=[S], name="test_overlapping.hold", effects=True, ordered=False)
    b.output("held", b.call(held(hold), b.after(h, now)))
    plan = pl.plan(b.build(), ["cpu:0..3"], max_in_flight=4)
    write, calls, found = ItemLauncher._write, list[int](), dict[int, float]()

    async def slow_write(launcher: ItemLauncher, *arguments: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            while len(late) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
            holds[0].set()
            while not found:  # noqa: ASYNC110
                await trio.sleep(0.001)
            written.set()
        await write(launcher, *arguments)

    async def open_hold() -> None:
        await written.wait()
        await trio.testing.wait_all_tasks_blocked()
        holds[1].set()

    monkeypatch.setattr(ItemLauncher, "_write", slow_write)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, trio.open_nursery() as nursery:
            nursery.start_soon(open_hold)
            async with session.stream(map(feed, range(3)), max_in_flight=4) as results:
                async for item in results:
                    found[item.index] = -1 if item.error else float(item["sum"][0])
    assert found == {0: -1, 1: 1, 2: 3}
