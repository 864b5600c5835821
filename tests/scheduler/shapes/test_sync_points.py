"""Shapes that depend on values: a plan runs up to where they are needed, and goes on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plait.graph.core.ir import Graph
from plait.scheduler.costs.host import INLINE_BYTES
from plait.scheduler.planner import staged_plans
from plait.scheduler.planner.replanning import replan_graph
from plait.scheduler.runtime.running import staged_run
from plait.scheduler.runtime.running.staged_run import StageSequence
from plait.scheduler.shapes.specialise import specialise
from plait.scheduler.shapes.sync_points import cut


def reshaping() -> Graph:
    b = pl.GraphBuilder("reshaping")
    x, shape = b.input("x", "float32", ("n",)), b.input("shape", "int64", ("rank",))
    b.output("y", b.op("Neg", b.op("Reshape", x, shape, name="reshape")))
    return b.build()


def selecting() -> Graph:
    """Return the sum of a matrix's positive entries, as found one by one, and their places."""
    b = pl.GraphBuilder("selecting")
    x = b.input("x", "float32", ("m", "n"))
    places = b.op("NonZero", b.op("Greater", x, np.float32(0)), name="find")
    rows = b.op("Transpose", places, perm=[1, 0])
    b.output("sum", b.op("ReduceSum", b.op("GatherND", x, rows, name="take"), keepdims=False))
    b.output("places", places)
    return b.build()


def counting() -> Graph:
    """Return 0, 1, ... below the sum of x, doubled."""
    b = pl.GraphBuilder("counting")
    total = b.op("ReduceSum", b.input("x", "int64", ("n",)), keepdims=False)
    numbers = b.op("Range", np.int64(0), total, np.int64(1), name="count")
    b.output("y", b.op("Add", numbers, numbers))
    return b.build()


@pytest.mark.parametrize("shape", [(2, 3), (6,), (3, -1), (1, 6, 1)])
def test_a_shape_may_be_fed(shape: tuple[int, ...]) -> None:
    x = np.arange(6, dtype=np.float32)
    found = pl.run(reshaping(), {"x": x, "shape": np.array(shape)})
    np.testing.assert_array_equal(found["y"], -x.reshape(shape))


@pytest.mark.parametrize("devices", [["cpu"], ["worker:0"]])
def test_a_length_may_be_computed(devices: list[str]) -> None:
    found = pl.run(counting(), {"x": np.array([2, 3])}, devices)
    np.testing.assert_array_equal(found["y"], [0, 2, 4, 6, 8])


@settings(max_examples=15, deadline=None)
@given(
    hnp.arrays(
        "float32",
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4),
        elements=st.floats(-1e6, 1e6, width=32),  # a sum of larger ones may overflow
    )
)
def test_entries_that_are_found_can_be_worked_on(x: np.ndarray) -> None:
    found = pl.run(selecting(), {"x": x})
    np.testing.assert_array_equal(found["places"], np.nonzero(x > 0))
    np.testing.assert_allclose(found["sum"], x[x > 0].sum(), rtol=1e-5)


async def test_items_of_a_stream_may_differ_in_what_they_hold() -> None:
    rng = np.random.default_rng(0)
    items = [{"x": rng.standard_normal((3, 4)).astype(np.float32)} for _ in range(12)]
    plan = pl.plan(selecting(), ["cpu", "worker:0"], pin={"take": "worker:0"}, max_in_flight=3)
    async with pl.Session(plan) as session, session.stream(items) as results:
        found = [item["places"] async for item in results]
    for item, places in zip(items, found, strict=True):
        np.testing.assert_array_equal(places, np.nonzero(item["x"] > 0))


def test_what_is_found_is_computed_into_buffers_of_an_upper_bound() -> None:
    parts = cut(specialise(selecting(), {"x": (3, 4)}))
    assert [node.op for node in parts.head.nodes] == ["Greater", "Bounded.NonZero"]
    assert parts.head.is_static
    assert parts.head.tensors["places"].shape == (2, 12)
    assert parts.rest is not None
    assert "take" in {node.name for node in parts.rest.nodes}


def test_what_ends_with_a_search_needs_one_plan() -> None:
    b = pl.GraphBuilder("found")
    b.output("y", b.op("NonZero", b.input("x", "bool", (2, 3))))
    parts = cut(specialise(b.build()))
    assert parts.rest is None
    x = np.array([[1, 0, 1], [0, 0, 1]], bool)
    np.testing.assert_array_equal(pl.run(b.build(), {"x": x})["y"], np.nonzero(x))


