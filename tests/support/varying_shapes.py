"""Graphs with symbolic dimensions: what shares bytes there depends on shapes, or does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plait as pl
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

WIDTH = 3


def two_steps() -> Graph:
    """Return y = relu(x) + exp(relu(x)), the first axis open."""
    b = pl.GraphBuilder("two steps")
    h = b.op("Relu", b.input("x", "float32", ("n", WIDTH)), name="first")
    b.output("y", b.op("Add", h, b.op("Exp", h, name="exp"), name="second"))
    return b.build()


def two_steps_by_numpy(x: Array) -> Array:
    h = np.maximum(x, 0)
    return h + np.exp(h)


def rows(length: int, seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng([seed, length]).standard_normal((length, WIDTH))
    return {"x": x.astype(np.float32)}


def stacked() -> Graph:
    """Return what concatenates along the open axis, and reads a part of that once more."""
    b = pl.GraphBuilder("stacked")
    x = b.input("x", "float32", ("n", WIDTH))
    first = b.op("Relu", x, name="first")
    second = b.op("Exp", x, name="second")
    both = b.op("Concat", first, second, axis=0, name="both")
    b.output("y", b.op("Neg", both, name="negated"))
    b.output("z", b.op("Add", second, x, name="late"))
    return b.build()


def stacked_by_numpy(x: Array) -> dict[str, Array]:
    return {"y": -np.concatenate([np.maximum(x, 0), np.exp(x)]), "z": np.exp(x) + x}


def switching(few: Graph | None = None) -> Graph:
    """Return what has other nodes for fewer than 4 rows than for more."""
    b = pl.GraphBuilder("switching")
    x = b.input("x", "float32", ("n", WIDTH))
    count = b.op("Gather", b.op("Shape", x), np.array(0))
    then, other = few or _branch("Neg"), _branch("Exp")
    is_few = b.op("Less", count, np.array(4))
    b.output("y", b.op("If", is_few, b.op("Abs", x), then_branch=then, else_branch=other))
    return b.build()


def finding() -> Graph:
    """Return what leaves rows without a positive first number out."""
    b = pl.GraphBuilder("finding")
    x = b.input("in", "float32", ("rows", WIDTH))
    first = b.op("Slice", x, np.array([0]), np.array([1]), np.array([1]))
    places = b.op("NonZero", b.op("Greater", b.op("Reshape", first, np.array([-1])), np.float32(0)))
    b.output("out", b.op("Gather", x, b.op("Squeeze", places, np.array([0])), axis=0))
    return b.build()


def _branch(op: str) -> Graph:
    b = pl.GraphBuilder(op)
    b.output("out", b.op(op, b.input("in", "float32", ("rows", WIDTH))))
    return b.build()


def _unary(b: pl.GraphBuilder, draw: st.DrawFn, x: str) -> Any:
    return b.op(draw(st.sampled_from(["Relu", "Neg", "Abs", "Sigmoid"])), x)


def _ends(b: pl.GraphBuilder, draw: st.DrawFn, x: str) -> Any:
    """Take the first or the last row away, and put it back elsewhere."""
    last = draw(st.booleans())
    start, end = ([-1], [1 << 30]) if last else ([0], [1])
    part = b.op("Slice", x, np.array(start), np.array(end), np.array([0]))
    return b.op("Add", x, part)


def _join(b: pl.GraphBuilder, draw: st.DrawFn, x: str) -> Any:
    """Join with something, along either axis, and take a part of that."""
    axis = draw(st.integers(0, 1))
    joined = b.op("Concat", x, _unary(b, draw, x), _unary(b, draw, x), axis=axis)
    if axis == 0:
        return b.op("Split", joined, axis=0, num_outputs=3, outputs=3)[draw(st.integers(0, 2))]
    first = draw(st.integers(0, 2 * WIDTH))
    return b.op("Slice", joined, np.array([first]), np.array([first + WIDTH]), np.array([1]))


def _flat(b: pl.GraphBuilder, draw: st.DrawFn, x: str) -> Any:
    flat = b.op(draw(st.sampled_from(["Relu", "Neg"])), b.op("Reshape", x, np.array([-1])))
    return b.op("Reshape", flat, np.array([-1, WIDTH]))


def take_alternate(b: pl.GraphBuilder, x: Any) -> Any:
    """Return every second row, in one image of one channel, as a network's strides do it."""
    image = b.op("Unsqueeze", x, np.array([0, 1]))
    return b.op("MaxPool", image, kernel_shape=[1, 1], strides=[2, 1])


def _add_alternate(b: pl.GraphBuilder, draw: st.DrawFn, x: str) -> Any:
    """Add the largest of every second row: their number is computed."""
    some = _unary(b, draw, take_alternate(b, x))
    return b.op("Add", x, b.op("ReduceMax", some, np.array([0, 1, 2]), keepdims=0))


def _reshape_by_shape(b: pl.GraphBuilder, draw: st.DrawFn, x: str) -> Any:
    """Reshape twice as exporters do it, with a part of the shape that was read before."""
    count = b.op("Slice", b.op("Shape", x), np.array([0]), np.array([1]))
    columns = b.op("Concat", np.array([WIDTH]), count, axis=0)
    turned = _unary(b, draw, b.op("Reshape", x, columns, allowzero=1))
    return b.op("Reshape", turned, b.op("Concat", count, np.array([WIDTH]), axis=0), allowzero=1)


def read_half() -> Graph:
    """Return every second row, as columns; their number is computed, and read for a Reshape."""
    b = pl.GraphBuilder("read half")
    half = take_alternate(b, b.input("x", "float32", ("n", WIDTH)))
    count = b.op("Slice", b.op("Shape", half), np.array([2]), np.array([3]))
    b.output("y", b.op("Reshape", half, b.op("Concat", np.array([WIDTH]), count, axis=0)))
    return b.build()


def read_half_by_numpy(x: Array) -> Array:
    return x[::2].reshape(WIDTH, -1)


STEPS = (_unary, _unary, _ends, _join, _flat, _add_alternate, _reshape_by_shape)


@st.composite
def open_graphs(draw: st.DrawFn) -> Graph:
    """Return a graph with one open axis, all tensors with `WIDTH` columns between its steps."""
    b = pl.GraphBuilder("open")
    known = [b.input("x", "float32", ("n", WIDTH))]
    for _ in range(draw(st.integers(2, 8))):
        step = draw(st.sampled_from(STEPS))
        made = step(b, draw, draw(st.sampled_from(known)))
        known.append(
            b.op("Add", made, draw(st.sampled_from(known))) if draw(st.booleans()) else made
        )
    b.output("y", known[-1])
    for index in sorted(draw(st.sets(st.integers(1, len(known) - 1), max_size=2))):
        if index < len(known) - 1:
            b.output(f"y{index}", b.op("Identity", known[index]))
    return b.build()


def by_itself(graph: Graph, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return what a plan for just these shapes yields."""
    shapes = {name: array.shape for name, array in inputs.items()}
    return pl.run(pl.plan(graph, shapes=shapes), inputs)
