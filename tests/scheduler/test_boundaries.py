"""Shapes that depend on values: a plan runs up to where they are needed, and goes on."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from plait.graph.ir import Graph
from plait.scheduler import stages
from plait.scheduler.boundaries import cut
from plait.scheduler.specialise import specialise


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
@given(hnp.arrays("float32", hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4)))
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


async def test_the_same_shapes_and_values_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = stages.Stage.__init__

    def counted(stage: stages.Stage, plan: pl.Plan, graph: Graph) -> None:
        made.append(graph)
        init(stage, plan, graph)

    monkeypatch.setattr(stages.Stage, "__init__", counted)
    x = np.arange(6, dtype=np.float32)
    async with pl.Session(pl.plan(reshaping())) as session:
        for shape in [(2, 3), (3, 2), (2, 3), (3, 2)]:
            found = await session.run({"x": x + 1, "shape": np.array(shape)})
            assert found["y"].shape == shape
    assert len(made) == 2


async def test_numbers_that_are_fed_and_never_the_same_are_no_switches() -> None:
    b = pl.GraphBuilder("limited")
    limit = b.input("limit", "int64", ())
    numbers = b.op("Range", np.int64(0), b.op("Add", limit, np.int64(1)), np.int64(1))
    b.output("y", b.op("Neg", numbers))
    async with pl.Session(pl.plan(b.build())) as session:
        for number in range(stages.MOST_SETTINGS + 4):
            found = await session.run({"limit": np.array(number)})
            np.testing.assert_array_equal(found["y"], -np.arange(number + 1))


def test_values_that_fit_nothing_are_an_error_of_the_item() -> None:
    with pytest.raises(pl.ShapeError, match="'reshape'"):
        pl.run(reshaping(), {"x": np.zeros(5, np.float32), "shape": np.array([2, 3])})


@pl.operator(pl.TensorSpec("float32", ("unheard_of",)), name="test_boundaries.secretive")
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