def stages_made(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Return a list that grows by a graph with each stage that is planned from now on."""
    made: list[Graph] = []
    init = staged_plans.Stage.__init__

    def counted(stage: staged_plans.Stage, plan: pl.Plan, graph: Graph, *rest: Any) -> None:
        made.append(graph)
        init(stage, plan, graph, *rest)

    monkeypatch.setattr(staged_plans.Stage, "__init__", counted)
    return made


async def test_the_same_shapes_and_values_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stages_made(monkeypatch)
    x = np.arange(6, dtype=np.float32)
    async with pl.Session(pl.plan(reshaping())) as session:
        for shape in [(2, 3), (3, 2), (2, 3), (3, 2)]:
            found = await session.run({"x": x + 1, "shape": np.array(shape)})
            assert found["y"].shape == shape
    assert len(made) == 2


async def test_values_that_decide_shapes_ahead_of_a_search_are_told_apart_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = stages_made(monkeypatch)
    b = pl.GraphBuilder("reshaped")
    x, shape = b.input("x", "float32", ("n",)), b.input("shape", "int64", (2,))
    places = b.op("NonZero", b.op("Reshape", x, shape))
    b.output("places", b.op("Neg", places))
    shapes = [(2**i, 2 ** (11 - i)) for i in range(staged_plans.MOST_SETTINGS + 4)]
    items = [{"x": np.ones(2**11, np.float32), "shape": np.array(shape)} for shape in shapes]
    async with pl.Session(pl.plan(b.build())) as session:
        for item in (*items, *items):
            await session.run(item)
    assert len(made) == 2 * len(items)


async def test_numbers_that_are_fed_and_never_the_same_are_no_switches() -> None:
    b = pl.GraphBuilder("limited")
    limit = b.input("limit", "int64", ())
    numbers = b.op("Range", np.int64(0), b.op("Add", limit, np.int64(1)), np.int64(1))
    b.output("y", b.op("Neg", numbers))
    async with pl.Session(pl.plan(b.build())) as session:
        for number in range(staged_plans.MOST_SETTINGS + 4):
            found = await session.run({"limit": np.array(number)})
            np.testing.assert_array_equal(found["y"], -np.arange(number + 1))


async def test_stages_and_plans_that_do_not_come_again_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged_plans, "KEPT_STAGES", 6)
    monkeypatch.setattr(staged_run, "KEPT_PARTS", 6)
    made: list[weakref.ref[pl.Plan]] = []

    def noted(plan: pl.Plan, graph: Graph, max_in_flight: int | None = None) -> pl.Plan:
        made.append(weakref.ref(found := replan_graph(plan, graph, max_in_flight)))
        return found

    monkeypatch.setattr(staged_plans, "replan_graph", noted)
    async with pl.Session(pl.plan(selecting())) as session:
        for i in range(30):
            await session.run({"x": np.eye(30, dtype=np.float32) * (np.arange(30) < i)})
        assert len(session.profile().records) == 30
        gc.collect()
        assert len(made) > 30
        assert sum(plan() is not None for plan in made) <= 13


def test_values_that_fit_nothing_are_an_error_of_the_item() -> None:
    with pytest.raises(pl.ShapeError, match="'reshape'"):
        pl.run(reshaping(), {"x": np.zeros(5, np.float32), "shape": np.array([2, 3])})


@pl.operator(pl.TensorSpec("float32", ("unheard_of",)), name="test_sync_points.secretive")
def secretive(x: np.ndarray) -> np.ndarray:
    return x[x > 0]


def test_a_function_that_does_not_tell_its_shapes_is_named() -> None:
    b = pl.GraphBuilder("secretive")
    b.output("y", b.call(secretive, b.input("x", "float32", (4,)), name="keep"))
    with pytest.raises(pl.PlanError, match=r"not known before the run(.|\n)*node 'keep'"):
        pl.run(b.build(), {"x": np.zeros(4, np.float32)})


def test_a_report_says_where_a_plan_waits_for_values() -> None:
    text = pl.plan(counting(), shapes={"x": (3,)}).report()
    assert "'count'" in text


def test_what_stages_name_alike_is_not_mixed_up() -> None:
    b = pl.GraphBuilder("positive")
    twice = b.op("Mul", b.input("x", "float32", ("n",)), np.float32(2), name="twice")
    places = b.op("NonZero", b.op("Greater", twice, np.float32(0)))
    b.output("y", b.op("GatherND", twice, b.op("Transpose", places, perm=[1, 0])))
    branch = b.build()
    inner = f"choose/{branch.nodes[0].outputs[0]}"
    b = pl.GraphBuilder("mixed")
    x = b.input("x", "float32", (3,))
    b.output(inner, b.op("Neg", x))
    cond = b.op("Greater", b.op("ReduceSum", x, keepdims=False), np.float32(0))
    b.output("y", b.op("If", cond, x, then_branch=branch, else_branch=branch, name="choose"))
    found = pl.run(b.build(), {"x": np.array([1, -2, 3], np.float32)})
    np.testing.assert_array_equal(found[inner], [-1, 2, -3])
    np.testing.assert_array_equal(found["y"], [2, 6])


def limited() -> Graph:
    """Return x as it is, if it has no positive sum; a constant; and where x is not zero."""
    b = pl.GraphBuilder("limited")
    x = b.input("x", "float32", ("n",))
    body = pl.GraphBuilder("body")
    body.input("step", "int64", ())
    going, state = body.input("going", "bool", ()), body.input("state", "float32", ("n",))
    body.output("goes_on", body.op("Identity", going))
    body.output("next", body.op("Neg", state))
    goes = b.op("Greater", b.op("ReduceSum", x, keepdims=False), np.float32(0))
    loop = body.build()
    for name in ("first", "second"):
        b.output(name, b.op("Loop", np.int64(1), goes, x, body=loop))
    b.output("constant", b.op("Identity", np.ones(2, np.float32)))
    return b.build()


def test_results_are_the_callers_own() -> None:
    x = -np.ones(3, np.float32)
    found = [*pl.run(limited(), {"x": x}).values(), x]
    for i, array in enumerate(found):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in found[:i])


@pytest.mark.parametrize(
    "options",
    [{}, {"max_in_flight": 8}, {"batch": 3}, {"ordered": False}, {"deadline_s": 60.0}],
    ids=str,
)
@pytest.mark.parametrize("length", [4, (INLINE_BYTES >> 2) + 1], ids=["small", "large"])
async def test_a_source_may_use_its_arrays_again(options: dict[str, Any], length: int) -> None:
    x = np.zeros((1, length), np.float32)

    def source() -> Iterator[dict[str, np.ndarray]]:
        for i in range(20):
            x[:] = i
            yield {"x": x}

    b = pl.GraphBuilder("two stages")
    first = b.op("Neg", b.input("x", "float32", ("n", length)), name="first")
    b.output("y", b.op("Neg", first, name="second"))
    pins = {"first": "cpu:1", "second": "cpu"}
    async with pl.Session(pl.plan(b.build(), ["cpu", "cpu:1"], pin=pins)) as session:
        async with session.stream(source(), **{"max_in_flight": 4, **options}) as results:
            found = [(item.index, item["y"][0, -1]) async for item in results]
    assert sorted(found) == [(i, i) for i in range(20)]


async def test_a_source_of_a_graph_that_loops_may_use_its_arrays_again() -> None:
    x = np.zeros(3, np.float32)

    def source() -> Iterator[dict[str, np.ndarray]]:
        for i in range(6):
            x[:] = i
            yield {"x": x}

    async with pl.Session(pl.plan(limited(), max_in_flight=4)) as session:
        async with session.stream(source()) as results:
            found = [item["first"][0] async for item in results]
    assert found == [0, -1, -2, -3, -4, -5]


def test_arrays_in_the_other_byte_order_are_converted() -> None:
    x, shape = np.arange(6, dtype=">f4"), np.array([2, 3], ">i8")
    found = pl.run(reshaping(), {"x": x, "shape": shape})
    np.testing.assert_array_equal(found["y"], -np.arange(6).reshape(2, 3))
    assert found["y"].dtype.isnative


async def test_inputs_that_need_one_plan_take_no_further_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequences: list[object] = []
    run = StageSequence.run

    async def counted(sequence: StageSequence, *arguments: Any) -> Any:
        sequences.append(sequence)
        return await run(sequence, *arguments)

    monkeypatch.setattr(StageSequence, "run", counted)
    feeds = {"x": np.arange(6, dtype=np.float32), "shape": np.array([2, 3])}
    async with pl.Session(pl.plan(reshaping())) as session:
        for _ in range(3):
            found = await session.run(feeds)
            np.testing.assert_array_equal(found["y"], -feeds["x"].reshape(2, 3))
    assert len(sequences) == 1


def held_up(b: pl.GraphBuilder) -> list[str]:
    """Return what a plan's report says of the nodes at its first boundary."""
    lines = pl.plan(b.build(), ["cpu"]).report().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("memory: planned while"))
    return [line.strip() for line in lines[start + 1 :] if line.startswith("  '")]


