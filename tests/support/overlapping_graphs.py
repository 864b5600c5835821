"""Stateful graphs between two functions that fail or take long for some items."""

from __future__ import annotations

import threading

import numpy as np
import plait as pl
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from stateful_graphs import ROW, SHAPE, int32, stateful

SPEC = pl.TensorSpec("int32", SHAPE)
ROWS = pl.TensorSpec("int32", ("rows", ROW[1]))
faults: dict[int, str] = {}
waits: dict[int, float] = {}


@pl.operator(SPEC, inputs=[SPEC], name="test_overlapping.first", ordered=False)
def first(x: Array) -> Array:
    return apply(x, "first")


@pl.operator(SPEC, inputs=[SPEC], name="test_overlapping.last", ordered=False)
def last(x: Array) -> Array:
    """Fail, or take long, after the item has handed its variables on."""
    return apply(x, "last")


@pl.operator(ROWS, inputs=[ROWS], name="test_overlapping.first_of_rows", ordered=False)
def first_of_rows(x: Array) -> Array:
    return apply(x, "first")


@pl.operator(ROWS, inputs=[ROWS], name="test_overlapping.last_of_rows", ordered=False)
def last_of_rows(x: Array) -> Array:
    return apply(x, "last")


def apply(x: Array, where: str) -> Array:
    """Wait for the slowest item, and fail for faulty ones; there may be one for each row."""
    numbers = [int(number) for number in x[:, 0]]
    threading.Event().wait(max(waits.get(number, 0.0) for number in numbers))
    if any(faults.get(number) == where for number in numbers):
        raise ValueError(f"a fault in {where}")
    return x + 0


@st.composite
def pairs(draw: st.DrawFn, *, of_rows: bool = False) -> tuple[Graph, Graph]:
    """Draw a stateful graph, and one with it between two slow functions."""
    shape, ends = (ROW, (first_of_rows, last_of_rows)) if of_rows else (SHAPE, (first, last))
    inner = draw(stateful(shape=shape, transposes=not of_rows))
    b = pl.GraphBuilder("overlapping")
    x = b.input("x", "int32", shape)
    fed = b.call(ends[0], x, name="first")
    b.output("fed", b.op("Neg", fed))
    made = b.include(inner, {"x": fed})
    for name, tensor in made.items():
        b.output(name, tensor)
    b.output("number", b.call(ends[1], b.after(x, *made.values()), name="last"))
    return inner, b.build()


def feed(number: int, shape: tuple[int, int] = SHAPE) -> dict[str, Array]:
    return {"x": int32(np.full(shape, number))}
