"""Bounds of lengths that values decide: what comes after is planned once, for every count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from bounded_functions import find_boxes, wrong_boxes
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from plait.graph.core.ir import Graph
from plait.graph.values.recent import RecentItems
from plait.scheduler.planner import planner, staged_plans

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
DEVICES: list[Any] = ["cpu", "compiled", "worker:0", ["ort", "cpu"]]


def behind(b: pl.GraphBuilder, rows: str) -> Graph:
    """Add what follows rows of any number, and return the graph."""
    y = b.op("Relu", b.op("Sub", b.op("MatMul", rows, WEIGHT, name="mm"), np.float32(50)))
    b.output("y", y)
    b.output("sum", b.op("ReduceSum", y, np.array([0]), keepdims=False))
    b.output("framed", b.op("Concat", y, np.ones((2, 3), np.float32), axis=0))
    return b.build()


def found() -> Graph:
    """Return a graph of the rows that begin with more than 0, found by NonZero."""
    b = pl.GraphBuilder("found")
    x = b.input("x", "float32", (8, 4))
    first = b.op("Gather", x, np.int64(0), axis=1)
    places = b.op("NonZero", b.op("Greater", first, np.float32(0)), name="kept")
    places = b.op("Squeeze", places, np.array([0]))
    return behind(b, b.op("Gather", x, places, axis=0))


def counted() -> Graph:
    """Return a graph of the first rows, as many as begin with more than 0."""
    b = pl.GraphBuilder("counted")
    x = b.input("x", "float32", (8, 4))
    first = b.op("Gather", x, np.int64(0), axis=1)
    ones = b.op("Cast", b.op("Greater", first, np.float32(0)), to="int64")
    count = b.op("ReduceSum", ones, np.array([0]))
    return behind(b, b.op("Slice", b.op("Abs", x), np.array([0]), count, name="rows"))


def called() -> Graph:
    """Return a graph of the rows that a Python function finds."""
    b = pl.GraphBuilder("called")
    rows, places = b.call(find_boxes, b.op("Identity", b.input("x", "float32", (8, 4))))
    b.output("places", b.op("Add", places, np.int64(1)))
    return behind(b, rows)


def include_found() -> Graph:
    """Return a graph that includes `found` under a path with slashes, as PyTorch writes."""
    b = pl.GraphBuilder("included")
    for name, tensor in b.include(found(), {"x": b.input("x", "float32", (8, 4))}, "in//").items():
        b.output(name, tensor)
    return b.build()


KINDS: dict[str, tuple[Callable[[], Graph], str]] = {
    "NonZero": (found, "kept.shape[1]"),
    "path": (include_found, "in//kept.shape[1]"),
    "Slice": (counted, "rows.shape[0]"),
    "function": (called, "boxes"),
}


def feeds(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return what is fed, so that the first rows are found."""
    x = np.random.default_rng(seed).integers(1, 9, (8, 4)).astype(np.float32)
    x[count:, 0] = -1
    return {"x": x}


