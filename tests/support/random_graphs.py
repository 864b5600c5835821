"""Random graphs, and numpy's word on what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from plait import Graph, GraphBuilder
from plait.graph.values.tensor import Array

SHAPES = ((6,), (2, 3), (3, 2), (1, 6))

ORACLE: Mapping[str, Callable[..., Array]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Sub": lambda a, b: a - b,
    "Neg": lambda x: -x,
    "Relu": lambda x: np.where(x > 0, x, 0).astype(x.dtype),
    "Identity": lambda x: x.copy(),
    "Reshape": lambda x, shape: np.reshape(x, [int(n) for n in shape]).copy(),
    "Transpose": lambda x: np.array(x.T),
}
BINARY, UNARY = ("Add", "Mul", "Sub"), ("Neg", "Relu", "Identity", "Transpose")


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 14) -> Graph:
    """Draw a graph over int32 (wrapping, so exact in any order) with views and dead ends."""
    builder = GraphBuilder("random")
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    known = {str(builder.input(f"x{i}", "int32", shape)): shape for i, shape in enumerate(shapes)}
    for _ in range(draw(st.integers(1, max_nodes))):
        name = draw(st.sampled_from(sorted(known, key=str)))
        shape: tuple[int, ...] = known[name]
        kind = draw(st.sampled_from((*BINARY, *BINARY, *UNARY, "Reshape", "constant")))
        if kind == "Reshape":
            target = draw(st.sampled_from(SHAPES))
            made, shape = builder.op("Reshape", name, np.array(target, np.int64)), target
        elif kind == "constant":
            made = builder.op("Add", name, np.arange(6, dtype=np.int32).reshape(shape))
        elif kind in BINARY:
            same = (other for other, length in known.items() if length == shape)
            fitting = sorted(same, key=str)  # tensors that are compared are nodes
            made = builder.op(kind, name, draw(st.sampled_from(fitting)))
        else:
            made = builder.op(kind, name)
            shape = shape[::-1] if kind == "Transpose" else shape
        known[str(made)] = shape
    made_names = [name for name in known if not name.startswith("x")]
    fetched = draw(st.lists(st.sampled_from(made_names), min_size=1, max_size=3, unique=True))
    for index, name in enumerate(fetched):
        builder.output(f"y{index}", name)
    return builder.build()


def feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Return random inputs for a static graph."""
    random = np.random.default_rng(seed)
    return {
        name: random.integers(-99, 99, graph.tensors[name].static_shape).astype(np.int32)
        for name in graph.inputs
    }


def expected(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Compute a random graph's outputs with numpy, node by node."""
    values = {**inputs, **graph.constants}
    for node in graph.nodes:
        (values[node.outputs[0]],) = (ORACLE[node.op](*(values[name] for name in node.inputs)),)
    return {name: values[name] for name in graph.outputs}
