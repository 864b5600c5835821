"""Stateful graphs between two functions that fail or take long for some items."""

from __future__ import annotations

import threading

import numpy as np
import plait as pl
from hypothesis import strategies as st
from plait.graph.ir import Graph
from plait.graph.tensor import Array
from stateful_graphs import SHAPE, int32, stateful

SPEC = pl.TensorSpec("int32", SHAPE)
faults: dict[int, str] = {}
waits: dict[int, float] = {}


@pl.operator(SPEC, inputs=[SPEC], name="test_overlapping.first", ordered=False)
def first(x: Array) -> Array:
    return apply(x, "first")


@pl.operator(SPEC, inputs=[SPEC], name="test_overlapping.last", ordered=False)
def last(x: Array) -> Array:
    """Fail, or take long, after the item has handed its variables on."""
    return apply(x, "last")


def apply(x: Array, where: str) -> Array:
    number = int(x[0, 0])
    threading.Event().wait(waits.get(number, 0.0))
    if faults.get(number) == where:
        raise ValueError(f"a fault in {where}")
    return x + 0


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Graph, Graph]:
    """Draw a stateful graph, and one with it between two slow functions."""
    inner = draw(stateful())
    b = pl.GraphBuilder("overlapping")
    x = b.input("x", "int32", SHAPE)
    fed = b.call(first, x, name="first")
    b.output("fed", b.op("Neg", fed))
    made = b.include(inner, {"x": fed})
    for name, tensor in made.items():
        b.output(name, tensor)
    b.output("number", b.call(last, b.after(x, *made.values()), name="last"))
    return inner, b.build()


def feed(number: int) -> dict[str, Array]:
    return {"x": int32(np.full(SHAPE, number))}
