"""Normalization and softmax written out in arithmetic become one node: the same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.fuse_normalization import fuse_normalization, fuse_softmax
from plait.graph.passes.pipeline import run_passes
from plait.graph.values.tensor import Array

SHAPE = (2, 5, 8)
RTOL, ATOL = 1e-5, 1e-6
"""float32 sums of a few numbers, in another order."""

Formula = Callable[[pl.GraphBuilder, str], str]
LAST = np.array([-1])


def _square(b: pl.GraphBuilder, x: str, how: str) -> str:
    made: str = b.op("Mul", x, x) if how == "Mul" else b.op("Pow", x, np.float32(2))
    return made


def _divided(b: pl.GraphBuilder, x: str, root: str, how: str) -> str:
    made: str
    if how == "Div":
        made = b.op("Div", x, root)
    elif how == "Reciprocal":
        made = b.op("Mul", b.op("Reciprocal", root), x)
    else:
        made = b.op("Mul", x, b.op("Div", np.float32(1), root))
    return made


def over_root(b: pl.GraphBuilder, x: str, square: str, divide: str, axes: Array = LAST) -> str:
    mean = b.op("ReduceMean", _square(b, x, square), axes)
    return _divided(b, x, b.op("Sqrt", b.op("Add", mean, np.float32(1e-3))), divide)


def centred(b: pl.GraphBuilder, x: str, axes: Array = LAST) -> str:
    made: str = b.op("Sub", x, b.op("ReduceMean", x, axes))
    return made


def scaled(b: pl.GraphBuilder, x: str, shift: bool = True) -> str:
    scale, bias = (np.linspace(low, 2, SHAPE[-1], dtype=np.float32) for low in (0.5, -1))
    made: str = b.op("Mul", x, scale)
    if shift:
        made = b.op("Add", bias, made)
    return made


def softmax(b: pl.GraphBuilder, x: str, axis: int, divide: str) -> str:
    axes = np.array([axis])
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes)))
    return _divided(b, e, b.op("ReduceSum", e, axes), divide)


def built(formula: Formula, dtype: str = "float32") -> Graph:
    """Return y = -f(x); constants that are alike are one, as they are when passes run."""
    b = pl.GraphBuilder("formula")
    b.output("y", b.op("Neg", formula(b, b.op("Abs", b.input("x", dtype, SHAPE)))))
    return pl.plan(b.build(), passes=["share_constants"]).graph


def assert_same(graph: Graph, other: Graph) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32) * 3
    after, before = (
        pl.run(pl.plan(g, ["formal"], passes=()), {"x": x})["y"] for g in (other, graph)
    )
    np.testing.assert_allclose(after, before, rtol=RTOL, atol=ATOL)


def ops_within(graph: Graph) -> list[str]:
    return [node.op for node in check(graph).nodes[1:-1]]


WAYS = list(itertools.product(("Mul", "Pow"), ("Div", "Reciprocal", "by division")))


@pytest.mark.parametrize(("square", "divide"), WAYS)
def test_layer_normalization_becomes_one_node(square: str, divide: str) -> None:
    graph = built(lambda b, x: scaled(b, over_root(b, centred(b, x), square, divide)))
    after = fuse_normalization(graph)
    assert ops_within(after) == ["LayerNormalization"]
    assert after.nodes[1].attributes["epsilon"] == pytest.approx(1e-3)
    assert_same(graph, after)


@pytest.mark.parametrize(("square", "divide"), WAYS)
def test_rms_normalization_becomes_one_node(square: str, divide: str) -> None:
    graph = built(lambda b, x: scaled(b, over_root(b, x, square, divide), shift=False))
    after = fuse_normalization(graph)
    assert ops_within(after) == ["RMSNormalization"]
    assert_same(graph, after)


def test_a_bias_behind_rms_normalization_stays() -> None:
    graph = built(lambda b, x: scaled(b, over_root(b, x, "Mul", "Div")))
    after = fuse_normalization(graph)
    assert ops_within(after) == ["RMSNormalization", "Add"]
    assert_same(graph, after)


@pytest.mark.parametrize("axes", [[1, 2], [-2, -1], [2]])
def test_the_last_axes_are_normalized_together(axes: list[int]) -> None:
    listed = np.array(axes)
    graph = built(lambda b, x: over_root(b, centred(b, x, listed), "Mul", "Div", listed))
    after = fuse_normalization(graph)
    assert ops_within(after) == ["LayerNormalization"]
    assert after.nodes[1].attributes["axis"] == 3 - len(axes)
    assert_same(graph, after)


def test_a_module_of_an_exporter_that_centres_twice_becomes_one_node() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        mean = b.op("ReduceMean", x, LAST)
        d, again = b.op("Sub", x, mean), b.op("Sub", x, mean)
        variance = b.op("ReduceMean", b.op("Mul", again, again), LAST)
        made: str = b.op("Div", d, b.op("Sqrt", b.op("Add", variance, np.float32(1e-3))))
        return made

    graph = built(formula)
    after, _ = run_passes(graph, [fuse_normalization], checked=True)
    assert ops_within(after) == ["LayerNormalization"]
    assert_same(graph, after)


UNLIKE: Mapping[str, Formula] = {
    "other axes for the mean": lambda b, x: over_root(
        b, centred(b, x, np.array([1])), "Mul", "Div"
    ),
    "inner axes": lambda b, x: over_root(b, x, "Mul", "Div", np.array([1])),
    "no epsilon": lambda b, x: b.op(
        "Div", x, b.op("Sqrt", b.op("ReduceMean", b.op("Mul", x, x), LAST))
    ),
}


@pytest.mark.parametrize("name", ["inner axes", "no epsilon"])
def test_other_formulas_stay(name: str) -> None:
    graph = built(UNLIKE[name])
    assert fuse_normalization(graph) is graph


def test_what_is_centred_over_other_axes_is_no_layer() -> None:
    graph = built(UNLIKE["other axes for the mean"])
    after = fuse_normalization(graph)
    assert "LayerNormalization" not in ops_within(after)
    assert_same(graph, after)


def test_halves_stay_as_they_are() -> None:
    b = pl.GraphBuilder("half")
    x = b.input("x", "float16", SHAPE)
    mean = b.op("ReduceMean", b.op("Mul", x, x), LAST)
    b.output("y", b.op("Div", x, b.op("Sqrt", b.op("Add", mean, np.float16(1e-3)))))
    graph = b.build()
    assert fuse_normalization(graph) is graph


def test_a_scale_of_another_axis_stays_behind() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        made: str = b.op("Mul", over_root(b, x, "Mul", "Div"), np.ones((5, 1), np.float32) * 3)
        return made

    graph = built(formula)
    after = fuse_normalization(graph)
    assert ops_within(after) == ["RMSNormalization", "Mul"]
    assert_same(graph, after)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("divide", ["Div", "Reciprocal"])
def test_softmax_becomes_one_node(axis: int, divide: str) -> None:
    graph = built(lambda b, x: softmax(b, x, axis, divide))
    after = fuse_softmax(graph)
    assert ops_within(after) == ["Softmax"]
    assert after.nodes[1].attributes["axis"] == axis
    assert_same(graph, after)


def test_without_the_maximum_softmax_stays() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        e = b.op("Exp", x)
        made: str = b.op("Div", e, b.op("ReduceSum", e, LAST))
        return made

    graph = built(formula)
    assert fuse_softmax(graph) is graph


def test_exponentials_that_are_fetched_keep_softmax_apart() -> None:
    b = pl.GraphBuilder("fetched")
    x = b.input("x", "float32", SHAPE)
    axes = np.array([-1])
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes)))
    b.output("e", e)
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes)))
    graph = b.build()
    assert fuse_softmax(graph) is graph
