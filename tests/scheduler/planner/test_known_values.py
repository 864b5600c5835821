"""Values that follow from constants alone are computed once, also where lengths come with items."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices import evaluating
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner import known_values
from plait.scheduler.planner.known_values import list_known_nodes
from weighted_graphs import UNFOLDED

N = 3
WEIGHTS = np.arange(N * N, dtype=np.float32).reshape(N, N) - 4
TABLE = np.arange(5 * N, dtype=np.float32).reshape(5, N)


@pl.operator(lambda x: [pl.TensorSpec("int64", ("k",))], name="test_known_values.row")
def tokenize(x: Array) -> Array:
    return np.arange(int(x[0])) % 5


@pl.operator(lambda x: [pl.TensorSpec("int64", (1, "k"))], name="test_known_values.column")
def tokenize_in_batch(x: Array) -> Array:
    return np.arange(int(x[0]))[None] % 5


FED = ("n",)


def build_encoder(lengths: str) -> tuple[Graph, dict[str, Any]]:
    """Return the graph of a table of embeddings with computed weights, and its options."""
    b = pl.GraphBuilder("encoder")
    weights = b.op("Abs", b.op("Neg", WEIGHTS, name="neg"), name="abs")
    options: dict[str, Any] = {"passes": UNFOLDED}
    if lengths == "fed":
        ids = b.input("x", "int64", ("n",))
    elif lengths == "nonzero":
        flags = b.input("x", "bool", (8,))
        ids = b.op("Squeeze", b.op("NonZero", flags), np.array([0])) % np.int64(5)
    else:
        x = b.input("x", "int64", (1,))
        ids = b.call(tokenize if lengths == "axis 0" else tokenize_in_batch, x)
        options["bounds"] = {"k": 9}
    rows = b.op("Gather", TABLE, ids)
    b.output("y", b.op("ReduceSum", b.op("MatMul", rows, weights), np.array([-2]), keepdims=0))
    return b.build(), options


def feed(lengths: str, count: int) -> Array:
    if lengths == "fed":
        return np.arange(count) % 5
    return np.arange(8) < count if lengths == "nonzero" else np.array([count])


def compute_expected(count: int) -> Array:
    return np.asarray(TABLE[np.arange(count) % 5].sum(0) @ np.abs(WEIGHTS))


LENGTHS = ["fed", "nonzero", "axis 0", "axis 1"]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("devices", ["cpu", ["compiled", "cpu"]])
def test_items_do_not_compute_what_constants_say(lengths: str, devices: Any) -> None:
    graph, options = build_encoder(lengths)
    plan = pl.plan(graph, devices, **options)
    with pl.BlockingSession(plan) as session:
        for count in (2, 7, 3, 7):
            found = session.run({"x": feed(lengths, count)})["y"]
            np.testing.assert_allclose(found.reshape(-1), compute_expected(count))
        records = session.profile().records
    ran = {name for one in records for span in one.spans() for name in span.step.nodes}
    assert any("matmul" in name for name in ran)
    assert not {"neg", "abs"} & ran


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_session_computes_them_when_it_is_opened(
    lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, options = build_encoder(lengths)
    evaluated: list[str] = []

    def evaluate(node: Any, *rest: Any) -> Any:
        evaluated.append(node.name)
        return evaluating.evaluate(node, *rest)

    monkeypatch.setattr(known_values, "evaluate", evaluate)
    plan = pl.plan(graph, **options)
    for _ in range(2):
        with pl.BlockingSession(plan) as session:
            assert evaluated == ["neg", "abs"]
            session.run({"x": feed(lengths, 2)})
            session.run({"x": feed(lengths, 3)})
    assert evaluated == ["neg", "abs"]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_report_lists_them(lengths: str) -> None:
    graph, options = build_encoder(lengths)
    plan = pl.plan(graph, **options)
    assert "at open: 2 nodes run once: neg, abs" in plan.report()
    assert plan.to_dict()["at_open"]["nodes"] == {"neg": "cpu", "abs": "cpu"}


def test_what_is_fetched_stays_in_the_graph() -> None:
    b = pl.GraphBuilder("fetched")
    x = b.input("x", "float32", ("n", N))
    weights = b.op("Neg", WEIGHTS, name="neg")
    b.output("weights", weights)
    b.output("y", x @ weights)
    plan = pl.plan(b.build(), passes=UNFOLDED)
    assert list_known_nodes(plan) == ()
    with pl.BlockingSession(plan) as session:
        for count in (1, 4):
            item = session.run({"x": np.ones((count, N), "float32")})
            item["weights"][:] = 0  # the caller's own
            np.testing.assert_array_equal(item["y"], np.ones((count, N)) @ -WEIGHTS)


def test_where_numpy_has_no_kernel_items_compute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, options = build_encoder("axis 1")
    monkeypatch.setattr(known_values, "evaluate", lambda node, *_: None)
    with pl.BlockingSession(pl.plan(graph, **options)) as session:
        found = session.run({"x": feed("axis 1", 4)})["y"]
        ran = {n for one in session.profile().records for s in one.spans() for n in s.step.nodes}
    np.testing.assert_allclose(found[0], compute_expected(4))
    assert "abs" in ran


def test_nodes_that_are_pinned_elsewhere_run_there_when_a_plan_is_opened() -> None:
    graph, options = build_encoder("fed")
    unpinned = pl.plan(graph, ["cpu", "formal"], **options)
    pinned = pl.plan(graph, ["cpu", "formal"], pin={"abs": "formal"}, **options)
    for plan, known in ((unpinned, ["neg", "abs"]), (pinned, ["neg"]), (unpinned, ["neg", "abs"])):
        assert [node.name for node in list_known_nodes(plan)] == known
        with pl.BlockingSession(plan) as session:
            found = session.run({"x": feed("fed", 4)})["y"]
            spans = [span for one in session.profile().at_open for span in one.spans()]
        np.testing.assert_allclose(found, compute_expected(4))
        on = {span.step.device for span in spans if "abs" in span.step.nodes}
        assert on == (set() if "abs" in known else {"formal"})


def test_under_limits_of_memory_items_compute_them() -> None:
    graph, options = build_encoder("fed")
    plan = pl.plan(graph, memory_limits={"cpu": 100_000}, **options)
    assert list_known_nodes(plan) == ()
    with pl.BlockingSession(plan) as session:
        np.testing.assert_allclose(session.run({"x": feed("fed", 4)})["y"], compute_expected(4))
