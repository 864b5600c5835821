"""Lengths that vary before a model of fixed shapes: what is fixed keeps all that it has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.memory import Arena
from plait.devices.sim import SimDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner.bounded_shapes import BoundedShapes
from plait.scheduler.planner.memory.memory_plan import plan_memory
from plait.scheduler.planner.memory.prepared import GROWING
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.planner.replanning import replan_beside
from plait.scheduler.plans.regions import Region
from plait.scheduler.runtime.opened import binding
from plait.scheduler.runtime.opened.arenas import OpenArenas
from plait.scheduler.runtime.opened.open_plan import OpenPlan
from plait.scheduler.shapes.constraints import DynamicShapeConstraints
from plait.scheduler.shapes.fixed import find_fixed_nodes, is_mostly_fixed
from varying_shapes import WIDTH, finding, open_graphs, rows, two_steps

TAIL = 12
"""Nodes behind the one from which all shapes are fixed."""

LENGTHS = [5, 9, 2, 40, 5, 41, 39, 200, 1, 9]


def with_tail(graph: Graph) -> Graph:
    """Return a graph with its first output summed over the open axis, and fixed nodes after it."""
    b = pl.GraphBuilder(graph.name)
    fed = {
        name: b.input(name, graph.tensors[name].dtype, graph.tensors[name].shape or ())
        for name in graph.inputs
    }
    made = b.include(graph, fed)
    for name in graph.outputs:
        b.output(name, made[name])
    h = b.op("ReduceSum", made[graph.outputs[0]], np.array([0]), keepdims=1, name="gather")
    for index in range(TAIL):
        scale = np.full((1, WIDTH), 1 + index / 8, np.float32)
        h = b.op(("Mul", "Add", "Sub")[index % 3], h, scale, name=f"tail{index}")
    b.output("tail", h)
    return b.build()


def planned(graph: Graph | None = None, *devices: str, **more: object) -> pl.Plan:
    graph = with_tail(two_steps()) if graph is None else graph
    return pl.plan(graph, devices or ("cpu",), passes=("fold_constants",), **more)  # type: ignore[arg-type]


async def check(graph: Graph, inputs: Mapping[str, Array], found: Mapping[str, Array]) -> None:
    """Compare results with what operators are defined to yield."""
    shapes = {name: array.shape for name, array in inputs.items()}
    async with pl.Session(pl.plan(graph, "formal", shapes=shapes, passes=())) as session:
        for name, wanted in (await session.run(inputs)).items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Return the regions of which arenas are allocated from now on."""
    regions: list[Region] = []
    allocate = OpenArenas._allocate

    def watched(self: OpenArenas, region: Region, copy: int, stack: ExitStack) -> Arena:
        arena = allocate(self, region, copy, stack)
        if self._lend is None or self._lend(region, copy) is None:
            regions.append(region)
        return arena

    monkeypatch.setattr(OpenArenas, "_allocate", watched)
    return regions


def test_nodes_behind_the_last_open_axis_are_fixed() -> None:
    graph = with_tail(two_steps())
    assert find_fixed_nodes(graph) == {f"tail{index}" for index in range(TAIL)}
    assert is_mostly_fixed(graph)
    assert not is_mostly_fixed(two_steps())


def test_what_reads_a_number_that_follows_from_lengths_is_not_fixed() -> None:
    b = pl.GraphBuilder("counted")
    x = b.input("x", "float32", ("n", WIDTH))
    count = b.op("Cast", b.op("Size", x, name="size"), to="float32", name="count")
    total = b.op("ReduceSum", x, keepdims=0, name="total")
    mean = b.op("Div", total, count, name="mean")
    b.output("y", b.op("Neg", mean, name="negated"))
    assert find_fixed_nodes(b.build()) == {"negated"}


