"""Variables in graphs whose shapes depend on values: their items go through several plans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from moments import AtMoment, cancel_at_each_moment
from patience import WAIT_S
from plait.graph.core.ir import Graph
from plait.graph.core.state import read_variables, remove_state
from plait.graph.values.recent import RecentItems
from plait.graph.values.tensor import Array
from plait.scheduler.planner.staged_plans import StagedGraph
from resources import held, left_since
from trio.testing import MockClock, wait_all_tasks_blocked


def failing(fails: list[bool]) -> Graph:
    """Return `summing` with a function in a later part that fails when it is told to."""

    @pl.operator(name="parts.fail", effects=False)
    def fail(x: Array) -> Array:
        if fails[0]:
            raise ValueError("it was told to")
        return x

    return summing(lambda b, x: b.call(fail, x))


def summing(last: Callable[[pl.GraphBuilder, str], str] | None = None) -> Graph:
    """Return a graph that adds what is not zero to `total`, and counts it in `count`.

    It puts out the running mean of before, repeated as often as there were such values.
    """
    b = pl.GraphBuilder("summing")
    total, count = b.variable("total", np.float32(0)), b.variable("count", np.float32(0))
    x = b.input("x", "float32", ("n",))
    places = b.op("Reshape", b.op("NonZero", x), np.array([-1]))
    found = b.op("Gather", x, places)
    ones = b.op("Mul", b.op("Abs", b.op("Sign", found)), 1.0)
    mean = b.op("Div", total, b.op("Max", count, 1.0))
    b.output("before", b.op("Mul", ones, mean))
    more = b.op("Add", count, b.op("ReduceSum", ones, keepdims=False))
    b.output("seen", b.assign(count, more))
    new_total = b.op("Add", total, b.op("ReduceSum", found, keepdims=False))
    b.assign(total, new_total)
    if last is not None:
        b.output("last", last(b, new_total))
    return b.build()


def fed(*values: float) -> dict[str, Array]:
    return {"x": np.array(values, np.float32)}


def totals(session: pl.Session | pl.BlockingSession) -> tuple[float, float]:
    return float(session.variables["total"]), float(session.variables["count"])


@pytest.mark.parametrize("devices", [["cpu"], ["compiled"], ["worker:0"]])
async def test_items_see_what_those_before_assigned(devices: list[str]) -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(summing(), devices)) as session:
            one = await session.run(fed(1, 0, 5))
            assert (one["before"].tolist(), one["seen"]) == ([0, 0], 2)
            assert (await session.run(fed(0, 6, 0, 0)))["before"].tolist() == [3]
            assert totals(session) == (12, 3)
            assert (await session.run(fed(1)))["before"].tolist() == [4]


@pytest.mark.parametrize("bounds", [None, {"n": 8, "nonzero.2.shape[1]": 8}])
@pytest.mark.parametrize("devices", [["cpu"], ["cpu:0..1"]])
def test_plans_for_items_that_overlap_run_them_one_at_a_time(
    devices: list[str], bounds: dict[str, int] | None
) -> None:
    plan = pl.plan(summing(), devices, max_in_flight=3, bounds=bounds)
    items = [fed(1, 0, 2), fed(1, 0, 0, 5, 3)] * 4
    with pl.BlockingSession(plan) as session:
        assert [float(item["seen"]) for item in session.stream(items)] == [
            *(2, 5, 7, 10, 12, 15, 17, 20)
        ]
        for item in session.stream(items[:1], key=len):
            assert "lengths in this graph depend on values" in str(item.error)
            assert "as a Python object" in str(item.error)
        assert totals(session) == (48, 20)


@settings(max_examples=15, deadline=None)
@given(items=st.lists(st.lists(st.integers(-2, 2), min_size=1, max_size=4), max_size=4))
def test_any_items_leave_what_numpy_says(items: list[list[int]]) -> None:
    with pl.BlockingSession(pl.plan(summing())) as session:
        values: list[int] = []
        for item in items:
            before = session.run(fed(*item))["before"]
            new = [value for value in item if value]
            mean = sum(values) / max(len(values), 1)
            np.testing.assert_allclose(before, np.full(len(new), mean), rtol=1e-6)
            values += new
        assert totals(session) == (sum(values), len(values))


async def test_an_item_that_fails_in_a_later_part_has_assigned_nothing() -> None:
    fails = [False]
    async with pl.Session(pl.plan(failing(fails))) as session:
        await session.run(fed(1, 0))
        fails[0] = True
        with pytest.raises(pl.KernelError):
            await session.run(fed(5, 0))
        assert totals(session) == (1, 1)
        fails[0] = False
        await session.run(fed(2))
        assert totals(session) == (3, 2)


async def test_an_item_that_is_cancelled_has_assigned_all_or_nothing() -> None:
    before = held()
    async with pl.Session(pl.plan(summing())) as session:
        await session.run(fed(1, 0))

        async def check() -> None:
            total, count = totals(session)
            assert total == count
            await session.run(fed(1, 0))
            assert totals(session) == (count + 1, count + 1)

        assert await cancel_at_each_moment(partial(session.run, fed(1, 0)), check, stride=3) > 1
    assert not left_since(before)


async def test_an_item_that_is_late_has_assigned_nothing(mock_clock: MockClock) -> None:
    async with pl.Session(pl.plan(summing())) as session:
        await session.run(fed(1, 0))
        done, moment, late = 1, 0, True
        while late or moment < 10:
            at_moment = AtMoment(moment, partial(mock_clock.jump, 2))
            trio.lowlevel.add_instrument(at_moment)
            try:
                await session.run(fed(1, 0), deadline_s=1)
            except pl.DeadlineError:
                late = True
            else:
                done, late = done + 1, False
            finally:
                trio.lowlevel.remove_instrument(at_moment)
            assert totals(session) == (done, done)
            moment += 2


async def test_streams_and_runs_at_once_go_one_after_the_other() -> None:
    async with pl.Session(pl.plan(summing())) as session:
        async with session.stream(map(fed, [3, 1, 2])) as results:
            found = [float(item["before"][0]) async for item in results]
        assert found == [0, 3, 2]
        async with trio.open_nursery() as nursery:
            for value in range(1, 6):
                nursery.start_soon(session.run, fed(0, value))
        assert totals(session) == (21, 8)


def twice() -> Graph:
    """Return a graph that reads `w` in a first part and in a later one."""
    b = pl.GraphBuilder("twice")
    w = b.variable("w", np.float32(1))
    x = b.input("x", "float32", ("n",))
    early = b.op("Mul", x, w, name="early")
    found = b.op("NonZero", early)
    b.output("early", early)
    b.output("late", b.op("Mul", b.op("Cast", found, to="float32"), w))
    return b.build()


async def test_an_item_reads_the_same_in_all_its_parts_whoever_assigns_meanwhile() -> None:
    async with pl.Session(pl.plan(twice())) as session:
        await session.run(fed(0, 2))
        for turns in range(60):
            start, found = np.float32(turns + 1), list[Mapping[str, Array]]()
            await session.assign({"w": start})

            async def read(found: list[Mapping[str, Array]] = found) -> None:
                found.append(await session.run(fed(0, 2)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                await session.assign({"w": np.float32(-1)})
            (one,) = found
            assert one["early"][1] == 2 * one["late"][0][0]
            assert session.variables["w"] == -1


def looping() -> Graph:
    """Return a graph that adds a variable n times to zero, and assigns that to it."""
    body = pl.GraphBuilder("body")
    body.input("i", "int64", ())
    going = body.input("going", "bool", ())
    state, w = body.input("state", "float32", (2,)), body.input("inner", "float32", (2,))
    body.output("goes_on", body.op("Identity", going))
    body.output("more", body.op("Add", state, w))
    b = pl.GraphBuilder("looping")
    w = b.variable("w", np.array([1, 2], np.float32))
    n = b.op("Cast", b.input("n", "float32", ()), to="int64")
    zero = np.zeros(2, np.float32)
    y = b.op("Loop", n, None, zero, w, body=body.build(), captured=1, outputs=1)
    b.output("y", b.assign(w, y))
    return b.build()


@pytest.mark.parametrize("device", ["cpu", "formal"])
async def test_loops_read_variables(device: str) -> None:
    """Whether they are one node, or the session runs them."""
    async with pl.Session(pl.plan(looping(), device)) as session:
        for trips, wanted in ((3, [3, 6]), (2, [6, 12])):
            assert (await session.run({"n": np.float32(trips)}))["y"].tolist() == wanted
        assert session.variables["w"].tolist() == [6, 12]


def test_no_iteration_is_fed_what_a_variable_holds() -> None:
    plan, held = pl.plan(looping(), "formal"), np.ones(2, np.float32)
    entry = StagedGraph(plan, remove_state(plan.graph), RecentItems(), plan.graph.variables)
    ((node, body),) = entry.make({"n": np.array(20, np.float32), "w": held}).loops
    assert node.inputs[-1] == "w"
    known = {"i": np.array(0), "going": np.array(True), "state": held, "inner": held}
    iteration = body.make(known).plan
    assert iteration is not None
    assert (iteration.graph.inputs, [*iteration.graph.variables]) == (("going", "state"), ["inner"])


def test_what_has_the_name_of_a_node_is_fed() -> None:
    variables = pl.plan(looping()).graph.variables
    b = pl.GraphBuilder("g")
    one, other = (b.input(name, "float32", (2,)) for name in ("one", "other"))
    b.output("y", b.op("Add", one, other, name="sum"))
    graph = b.build()
    (variable,) = variables.values()
    both = read_variables(graph, {"one": variable, "other": variable})
    assert (both.inputs, [node.name for node in both.nodes][:2]) == (("other",), ["w", "sum"])
    assert read_variables(graph, {"one": replace(variable, name="sum")}).inputs == graph.inputs


async def test_what_a_variable_holds_may_decide_shapes() -> None:
    b = pl.GraphBuilder("g")
    n = b.variable("n", np.int64(1))
    b.output("y", b.op("Range", np.int64(0), n, np.int64(1)))
    b.assign(n, b.op("Add", n, b.input("more", "int64", ())))
    async with pl.Session(pl.plan(b.build())) as session:
        lengths = [len((await session.run({"more": np.int64(more)}))["y"]) for more in (2, 0, 4, 1)]
        assert lengths == [1, 3, 3, 7]


def test_asyncio_runs_them_too() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(pl.plan(summing())) as session:
            await asyncio.gather(*(session.run(fed(0, 1)) for _ in range(3)))
            assert (await session.fetch_variables())["count"] == 3

    asyncio.run(main())


async def test_a_session_that_closes_turns_away_who_waits_for_a_turn() -> None:
    async with trio.open_nursery() as nursery:
        session = pl.Session(pl.plan(summing()))
        async with session:
            await session.run(fed(0, 1))
            errors: list[BaseException] = []

            async def run() -> None:
                try:
                    await session.run(fed(0, 1))
                except pl.SessionError as error:
                    errors.append(error)

            for _ in range(3):
                nursery.start_soon(run)
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert errors