def test_a_concat_of_something_as_long_as_it_turns_out_needs_no_values() -> None:
    b = pl.GraphBuilder("found")
    found = b.op("NonZero", b.input("x", "float32", (4, 8)), name="find")
    b.output("y", b.op("Concat", found, np.zeros((2, 3), "int64"), axis=1, name="join"))
    assert held_up(b) == [
        "'join' (Concat): needs the shape of 'find', which is known when that is computed"
    ]


def test_the_tensor_whose_values_decide_a_shape_is_named() -> None:
    b = pl.GraphBuilder("reshaped")
    x, rows = b.input("x", "float32", (4, 8)), b.input("rows", "int64", (1,))
    shape = b.op("Concat", rows, np.array([-1]), axis=0, name="shape")
    again = b.op("Reshape", x, shape, name="again")
    b.output("y", b.op("Concat", again, again, axis=0, name="twice"))
    assert held_up(b) == ["'again' (Reshape): needs the values of 'shape'"]


def test_the_condition_of_a_choice_is_named() -> None:
    b = pl.GraphBuilder("chosen")
    x, flag = b.input("x", "float32", (4,)), b.input("flag", "bool", ())
    ways = []
    for times in (1, 2):
        way = pl.GraphBuilder(f"{times} times")
        way.output("z", way.op("Concat", *[way.input("v", "float32", (4,))] * times, axis=0))
        ways.append(way.build())
    chosen = b.op("If", flag, x, then_branch=ways[0], else_branch=ways[1], name="choose")
    b.output("y", b.op("Concat", chosen, x, axis=0, name="join"))
    assert held_up(b) == ["'choose' (If): needs the values of 'flag'"]