@pytest.mark.parametrize("bounds", [None, {"n": 256}])
async def test_fixed_steps_are_bound_once(
    bounds: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[OpenPlan] = []
    resized = OpenPlan.resized

    def watched(self: OpenPlan, plan: pl.Plan) -> OpenPlan:
        opened.append(resized(self, plan))
        return opened[-1]

    monkeypatch.setattr(OpenPlan, "resized", watched)
    monkeypatch.setattr(binding, "FEW_NODES", 0)  # else items bind steps to their own lengths
    graph = with_tail(two_steps())
    async with pl.Session(planned(graph, bounds=bounds)) as session:
        for length in LENGTHS:
            await check(graph, rows(length), await session.run(rows(length)))
        launched = {id(one.slots[0].launches[-1]) for one in opened}
    assert len(opened) == len(set(LENGTHS))
    for one in opened:
        (step,) = one.own_steps
        assert step is one.plan.steps[0]
        assert {node.name for node in one.plan.subgraphs[-1].graph.nodes} == {
            f"tail{index}" for index in range(TAIL)
        }
    assert len(launched) == 1


async def test_memory_grows_for_longer_inputs_alone(allocated: list[Region]) -> None:
    graph = with_tail(two_steps())
    async with pl.Session(planned(graph)) as session:
        await session.run(rows(8))
        before, least = len(allocated), session.status().memory["host"]
        for length in (1, 7, 8, 3):
            await session.run(rows(length))
        assert len(allocated) == before
        assert session.status().memory["host"] == least
        for length in (40, 20, 41, 9):
            await session.run(rows(length))
        most = session.status().memory["host"]
    (region,) = allocated[before:]  # it was made large enough for all
    assert region.name == GROWING
    assert most == least + region.nbytes


async def test_items_of_many_lengths_overlap() -> None:
    graph = with_tail(two_steps())
    plan = planned(graph, "cpu", "cpu:1", pin={"tail*": "cpu:1"}, max_in_flight=3)
    feeds = [rows(length, index) for index, length in enumerate(LENGTHS * 3)]
    async with pl.Session(plan) as session, session.stream(feeds) as results:
        async for item in results:
            await check(graph, feeds[item.index], item.outputs)


async def test_other_numbers_of_items_in_flight_have_memory_of_their_own() -> None:
    graph = with_tail(two_steps())
    async with pl.Session(planned(graph)) as session:
        for count in (1, 4, 2):
            feeds = [rows(length, index) for index, length in enumerate(LENGTHS)]
            async with session.stream(feeds, max_in_flight=count) as results:
                async for item in results:
                    await check(graph, feeds[item.index], item.outputs)


async def test_shapes_that_do_not_fit_spoil_nothing_for_others() -> None:
    b = pl.GraphBuilder("equal")
    both = b.op("Add", b.input("x", "float32", ("n", WIDTH)), b.input("y", "float32", ("m", WIDTH)))
    b.output("z", both)
    graph = with_tail(b.build())
    async with pl.Session(planned(graph)) as session:
        for first, second in [(2, 3), (4, 4), (5, 3), (3, 3), (9, 9)]:
            feed = {"x": rows(first)["x"], "y": rows(second)["x"]}
            if first == second:
                await check(graph, feed, await session.run(feed))
            else:
                with pytest.raises(pl.ShapeError):
                    await session.run(feed)


async def test_where_values_decide_shapes_there_are_stages_as_ever() -> None:
    graph = with_tail(finding())
    async with pl.Session(planned(graph)) as session:
        for length in (9, 4, 9):
            feed = {"in": rows(length)["x"]}
            await check(graph, feed, await session.run(feed))


async def test_items_on_a_device_that_was_lost_run_on_what_is_left() -> None:
    sim = SimDevice("sim:a")
    graph = with_tail(two_steps())
    plan = pl.plan(graph, ["cpu", sim], pin={"tail*": "sim:a"}, max_in_flight=2)
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0, replays=8)
        async with pl.Session(plan, faults=policy) as session:
            for index, length in enumerate(LENGTHS * 2):
                if index % 6 == 4:
                    sim.lose()
                await check(graph, rows(length, index), await session.run(rows(length, index)))


async def test_replicas_share_among_their_own_items() -> None:
    graph = with_tail(two_steps())
    plan = pl.plan(graph, ["worker:0..1"], max_in_flight=4)
    feeds = [rows(length, index) for index, length in enumerate(LENGTHS * 2)]
    async with pl.Session(plan) as session, session.stream(feeds) as results:
        async for item in results:
            await check(graph, feeds[item.index], item.outputs)


@settings(max_examples=40)
@given(graph=open_graphs(), lengths=st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_no_bytes_are_shared_by_what_is_needed_at_once(graph: Graph, lengths: list[int]) -> None:
    first, *others = lengths
    base = replan_beside(planned(with_tail(graph), max_in_flight=3), {"x": (first, WIDTH)})
    verify_memory(base)
    fitting = BoundedShapes(base)
    for length in others:
        fitted = fitting.fit({"x": (length, WIDTH)})
        if fitted is not None:
            verify_memory(fitted)


DEVICES = st.sampled_from([("cpu",), ("cpu", "cpu:1"), ("worker:0",), ("ort", "cpu")])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    graph=open_graphs(),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    devices=DEVICES,
    bounds=st.sampled_from([None, {"n": 9}]),
    given_up=st.sets(st.integers(0, 7)),
)
def test_any_lengths_in_any_order_yield_what_operators_are_defined_to(
    graph: Graph,
    lengths: list[int],
    devices: tuple[str, ...],
    bounds: dict[str, int] | None,
    given_up: set[int],
) -> None:
    graph = with_tail(graph)
    plan = planned(graph, *devices, bounds=bounds, max_in_flight=2)

    async def run() -> None:
        async with pl.Session(plan) as session:
            for index, length in enumerate(lengths):
                if index in given_up:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(session.run, rows(length, index))
                        await trio.lowlevel.checkpoint()
                        nursery.cancel_scope.cancel()
                else:
                    await check(graph, rows(length, index), await session.run(rows(length, index)))

    trio.run(run)


async def test_a_profile_tells_that_new_lengths_wait_for_programs_and_not_for_plans() -> None:
    async with pl.Session(planned()) as session:
        for length in [*range(1, 19), 3, 4]:
            await session.run(rows(length))
        profile = session.profile()
    assert profile.totals()["plans"] == {"hits": 2, "bound": 17, "misses": 1}
    assert profile.attribution().planning_ns > 0
    table = profile.table()
    assert "plans: 2 items found theirs, 17 waited for programs to be bound" in table
    assert "fix: bound the lengths" not in table


async def test_a_profile_of_one_shape_has_nothing_to_say_of_plans() -> None:
    async with pl.Session(planned(shapes={"x": (4, WIDTH)})) as session:
        for _ in range(20):
            await session.run(rows(4))
        assert "plans" not in session.profile().table()


def test_what_grows_shares_bytes_with_nothing_even_where_passes_have_fixed_nodes_touch_it() -> None:
    b = pl.GraphBuilder("bypassed")
    h = b.input("x", "float32", (1, 4))
    for index in range(3):
        h = b.op("Neg", h, name=f"n{index}")
    b.output("y", h)
    plan = pl.plan(b.build(), "cpu", passes=())
    assert plan.placement is not None
    grown = plan.graph.nodes[0].outputs[0]
    constraints = DynamicShapeConstraints(growing=frozenset({grown}))
    memory = plan_memory(plan.graph, plan.placement, plan.prototypes, 2, constraints=constraints)
    places = {name: at for (name, _), at in memory.locations.items()}
    assert [name for name, at in places.items() if at.region == GROWING] == [grown]
