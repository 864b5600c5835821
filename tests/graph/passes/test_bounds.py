"""Bounds behind bounds are one pair of bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes import simplify
from plait.graph.passes.bounds import merge_bounds

VALUES = np.array([-math.inf, -9, -2.5, -0.0, 0, 0.5, 1, 3, 6, 7.25, math.inf, math.nan])


def cut(*steps: tuple[Any, ...], dtype: str = "float32") -> Graph:
    """Return a graph of Clip, Max, Min and Relu in turn; None leaves a bound of Clip out."""
    b = pl.GraphBuilder("cut")
    x = b.op("Neg", b.input("x", dtype, (VALUES.size,)))
    for op, *bounds in steps:
        x = b.op(op, x, *(one if one is None else np.array(one, dtype) for one in bounds))
    b.output("y", b.op("Neg", x))
    return b.build()


def ops(graph: Graph) -> list[str]:
    return [node.op for node in check(graph).nodes][1:-1]


def assert_same(graph: Graph, after: Graph) -> None:
    x = VALUES.astype("float32") if graph.tensors["x"].dtype.kind == "f" else np.arange(-6, 6)
    feeds = {"x": x.astype(graph.tensors["x"].dtype)}
    before, found = (pl.run(pl.plan(one, ["formal"], passes=()), feeds) for one in (graph, after))
    np.testing.assert_array_equal(found["y"], before["y"])


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([("Min", 6), ("Max", 0)], ["Clip"]),
        ([("Relu",), ("Min", 6)], ["Clip"]),
        ([("Relu",), ("Clip", -1, None)], ["Relu"]),
        ([("Max", 0)], ["Relu"]),
        ([("Max", [0])], ["Relu"]),
        ([("Clip", 0, None)], ["Relu"]),
        ([("Clip", 0, math.inf)], ["Relu"]),
        ([("Max", -2), ("Max", 1)], ["Clip"]),
        ([("Clip", 2, 3), ("Clip", 5, 6)], ["Clip"]),
        ([("Max", 3)], ["Max"]),
        ([("Min", 0)], ["Min"]),
        ([("Clip", 3, 1), ("Relu",)], ["Clip", "Relu"]),
        ([("Max", math.nan), ("Relu",)], ["Max", "Relu"]),
        ([("Max", [[0]]), ("Min", 6)], ["Max", "Min"]),
        ([("Max", np.arange(12)), ("Min", 6)], ["Max", "Min"]),
    ],
)
def test_bounds_meet(steps: list[tuple[Any, ...]], left: list[str]) -> None:
    graph = cut(*steps)
    after = merge_bounds(graph)
    assert ops(after) == left
    assert_same(graph, after)
    assert merge_bounds(after) is after


def test_a_number_in_front_is_a_bound_too() -> None:
    b = pl.GraphBuilder("front")
    x = b.op("Neg", b.input("x", "float32", (VALUES.size,)))
    b.output("y", b.op("Neg", b.op("Max", np.float32(0), x)))
    assert ops(merge_bounds(b.build())) == ["Relu"]


def test_what_is_read_between_stays() -> None:
    b = pl.GraphBuilder("read")
    first = b.op("Clip", b.input("x", "float32", (4,)), np.float32(-1), np.float32(1))
    b.output("y", b.op("Relu", first))
    b.output("z", first)
    graph = b.build()
    assert merge_bounds(graph) is graph


def test_a_hard_swish_by_max_and_min_is_found() -> None:
    b = pl.GraphBuilder("swish")
    x = b.input("x", "float32", (8,))
    cells = b.op("Min", b.op("Max", b.op("Add", x, np.float32(3)), np.float32(0)), np.float32(6))
    b.output("y", b.op("Div", b.op("Mul", x, cells), np.float32(6)))
    assert [node.op for node in simplify(b.build()).nodes] == ["HardSwish"]


_numbers = st.sampled_from([-9, -2, 0, 1, 3, 6])
_steps = st.one_of(
    st.tuples(st.just("Relu")),
    st.tuples(st.sampled_from(("Max", "Min")), _numbers),
    st.tuples(st.just("Clip"), st.none() | _numbers, st.none() | _numbers),
)


@given(steps=st.lists(_steps, min_size=1, max_size=4), dtype=st.sampled_from(("float32", "int32")))
@settings(max_examples=20, deadline=None)
def test_every_number_stays(steps: list[tuple[Any, ...]], dtype: str) -> None:
    graph = cut(*steps, dtype=dtype)
    after = merge_bounds(graph)
    assert_same(graph, after)
    assert merge_bounds(after) is after