def wanted(kind: str, fed: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    rows = fed["x"][:count] * (2 if kind == "function" else 1)
    y = np.maximum(rows @ WEIGHT - 50, 0)
    made = {"y": y, "sum": y.sum(0), "framed": np.append(y, np.ones((2, 3)), axis=0)}
    return {**made, "places": np.arange(1, count + 1)} if kind == "function" else made


def check(result: Any, kind: str, fed: dict[str, np.ndarray], count: int) -> None:
    for name, array in wanted(kind, fed, count).items():
        np.testing.assert_allclose(result[name], array, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_one_plan_serves_all_counts(
    kind: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, symbol = KINDS[kind]
    plan = pl.plan(make(), device, bounds={symbol: 7})
    planned: list[Graph] = []
    make_plan = planner.make_plan

    def noted(graph: Graph, *rest: Any) -> pl.Plan:
        planned.append(graph)
        return make_plan(graph, *rest)

    with pl.BlockingSession(plan) as session:
        check(session.run(feeds(3)), kind, feeds(3), 3)
        monkeypatch.setattr(planner, "make_plan", noted)
        for count in (7, 0, 1, 5, 2, 0, 7):
            check(session.run(feeds(count, count)), kind, feeds(count, count), count)
    assert planned == []


@pytest.mark.parametrize("device", DEVICES[:1] + DEVICES[3:], ids=str)
def test_a_loop_that_is_long_at_the_bound_stays_one_at_the_least_counts(device: Any) -> None:
    row, b = pl.GraphBuilder("row"), pl.GraphBuilder("rows")
    y = row.input("x", "float32", (4,))
    for _ in range(30):  # short enough to be unrolled for one row, but not for 64
        y = row.op("Add", row.op("Mul", y, np.float32(0.5)), np.float32(3))
    row.output("y", y)
    found, _ = b.call(find_boxes, b.input("x", "float32", (8, 4)))
    b.output("y", b.each(found, row.build()))
    with pl.BlockingSession(pl.plan(b.build(), device, bounds={"boxes": 64})) as session:
        for count in (8, 1, 0, 2, 7):
            rows = feeds(count)["x"][:count] * 2
            for _ in range(30):
                rows = rows * np.float32(0.5) + np.float32(3)
            np.testing.assert_array_equal(session.run(feeds(count))["y"], rows)


@settings(max_examples=10)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.sampled_from(["NonZero", "Slice"]))
def test_results_are_those_of_definitions(counts: list[int], kind: str) -> None:
    make, symbol = KINDS[kind]
    with (
        pl.BlockingSession(pl.plan(make(), "cpu", bounds={symbol: 8})) as session,
        pl.BlockingSession(pl.plan(make(), "formal")) as oracle,
    ):
        for seed, count in enumerate(counts):
            result, true = (one.run(feeds(count, seed)) for one in (session, oracle))
            for name, array in true.items():
                np.testing.assert_array_equal(result[name], array)


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_bound_is_an_error_that_names_the_fix(kind: str) -> None:
    make, symbol = KINDS[kind]
    with pl.BlockingSession(pl.plan(make(), bounds={symbol: 4})) as session:
        for _ in range(2):
            check(session.run(feeds(4)), kind, feeds(4), 4)
            with pytest.raises(KernelError if kind == "function" else pl.ShapeError) as raised:
                session.run(feeds(5))
            assert f"{symbol!r} is 5" in raised.value.what
            assert raised.value.fix is not None
            assert f"bounds={{{symbol!r}: " in raised.value.fix


def test_less_than_the_bound_is_an_error_too() -> None:
    plan = pl.plan(found(), bounds={"kept.shape[1]": (2, 4)})
    check(pl.run(plan, feeds(2)), "NonZero", feeds(2), 2)
    with pytest.raises(pl.ShapeError, match="is 1 here, out of its bounds 2 to 4"):
        pl.run(plan, feeds(1))


async def test_counts_vary_in_a_stream() -> None:
    counts = [3, 0, 8, 1, 1, 7, 0, 2]
    plan = pl.plan(found(), ["cpu", "worker:0"], bounds={"kept.shape[1]": 8}, max_in_flight=3)
    async with pl.Session(plan) as session:
        source = [feeds(count, seed) for seed, count in enumerate(counts)]
        async with session.stream(source) as results:
            seed = 0
            async for result in results:
                check(result, "NonZero", feeds(counts[seed], seed), counts[seed])
                seed += 1
    assert seed == len(counts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_tells_the_names_of_computed_lengths(kind: str) -> None:
    make, symbol = KINDS[kind]
    if kind != "function":
        assert f"open, bound it by bounds={{{symbol!r}: 64}}" in pl.plan(make()).report()
    bounded = pl.plan(make(), bounds={symbol: 8}).report()
    if kind == "Slice":
        assert f"length {symbol!r}" in bounded
        assert "0 to 8, planned once for all of them" in bounded
    else:  # its stages are joined to one plan
        assert f"planned for all shapes with {symbol} 0 to 8" in bounded


def test_a_bound_of_nothing_names_the_lengths_there_are() -> None:
    with pytest.raises(pl.PlanError, match="length of nothing that is fed or computed") as raised:
        pl.plan(found(), bounds={"boxes": 8})
    assert raised.value.fix == "its symbols are: kept.shape[1]"


def test_fed_lengths_need_no_bounds_beside_computed_ones() -> None:
    b = pl.GraphBuilder("both")
    x = b.input("x", "float32", ("n",))
    b.output("y", b.op("Identity", b.op("NonZero", x, name="kept")))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"kept.shape[1]": 8})) as session:
        for n in (3, 5):
            assert session.run({"x": np.ones(n, np.float32)})["y"].tolist() == [[*range(n)]]


