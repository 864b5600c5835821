"""Graphs of a node or two, for tests of devices."""

from __future__ import annotations

import numpy as np
import plait as pl
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import TensorSpec

FLOATS = TensorSpec("float32", (4,))
X = np.array([1, -2, 3.5, 0], np.float32)
IN_PLACE = {"y": "x"}


def unary(op: str, spec: TensorSpec = FLOATS) -> Graph:
    """Return y = op(x)."""
    b = pl.GraphBuilder(op)
    b.output("y", b.op(op, b.input("x", spec.dtype, spec.static_shape), name=op.lower()))
    return b.build()


def doubling(spec: TensorSpec = FLOATS) -> Graph:
    """Return y = x + x."""
    b = pl.GraphBuilder("doubling")
    x = b.input("x", spec.dtype, spec.static_shape)
    b.output("y", b.op("Add", x, x, name="add"))
    return b.build()


def counting() -> Graph:
    """Return y = x + 1, the one being a constant."""
    b = pl.GraphBuilder("counting")
    b.output("y", b.op("Add", b.input("x", "float32", (4,)), np.ones(4, np.float32)))
    return b.build()


def flattened() -> Graph:
    """Return y = relu(reshape(x))."""
    b = pl.GraphBuilder("flattened")
    x = b.input("x", "float32", (2, 3))
    flat = b.op("Reshape", x, np.array([6]), name="reshape", outputs=["flat"])[0]
    b.output("y", b.op("Relu", flat, name="relu"))
    return b.build()
