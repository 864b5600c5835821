"""The part of a graph with symbols that is the same at all lengths.

A node is fixed if all tensors that it reads and writes have one shape, and none of them becomes a
constant that follows from lengths. After a decoder of files of any length, the nodes of a model are
fixed: they keep programs, views and memory when a length changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ...graph.core.evaluation import is_known_ahead
from ...graph.core.ir import Graph, Node
from ...graph.core.traits import LENGTHS
from ...graph.operators.control import CONTROL_FLOW
from .constraints import DynamicShapeConstraints

LEAST_FIXED = 8
"""With fewer fixed nodes, binding them again costs less than a step of their own."""


def find_fixed_nodes(template: Graph) -> frozenset[str]:
    known: dict[str, Any] = dict(template.constants)
    told: set[str] = set()  # tensors that become constants once lengths are known
    found: set[str] = set()
    for node in template.nodes:
        read = {name for name in node.inputs if name}
        if told.isdisjoint(read) and _has_one_shape(template, node, read):
            found.add(node.name)
        elif LENGTHS in node.operator.traits or is_known_ahead(node, template.tensors, known):
            made = dict.fromkeys(filter(None, node.outputs))
            known.update(made)
            told.update(made)
    return frozenset(found)


def remove_nodes(graph: Graph, names: Set[str]) -> Graph:
    if not names:
        return graph
    return graph.extract((node for node in graph.nodes if node.name not in names), graph.name)


def are_same_nodes(nodes: Sequence[Node], others: Sequence[Node]) -> bool:
    return len(nodes) == len(others) and all(
        a.name == b.name and a.op == b.op and a.inputs == b.inputs and a.outputs == b.outputs
        for a, b in zip(nodes, others, strict=True)
    )


def select_apart(template: Graph) -> frozenset[str]:
    found = find_fixed_nodes(template)
    return found if len(found) >= LEAST_FIXED else frozenset()


def is_mostly_fixed(template: Graph) -> bool:
    return len(select_apart(template)) * 2 >= max(len(template.nodes), 1)


def find_growing_constraints(template: Graph) -> DynamicShapeConstraints:
    """Return constraints for unbounded lengths of `template`: tensors with them share no bytes."""
    growing = frozenset(name for name, spec in template.tensors.items() if not spec.is_static)
    apart = frozenset(node.name for node in template.nodes) - find_fixed_nodes(template)
    return DynamicShapeConstraints(apart, growing=growing)


def _has_one_shape(template: Graph, node: Node, read: set[str]) -> bool:
    specs: Mapping[str, Any] = template.tensors
    return node.op not in CONTROL_FLOW and all(
        specs[name].is_static for name in (*read, *filter(None, node.outputs))
    )
