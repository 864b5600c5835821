"""Random graphs with variables, and numpy's word on what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from plait import Graph, GraphBuilder
from plait.graph.core.ir import Node
from plait.graph.values.tensor import Array
from random_graphs import BINARY, ORACLE, UNARY

SHAPE = (2, 2)
ROW = (1, 3)

VIEWS: Mapping[str, int] = {"Assign": 1, "After": 0}
"""Which input such a node hands on."""


def int32(values: object) -> Array:
    return np.asarray(values, np.int32)


@st.composite
def stateful(
    draw: st.DrawFn, max_nodes: int = 10, shape: tuple[int, int] = SHAPE, *, transposes: bool = True
) -> Graph:
    """Draw a graph over int32 that reads variables, and assigns some of them."""
    b = GraphBuilder("stateful")
    known = [b.input("x", "int32", shape)]
    unary = [op for op in UNARY if transposes or op != "Transpose"]
    for index in range(draw(st.integers(1, 3))):
        value = draw(st.integers(-3, 3))
        known.append(b.variable(f"v{index}", np.full(shape, value + index, np.int32)))
    free = known[1:]
    for _ in range(draw(st.integers(1, max_nodes))):
        kind = draw(st.sampled_from((*BINARY, *BINARY, *unary, "assign", "assign", "after")))
        one, other = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if kind == "assign" and free:
            variable = free.pop(draw(st.integers(0, len(free) - 1)))
            known.append(b.assign(variable, one))
        elif kind == "after":
            known.append(b.after(one, other))
        elif kind in BINARY:
            known.append(b.op(kind, one, other))
        elif kind in UNARY:
            known.append(b.op(kind, one))
    made = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    for index, name in enumerate(made):
        b.output(f"y{index}", name)
    return b.build()


@dataclass
class Oracle:
    """What a session of a graph should do, item by item."""

    graph: Graph

    def __post_init__(self) -> None:
        self.values: dict[str, Array] = {}
        for node in self.graph.nodes:
            if node.op == "Variable":
                initial = node.attributes["initial"]
                self.values[node.name] = initial.constants[initial.outputs[0]]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return an item's outputs, and change the variables."""
        tensors = {**feeds, **self.graph.constants}
        assigned: dict[str, Array] = {}
        names: dict[str, str] = {}
        for node in self.graph.nodes:
            (y,) = node.outputs
            if node.op == "Variable":
                tensors[y], names[y] = self.values[node.name], node.name
            else:
                tensors[y] = self._computed(node, tensors)
            if node.op == "Assign":
                assigned[names[node.inputs[0]]] = tensors[y]
        self.values.update(assigned)
        return {name: tensors[name] for name in self.graph.outputs}

    def _computed(self, node: Node, tensors: Mapping[str, Array]) -> Array:
        if node.op in VIEWS:
            return tensors[node.inputs[VIEWS[node.op]]]
        return ORACLE[node.op](*(tensors[name] for name in node.inputs))