def test_a_function_without_a_bound_says_how_to_give_one() -> None:
    with pytest.raises(pl.PlanError) as raised:
        pl.run(pl.plan(called()), feeds(3))
    assert raised.value.fix is not None
    assert "bounds={'boxes': 64}" in raised.value.fix


def test_a_function_that_returns_another_shape_is_named() -> None:
    b = pl.GraphBuilder("wrong")
    rows, _ = b.call(wrong_boxes, b.op("Relu", b.input("x", "float32", (8, 4))), name="find")
    with pytest.raises(KernelError, match=r"float32\[8, 3\], declared was float32\[boxes, 4\]"):
        pl.run(pl.plan(behind(b, rows), bounds={"boxes": 8}), feeds(3))


def test_what_values_decide_further_on_is_planned_as_it_comes() -> None:
    b = pl.GraphBuilder("twice")
    x = b.input("x", "float32", (8,))
    places = b.op("Squeeze", b.op("NonZero", x, name="kept"), np.array([0]))
    again = b.op("NonZero", b.op("Mod", places, np.int64(2)), name="odd")
    b.output("y", b.op("Neg", again))
    with pl.BlockingSession(pl.plan(b.build(), bounds={"kept.shape[1]": 8})) as session:
        for count in (8, 3, 0):
            x = (np.arange(8) < count).astype(np.float32)  # type: ignore[assignment]
            result = session.run({"x": x})["y"]
            np.testing.assert_array_equal(result, -np.array([np.flatnonzero(np.arange(count) % 2)]))


def test_stages_for_bounds_are_not_forgotten() -> None:
    """They are one each, whatever comes; those for single shapes give way to others."""
    graph = found()
    entry = staged_plans.StagedGraph(
        pl.plan(graph, bounds={"kept.shape[1]": 8}), graph, RecentItems()
    )
    first = entry.make(feeds(3))
    assert first.rest is not None
    graph = first.rest.graph
    for count in (3, 5):
        specs = {name: graph.tensors[name] for name in graph.inputs}
        known = {
            name: np.zeros([d if isinstance(d, int) else count for d in one.shape or ()], one.dtype)
            for name, one in specs.items()
        }
        stage = first.rest.find(known) or first.rest.make(known)
        first.rest.keep(known, stage)
        assert isinstance(stage, staged_plans.BoundedStage)
        assert first.rest.find({}) is stage


@pytest.mark.parametrize("kind", KINDS)
def test_saved_plans_keep_bounds_of_computed_lengths(kind: str, tmp_path: Path) -> None:
    make, symbol = KINDS[kind]
    pl.plan(make(), bounds={symbol: 4}).save(tmp_path / "a.plan")
    plan = pl.load_plan(tmp_path / "a.plan")
    assert plan.computed == {symbol: (0, 4)}
    check(pl.run(plan, feeds(0)), kind, feeds(0), 0)
    with pytest.raises(pl.PlaitError, match=f"{symbol.replace('[', '.')[:4]}.*is 5"):
        pl.run(plan, feeds(5))


@pl.operator(pl.TensorSpec("float32", (1,)), inputs=[pl.TensorSpec("float32", ("n",))])
def longest(x: Any) -> Any:
    return np.full(1, len(x), np.float32)


@pl.operator(pl.TensorSpec("float32", ("rows",)), inputs=[pl.TensorSpec("float32", (1,))])
def as_many(x: Any) -> Any:
    return np.ones(int(x[0]), np.float32)


def test_lengths_of_any_number_go_into_one_and_come_out_of_what_is_of_one_shape() -> None:
    b = pl.GraphBuilder("between")
    b.output("y", b.call(as_many, b.call(longest, b.input("x", "float32", ("n",)))))
    bounds = {"n": 40, "rows": 40}
    with pl.BlockingSession(pl.plan(b.build(), bounds=bounds, max_in_flight=2)) as session:
        for length in (*range(1, 41), *range(1, 41)):
            assert session.run({"x": np.zeros(length, np.float32)})["y"].tolist() == [1] * length
