"""Variables and their next values change places: nothing is copied, and nobody notices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.memory import host_arena
from plait.graph.core.ir import Graph
from plait.graph.core.state import find_variables
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory.prepared import name_next_region, name_region
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.regions import ADMISSION, Location, Region
from plait.scheduler.runtime.opened import open_plan
from plait.scheduler.runtime.opened.copying import OutputCopies
from plait.scheduler.runtime.variables import store
from plait.scheduler.runtime.variables.store import VariableStore
from plait.scheduler.runtime.virtual_time import VirtualTimeDriver

NAMES = "abcd"
LENGTH = 3


def regions(plan: pl.Plan) -> set[str]:
    assert plan.memory is not None
    return {region.name for region in plan.memory.regions}


def counters() -> Graph:
    """Return a graph of four variables; each can be moved on alone, by what the next one holds."""
    b = pl.GraphBuilder("counters")
    store = [b.variable(name, np.full(LENGTH, i, np.int64)) for i, name in enumerate(NAMES)]
    for index, name in enumerate(NAMES):
        following = store[(index + 1) % len(store)]
        made = b.op("Sub", b.op("Mul", store[index], 2), following)
        b.output(f"train {name}", b.group(b.assign(store[index], made)))
    b.output("sum", b.op("Add", b.op("Add", store[0], store[1]), b.op("Add", store[2], store[3])))
    return b.build()


def follow(values: list[int], trained: Sequence[int]) -> list[int]:
    """Return what the variables hold after some of them were moved on at once."""
    return [
        2 * value - values[(index + 1) % len(values)] if index in trained else value
        for index, value in enumerate(values)
    ]


@pytest.mark.parametrize("kept", [8, 2])
@settings(max_examples=12, deadline=None)
@given(items=st.lists(st.sets(st.integers(0, 3)), max_size=8))
def test_plans_that_assign_to_different_variables_follow_each_other(
    kept: int, items: list[set[int]]
) -> None:
    values = list(range(len(NAMES)))
    with pytest.MonkeyPatch.context() as patch, pl.BlockingSession(pl.plan(counters())) as session:
        patch.setattr(open_plan, "KEPT_TURNS", kept)
        for trained in items:
            fetches = ["sum", *(f"train {NAMES[index]}" for index in sorted(trained))]
            found = session.run({}, fetches)[0]
            assert found.tolist() == [sum(values)] * LENGTH
            values = follow(values, sorted(trained))
            assert [int(session.variables[name][0]) for name in NAMES] == values


def test_what_is_assigned_lies_in_a_region_of_its_own() -> None:
    plan = pl.plan(counters())
    verify_memory(plan)
    assert {name_next_region(name) for name in NAMES} < regions(plan)
    assert "next of variable a: 24 bytes, changes places with it" in plan.report()


def test_what_is_fetched_must_not_become_a_variable() -> None:
    plan = pl.plan(doubling(), passes=())
    assert plan.memory is not None
    ((pool_name, pool),) = plan.memory.pools.items()
    (source,) = (one for one, at in plan.memory.locations.items() if one[0] == "double")
    name = name_next_region("w")
    region = Region(pool_name, name, 12, 1, (ADMISSION,), (len(plan.steps),))
    pools = {pool_name: replace(pool, regions={**pool.regions, name: region})}
    locations = {**plan.memory.locations, source: Location(pool_name, name, 0)}
    broken = replace(plan, memory=replace(plan.memory, pools=pools, locations=locations))
    with pytest.raises(pl.InternalError, match="is fetched, and becomes what a variable holds"):
        verify_memory(broken)


async def test_no_item_copies_what_it_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[bool] = []
    make_here = OutputCopies.make_here

    def noted(copies: OutputCopies) -> None:
        copied.append(bool(copies))
        make_here(copies)

    monkeypatch.setattr(OutputCopies, "make_here", noted)
    async with pl.Session(pl.plan(counters())) as session:
        await session.run({})
        copied.clear()
        for _ in range(4):
            await session.run({})
        assert not any(copied)


def doubling() -> Graph:
    """Return a graph that doubles a variable and puts that out; or triples it, if asked for."""
    b = pl.GraphBuilder("doubling")
    w = b.variable("w", np.ones(LENGTH, np.float32))
    b.output("double", b.assign(w, b.op("Add", w, w)))
    b.output("w now", b.op("Neg", w))
    return b.build()


async def test_what_is_fetched_is_not_written_to_by_later_items() -> None:
    plan = pl.plan(doubling())
    assert name_next_region("w") not in regions(plan)
    async with pl.Session(plan) as session:
        async with session.stream([{}] * 2, copy=False) as results:
            first = await anext(results)
            for _ in range(3):
                await session.run({}, fetches="w now")
            assert first["double"].tolist() == [2] * LENGTH


@pytest.mark.parametrize("case", ["twice", "constant", "input"])
def test_what_cannot_become_a_variable_is_copied(case: str) -> None:
    b = pl.GraphBuilder("g")
    v, w = (b.variable(name, np.zeros(LENGTH, np.float32)) for name in "vw")
    x = b.input("x", "float32", (LENGTH,))
    one = b.constant(np.ones(LENGTH, np.float32))
    value = {"twice": b.op("Add", x, one), "constant": one, "input": x}[case]
    b.output("train", b.group(b.assign(v, value), b.assign(w, value)))
    plan = pl.plan(b.build())
    verify_memory(plan)
    with pl.BlockingSession(plan) as session:
        for base in (0, 4):
            session.run({"x": np.full(LENGTH, base, np.float32)})
            wanted = {"twice": base + 1, "constant": 1, "input": base}[case]
            assert [float(session.variables[name][0]) for name in "vw"] == [wanted, wanted]


def test_where_memory_is_short_values_are_copied() -> None:
    b = pl.GraphBuilder("g")
    w, x = b.variable("w", np.zeros(1 << 10, np.float32)), b.input("x", "float32", (1 << 10,))
    b.output("y", b.op("ReduceSum", b.op("Exp", b.op("Mul", x, x)), keepdims=False))
    b.output("train", b.group(b.assign(w, b.op("Add", w, 1.0))))
    graph = b.build()
    free = pl.plan(graph, passes=())
    assert free.memory is not None
    tight = pl.plan(graph, passes=(), memory_limits={"cpu": free.memory.nbytes - 1024})
    assert (name_next_region("w") in regions(free), name_next_region("w") in regions(tight)) == (
        1,
        0,
    )
    with pl.BlockingSession(tight) as session:
        for count in range(1, 4):
            session.run({"x": np.zeros(1 << 10, np.float32)})
            assert session.variables["w"][0] == count


async def test_items_that_read_see_all_of_an_item_or_nothing() -> None:
    b = pl.GraphBuilder("pair")
    one, other = (b.variable(name, np.zeros(2, np.float32)) for name in ("one", "other"))
    step = b.input("step", "float32", ())
    assigned = [b.assign(w, b.op("Add", w, step)) for w in (one, other)]
    b.output("train", b.group(*assigned))
    b.output("difference", b.op("Sub", one, other))
    b.output("both", b.op("Add", one, other))
    async with pl.Session(pl.plan(b.build())) as session:
        seen: list[float] = []

        async def read() -> None:
            items: list[Mapping[str, Array]] = [{}] * 30
            unordered: dict[str, Any] = {"ordered": False, "max_in_flight": 3}
            fetches = ["difference", "both"]
            async with session.stream(items, fetches=fetches, **unordered) as results:
                async for item in results:
                    assert not item["difference"].any()
                    seen.append(float(item["both"][0]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(10):
                await session.run({"step": np.float32(1)}, fetches="train")
        assert set(seen) <= {2.0 * count for count in range(11)}
        assert session.variables["one"].tolist() == [10, 10]


async def test_memory_of_next_values_is_counted_once() -> None:
    b = pl.GraphBuilder("g")
    w = b.variable("w", np.zeros(1 << 18, np.float32))
    x = b.input("x", "float32", ())
    b.output("first", b.group(b.assign(w, b.op("Add", w, x))))
    b.output("y", b.op("Neg", x))
    async with pl.Session(pl.plan(b.build())) as session:
        await session.run({"x": np.float32(1)})
        before = session.status().memory["host"]
        assert before >= 2 << 20
        await session.run({"x": np.float32(1)}, fetches="first")
        assert session.status().memory["host"] - before < 1 << 20


def test_a_value_in_memory_that_was_lost_is_not_taken() -> None:
    graph = counters()
    variables = VariableStore(find_variables(graph), {}, VirtualTimeDriver())
    region = Region("host", name_next_region("a"), 24, 1)
    old, new = variables.lend(region, 1), variables.lend(region, 0)
    assert old is not None
    assert new is not None
    assert variables.lend(Region("host", name_region("a"), 24, 1), 0) is old
    variables.check([(("a", "host"), new)])
    with pytest.raises(pl.DeviceError, match="'a' held lay on a device that was lost"):
        variables.check([(("a", "host"), host_arena(24))])
    with pytest.raises(pl.DeviceError, match="lost"):
        variables.check([(("b", "host"), new)])
    for close in variables.closings():
        close()


@pytest.mark.parametrize("change", ["hold", "keep"])
def test_a_plan_may_be_opened_while_values_change(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, opened = (
        VariableStore(find_variables(counters()), {}, VirtualTimeDriver()),
        list[str](),
    )

    class Watched(store._Place):
        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, value)
            while name == "is_current" and opened:  # on another thread, most often
                variables.lend(Region(opened.pop(), name_region("a"), 24, 1), 0)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_Place", Watched)
        variables.lend(Region("host", name_region("a"), 24, 1), 0)
    opened.append("shared")
    if change == "hold":
        variables.hold({"a": np.ones(3, np.int64)})
    else:
        variables.keep({"a": {"host"}}, {}, frozenset())
    assert not opened
    for close in variables.closings():
        close()
