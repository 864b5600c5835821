from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.scheduler.shapes.specialise import specialise


def flatten() -> Graph:
    """Build x -> Reshape(x, Concat(Shape(x)[:1], [-1])), as exporters write it."""
    builder = pl.GraphBuilder("flatten")
    x = builder.input("x", "float32", ("n", "h", "w"))
    first = builder.op("Slice", builder.op("Shape", x), np.array([0]), np.array([1]))
    shape = builder.op("Concat", first, np.array([-1]), axis=0)
    builder.output("y", builder.op("Relu", builder.op("Reshape", x, shape)))
    return builder.build()


def test_shape_arithmetic_is_folded_once_shapes_are_known() -> None:
    graph = specialise(flatten(), {"x": (2, 3, 4)})
    assert [node.op for node in graph.nodes] == ["Reshape", "Relu"]
    assert graph.tensors["y"].shape == (2, 12)
    assert graph.is_static


def test_symbols_stay_until_they_are_bound() -> None:
    graph = specialise(flatten())
    assert not graph.is_static
    assert graph.tensors["x"].shape == ("n", "h", "w")


@given(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 4)))
def test_folding_computes_what_running_would(shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    got = pl.run(flatten(), {"x": x})["y"]
    wanted = np.maximum(x, 0).reshape(shape[0], shape[1] * shape[2])
    np.testing.assert_array_equal(got, wanted)


def test_weights_are_computed_ahead() -> None:
    builder = pl.GraphBuilder("weights")
    weight = builder.op("Transpose", np.ones((3, 2), np.float32))
    builder.output("y", builder.op("MatMul", builder.input("x", "float32", (4, 2)), weight))
    graph = specialise(builder.build())
    assert [node.op for node in graph.nodes] == ["MatMul"]
    assert len(graph.constants) == 1


def test_what_nobody_needs_any_more_is_dropped() -> None:
    builder = pl.GraphBuilder("dead")
    x = builder.input("x", "float32", (4,))
    builder.op("Relu", builder.op("Add", x, 1.0))
    builder.output("y", builder.op("Relu", x))
    graph = specialise(builder.build())
    assert len(graph.nodes) == 1
    assert graph.constants == {}


@pl.operator(name="test_specialise.counted", effects=True)
def counted(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x


def test_python_functions_are_neither_folded_nor_dropped_when_they_have_effects() -> None:
    builder = pl.GraphBuilder("effects")
    builder.call(counted, np.ones(2, np.float32), name="effect")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2,))))
    assert "effect" in [node.name for node in specialise(builder.build()).nodes]


def test_an_output_that_is_known_ahead_is_still_fetched() -> None:
    builder = pl.GraphBuilder("known")
    x = builder.input("x", "float32", ("n", 2))
    builder.output("shape", builder.op("Shape", x))
    results = pl.run(builder.build(), {"x": np.zeros((5, 2), np.float32)})
    assert results["shape"].tolist() == [5, 2]


def test_a_shape_for_something_that_is_no_input_is_refused() -> None:
    with pytest.raises(
        pl.FeedError, match=r"no input 'z'(.|\n)*inputs are: x, float32\[n, h, w\]$"
    ):
        pl.plan(flatten(), shapes={"z": (1,)})
    with pytest.raises(
        pl.FeedError, match=r"no input 'h'\n  fix: give the whole shape of an input"
    ):
        pl.plan(flatten(), shapes={"h": (1,)})


def test_a_shape_of_the_wrong_rank_is_refused() -> None:
    with pytest.raises(pl.FeedError, match=r"input 'x' must be float32\[n, h, w\]"):
        pl.plan(flatten(), shapes={"x": (1, 2)})


def test_shapes_that_do_not_fit_inside_name_the_node() -> None:
    builder = pl.GraphBuilder("inside")
    x = builder.input("x", "float32", ("n",))
    builder.output("y", builder.op("Add", x, np.ones(3, np.float32), name="sum"))
    with pytest.raises(pl.ShapeError, match=r"do not broadcast(.|\n)*node 'sum'"):
        pl.plan(builder.build(), shapes={"x": (4,)})
