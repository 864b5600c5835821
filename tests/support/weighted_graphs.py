"""Graphs whose weights are computed of constants, and what makes a plan compute them at open."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from random_graphs import graphs

UNFOLDED = ["-fold_constants"]
"""The passes of a plan that leaves what follows from constants to its sessions."""

N = 4
WEIGHTS = np.arange(N * N, dtype=np.float32).reshape(N, N) - 5


def weighted(length: int | str = N, *, b: pl.GraphBuilder | None = None) -> Graph:
    """Return a graph of ``y = x @ relu(w) + sum(relu(w))``, rows in and out."""
    b = b or pl.GraphBuilder("weighted")
    x = b.input("x", "float32", (length, N))
    relu = b.op("Relu", WEIGHTS, name="relu")
    total = b.op("ReduceSum", relu, np.array([0]), keepdims=0, name="total")
    b.output("y", b.op("Add", b.op("MatMul", x, relu, name="matmul"), total, name="add"))
    return b.build()


def rows(value: float, length: int = N) -> dict[str, Array]:
    return {"x": np.full((length, N), value, np.float32)}


def by_numpy(feeds: dict[str, Array]) -> Array:
    relu = np.maximum(WEIGHTS, 0)
    return feeds["x"] @ relu + relu.sum(0)


def unfolded(graph: Graph | None = None, devices: Any = ("cpu",), **options: Any) -> pl.Plan:
    return pl.plan(graph or weighted(), devices, passes=UNFOLDED, **options)


@st.composite
def partly_known(draw: st.DrawFn) -> tuple[Graph, dict[str, Array]]:
    """Draw a graph of which some inputs are constants, and all its inputs."""
    graph = draw(graphs())
    random = np.random.default_rng(draw(st.integers(0, 99)))
    values = {
        name: random.integers(-99, 99, graph.tensors[name].static_shape).astype(np.int32)
        for name in graph.inputs
    }
    known = draw(st.sets(st.sampled_from(sorted(values)), min_size=1))
    inputs = tuple(name for name in graph.inputs if name not in known)
    constants = {**graph.constants, **{name: values[name] for name in known}}
    return pl.Graph(graph.name, inputs, graph.outputs, graph.nodes, graph.tensors, constants), {
        name: values[name] for name in inputs
    }
