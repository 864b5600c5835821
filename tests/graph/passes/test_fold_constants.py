"""Constants and shapes computed ahead: as a pass, and as what a plan does first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from nested_graphs import doubled, doubling_body
from plait.graph.core import evaluation
from plait.graph.core.evaluation import FOLDED_BYTES
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES, simplify
from plait.graph.passes.fold_constants import fold_constants
from plait.graph.passes.pipeline import Pass
from plait.scheduler.shapes.specialise import specialise

WITHOUT = [one for one in PASSES if one is not fold_constants]


def flatten(lengths: Sequence[int | str] = ("n", 3, 4)) -> Graph:
    """Return x -> Reshape(x, Concat(Shape(x)[:1], -1)), as exporters write it."""
    b = pl.GraphBuilder("flatten")
    x = b.input("x", "float32", lengths)
    first = b.op("Slice", b.op("Shape", x, name="shape"), np.array([0]), np.array([1]))
    shape = b.op("Concat", first, np.array([-1]), axis=0, name="both")
    b.output("y", b.op("Reshape", b.op("Relu", x, name="relu"), shape, name="reshape"))
    return b.build()


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_what_follows_from_constants_is_one_constant() -> None:
    b = pl.GraphBuilder("sum")
    total = b.op("Add", b.op("Mul", np.float32(2), np.float32(3)), np.float32(4))
    b.output("y", b.op("Mul", b.input("x", "float32", (2,)), total))
    graph = simplify(b.build(), [fold_constants])
    assert ops(graph) == ["Mul"]
    assert [value.item() for value in graph.constants.values()] == [10]


def test_shape_arithmetic_is_folded() -> None:
    b = pl.GraphBuilder("unrolled")
    x = b.input("x", "float32", (2, 3, 4))
    first = b.op("Slice", b.op("Shape", x), np.array([0]), np.array([1]))
    y = b.op("Reshape", x, b.op("Concat", first, np.array([-1]), axis=0))
    b.output("y", b.op("Relu", y))
    graph = simplify(b.build(), [fold_constants])
    assert graph.tensors["y"].shape == (2, 12)
    assert ops(graph) == ["Reshape", "Relu"]


def test_folding_waits_for_shapes_that_are_not_known_yet() -> None:
    graph = flatten()
    assert fold_constants(graph) is graph


def test_results_over_16_mib_are_not_kept() -> None:
    b = pl.GraphBuilder("large")
    length = np.array([FOLDED_BYTES // 4 + 1])
    b.output("y", b.op("Expand", np.float32(1), length))
    graph = b.build()
    assert fold_constants(graph) is graph


def chain(length: int, count: int) -> Graph:
    """Return a graph of many results of so many bytes each, all made of one number."""
    b = pl.GraphBuilder("chain")
    y = b.op("Expand", np.float32(1), np.array([length // 4]))
    for index in range(count):
        b.output(f"y{index}", y := b.op("Neg", y))
    return b.build()


def test_many_results_that_are_large_together_are_not_kept() -> None:
    graph = simplify(chain(FOLDED_BYTES, 30), [fold_constants])
    kept = sum(value.nbytes for value in graph.constants.values())
    assert FOLDED_BYTES < kept < 8 * FOLDED_BYTES
    assert graph.nodes


def test_small_results_are_always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SWEPT_BYTES", 0)
    graph = chain(evaluation.SMALL_BYTES, 30)
    assert ops(simplify(graph, [fold_constants])) == []


@pl.operator(name="test_fold_constants.counted")
def counted(x: np.ndarray) -> np.ndarray:
    return x


def test_python_functions_of_constants_are_left_to_run() -> None:
    b = pl.GraphBuilder("function")
    b.output("y", b.call(counted, np.ones(2, np.float32)))
    graph = b.build()
    assert fold_constants(graph) is graph


def test_left_out_nodes_stay_and_run() -> None:
    b = pl.GraphBuilder("weights")
    turned = b.op("Transpose", np.arange(6, dtype=np.float32).reshape(3, 2))
    b.output("y", b.op("MatMul", b.input("x", "float32", (1, 2)), turned))
    plan = pl.plan(b.build(), passes=WITHOUT)
    assert [node.op for node in plan.fed.nodes] == ["Transpose", "MatMul"]
    assert pl.run(plan, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[1, 5, 9]]


@pytest.mark.parametrize("passes", [(), WITHOUT])
def test_what_decides_shapes_is_known_all_the_same(passes: Sequence[Pass]) -> None:
    plan = pl.plan(flatten(), shapes={"x": (2, 3, 4)}, passes=passes)
    assert ops(plan.graph) == ["Relu", "Reshape"]
    assert plan.is_static
    assert plan.applied == ()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(pl.run(plan, {"x": x})["y"], x.reshape(2, 12))


def test_of_what_decides_shapes_nothing_else_is_computed_ahead() -> None:
    b = pl.GraphBuilder("both")
    shape = b.op("Mul", np.array([3, 1]), np.array([2, 1]), name="shape")
    weights = b.op("Neg", np.ones(6, np.float32), name="weights")
    column = b.op("Reshape", weights, shape, name="column")
    b.output("y", b.op("Mul", b.input("x", "float32", (6, 1)), column, name="product"))
    plan = pl.plan(b.build(), passes=())
    assert [node.name for node in plan.fed.nodes] == ["weights", "column", "product"]


def test_left_out_nodes_stay_for_shapes_that_come_later() -> None:
    b = pl.GraphBuilder("size")
    x = b.input("x", "float32", ("n",))
    b.output("y", b.op("Div", x, b.op("Cast", b.op("Size", x), to="float32")))
    plan = pl.plan(b.build(), passes=WITHOUT).for_shapes({"x": (4,)})
    assert [node.op for node in plan.fed.nodes] == ["Size", "Cast", "Div"]
    assert pl.run(plan, {"x": np.ones(4, np.float32)})["y"].tolist() == [0.25] * 4


def test_left_out_nodes_run_for_whatever_is_fed() -> None:
    plan = pl.plan(flatten(), passes=WITHOUT)
    for length in (1, 5):
        x = np.arange(12 * length, dtype=np.float32).reshape(length, 3, 4)
        np.testing.assert_array_equal(pl.run(plan, {"x": x})["y"], x.reshape(length, 12))


def test_a_trip_count_is_known_though_nothing_is_folded() -> None:
    b = pl.GraphBuilder("loop")
    x = b.input("x", "float32", (4,))
    trips = b.op("ReduceSum", b.op("Shape", x), keepdims=False)
    b.output("y", b.op("Loop", trips, None, x, body=doubling_body(), outputs=2)[0])
    plan = pl.plan(b.build(), passes=())
    assert plan.is_static
    fed = np.ones(4, np.float32)
    np.testing.assert_array_equal(pl.run(plan, {"x": fed})["y"], doubled(fed, 4)[0])


def test_without_folding_smaller_shapes_fit_within_bounds() -> None:
    plan = pl.plan(flatten(), bounds={"n": 8}, passes=WITHOUT)
    x = np.arange(36, dtype=np.float32).reshape(3, 3, 4)
    np.testing.assert_array_equal(pl.run(plan, {"x": x})["y"], x.reshape(3, 12))


@pytest.mark.parametrize("bounds", [None, {"n": 8}])
def test_a_saved_plan_without_folding_is_the_same_when_loaded(
    tmp_path: Path, bounds: dict[str, int] | None
) -> None:
    shapes = None if bounds else {"x": (2, 3, 4)}
    plan = pl.plan(flatten(), shapes=shapes, bounds=bounds, passes=WITHOUT)
    plan.save(tmp_path / "flatten.plan")
    assert pl.load_plan(tmp_path / "flatten.plan") == plan


def test_what_planning_folded_is_told_like_any_pass() -> None:
    plan = pl.plan(flatten(), shapes={"x": (2, 3, 4)})
    (one,) = plan.applied
    assert (one.name, one.before, one.after) == ("fold_constants", 5, 2)
    assert set(one.removed) == {"shape", "slice.1", "both"}
    assert "fold_constants" in plan.report()


def test_what_is_folded_for_later_shapes_is_told_then() -> None:
    plan = pl.plan(flatten())
    assert plan.applied == ()
    fixed = plan.for_shapes({"x": (2, 3, 4)})
    assert [one.name for one in fixed.applied] == ["fold_constants"]


def test_planning_and_the_pass_fold_the_same() -> None:
    b = pl.GraphBuilder("norm")
    x = b.input("x", "float32", (2, 3))
    count = b.op("Cast", b.op("Size", x), to="float32")
    b.output("y", b.op("Div", x, b.op("Sqrt", count)))
    graph = b.build()
    kept = specialise(graph, folds=False)
    assert len(kept.nodes) == 4
    assert simplify(kept, PASSES[:2]) == specialise(graph)
