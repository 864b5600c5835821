"""Bounds of fed and of computed lengths in one plan: a stage for each, made when it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner import planner

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
BOUNDS = {"n": 16, "found": 12, "kept": 6}
DEVICES: list[Any] = ["cpu", "compiled", "worker:0", ["ort", "cpu"], ["ort:0..1", "cpu:0..1"]]


@pl.operator(
    pl.TensorSpec("float32", ("found", 4)),
    inputs=[pl.TensorSpec("float32", ("n", 4))],
    name="test.find_rows",
)
def find_rows(x: Array) -> Array:
    """Return the rows that begin with more than 0."""
    return x[x[:, 0] > 0]


@pl.operator(
    pl.TensorSpec("float32", ("kept", 3)),
    inputs=[pl.TensorSpec("float32", ("found", 3)), pl.TensorSpec("float32", ("found", 4))],
    name="test.keep_rows",
)
def keep_rows(y: Array, rows: Array) -> Array:
    """Return as many rows as begin with more than 1."""
    return y[: int((rows[:, 0] > 1).sum())]


def cascade() -> Graph:
    """Return a graph of three stages: rows of any number are found, and some of them kept."""
    b = pl.GraphBuilder("cascade")
    x = b.op("Mul", b.input("x", "float32", ("n", 4)), np.float32(2), name="doubled")
    rows = b.call(find_rows, b.op("Mul", x, np.float32(0.5)), name="find")
    y = b.op("Relu", b.op("MatMul", rows, WEIGHT, name="product"))
    kept = b.call(keep_rows, y, rows, name="keep")
    b.output("y", b.op("Add", kept, np.float32(1), name="moved"))
    b.output("sum", b.op("ReduceSum", kept, np.array([0]), keepdims=False, name="sum"))
    b.output("mean", b.op("ReduceMean", x, np.array([0]), keepdims=False))
    return b.build()


def positives() -> Graph:
    """Return a graph of where an input of any length is positive, and half of that."""
    b = pl.GraphBuilder("positives")
    x = b.op("Abs", b.input("x", "float32", ("n",)))
    places = b.op("NonZero", b.op("Floor", x), name="kept")
    b.output("y", b.op("Identity", places))
    b.output("half", b.op("Mul", b.op("Cast", places, to="float32"), np.float32(0.5)))
    return b.build()


def feeds(n: int, found: int, kept: int, seed: int = 0) -> dict[str, Array]:
    """Return n rows of which so many are found, and of these so many kept."""
    x = np.random.default_rng(seed).integers(1, 9, (n, 4)).astype(np.float32)
    x[:, 0] = -1
    x[:found, 0] = 1
    x[:kept, 0] = 2
    return {"x": x}


def check(result: Any, fed: dict[str, Array], found: int, kept: int) -> None:
    y = np.maximum(fed["x"][:found] @ WEIGHT, 0)[:kept]
    np.testing.assert_allclose(result["y"], y + 1, rtol=1e-5)
    np.testing.assert_allclose(result["sum"], y.sum(0), rtol=1e-5)
    np.testing.assert_allclose(result["mean"], 2 * fed["x"].mean(0), rtol=1e-5)


SIZES = [(16, 12, 6), (1, 0, 0), (1, 1, 1), (9, 4, 0), (7, 7, 6), (9, 4, 3), (2, 2, 1), (13, 0, 0)]


@pytest.mark.parametrize("devices", DEVICES, ids=str)
def test_all_lengths_run_in_plans_that_are_made_when_it_is_opened(
    devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pl.plan(cascade(), devices, bounds=BOUNDS, max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        monkeypatch.delattr(planner, "make_plan")
        for seed, (n, found, kept) in enumerate([*SIZES, *SIZES[::-1]]):
            fed = feeds(n, found, kept, seed)
            check(session.run(fed), fed, found, kept)
        feeds_of_all = [feeds(*sizes) for sizes in SIZES]
        for item in session.stream(feeds_of_all):
            check(item, feeds_of_all[item.index], *SIZES[item.index][1:])


@settings(max_examples=15)
@given(st.data())
def test_results_are_those_of_definitions(data: st.DataObject) -> None:
    with (
        pl.BlockingSession(pl.plan(cascade(), "cpu", bounds=BOUNDS)) as session,
        pl.BlockingSession(pl.plan(positives(), "cpu", bounds={"n": (0, 16)})) as counted,
        pl.BlockingSession(pl.plan(positives(), "formal")) as oracle,
    ):
        for seed in range(data.draw(st.integers(1, 5))):
            n = data.draw(st.integers(1, 16))
            found = data.draw(st.integers(0, min(n, 12)))
            kept = data.draw(st.integers(0, min(found, 6)))
            fed = feeds(n, found, kept, seed)
            check(session.run(fed), fed, found, kept)
            flat = {"x": fed["x"].reshape(-1)[: data.draw(st.integers(0, 16))] / 8}
            result, true = counted.run(flat), oracle.run(flat)
            for name, array in true.items():
                np.testing.assert_array_equal(result[name], array)


@pytest.mark.parametrize("bounds", [{"n": 8}, {"n": 8, "kept.shape[1]": 8}], ids=["fed", "both"])
def test_what_values_count_behind_a_bounded_length_has_its_count_per_item(bounds: Any) -> None:
    with pl.BlockingSession(pl.plan(positives(), bounds=bounds)) as session:
        for n, count in [(8, 8), (3, 0), (5, 2), (8, 2), (5, 5)]:
            x = (np.arange(n) < count).astype(np.float32)
            result = session.run({"x": x})
            assert result["y"].tolist() == [[*range(count)]]
            assert result["half"].tolist() == [[one / 2 for one in range(count)]]


def test_lengths_out_of_bounds_are_errors_and_the_others_go_on() -> None:
    with pl.BlockingSession(pl.plan(cascade(), bounds=BOUNDS)) as session:
        for _ in range(2):
            with pytest.raises(pl.FeedError, match="n = 17, out of its bounds 1 to 16"):
                session.run(feeds(17, 3, 1))
            with pytest.raises(pl.PlaitError, match="'found' is 13") as raised:
                session.run(feeds(16, 13, 1))
            assert "bounds={'found': " in (raised.value.fix or "")
            with pytest.raises(pl.PlaitError, match="'kept' is 7"):
                session.run(feeds(16, 12, 7))
            fed = feeds(16, 12, 6)
            check(session.run(fed), fed, 12, 6)


def test_all_lengths_that_are_fed_have_bounds_or_none() -> None:
    b = pl.GraphBuilder("two")
    x, z = b.input("x", "float32", ("n", 4)), b.input("z", "float32", ("m",))
    b.output("y", b.op("Relu", b.call(find_rows, x)))
    b.output("w", b.op("Neg", z))
    with pytest.raises(pl.PlanError, match="the bounds leave 'm' open"):
        pl.plan(b.build(), bounds={"n": 8, "found": 8})


def test_the_report_and_the_page_tell_of_the_plan_that_runs(tmp_path: Path) -> None:
    plan = pl.plan(cascade(), bounds=BOUNDS)
    report = plan.report()
    assert "planned while" not in report
    assert "found 0 to 12, kept 0 to 6; figures are of the largest" in report
    assert "\0" not in report
    with pl.BlockingSession(plan) as session:
        session.run(feeds(*SIZES[0]))
        ran = [step["step"] for step in session.profile().steps()]
    table = report.partition("subgraph  ")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in table] == ran
    plan.save_html(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert f"in {len(ran)} subgraphs" in page
    assert "u0000" not in page


def test_saved_plans_keep_all_bounds(tmp_path: Path) -> None:
    pl.plan(cascade(), bounds=BOUNDS).save(tmp_path / "a.plan")
    plan = pl.load_plan(tmp_path / "a.plan")
    with pl.BlockingSession(plan) as session:
        for sizes in SIZES:
            fed = feeds(*sizes)
            check(session.run(fed), fed, *sizes[1:])
        with pytest.raises(pl.FeedError, match="out of its bounds 1 to 16"):
            session.run(feeds(17, 3, 1))


def test_parts_are_fetched_within_bounds() -> None:
    plan = pl.plan(cascade(), bounds=BOUNDS)
    assert plan.fetching("mean").is_static
    with pl.BlockingSession(plan) as session:
        fed = feeds(9, 5, 2)
        mean = session.run(fed, fetches="mean")
        np.testing.assert_allclose(mean, 2 * fed["x"].mean(0), rtol=1e-5)
        assert session.run(fed, fetches="y").shape == (2, 3)
        with pytest.raises(pl.FeedError, match="out of its bounds 1 to 16"):
            session.run(feeds(17, 3, 1), fetches="mean")
