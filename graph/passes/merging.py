"""Permission to merge nodes, and graphs with replaced nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias, runtime_checkable

from ..ir import Graph, Node
from ..tensor import Array, spec_of

MayMerge: TypeAlias = Callable[[Graph, Sequence[Node], Node], bool]
"""Returns whether nodes of a graph may be replaced by one node: (graph, nodes, replacement)."""


@runtime_checkable
class Placing(Protocol):
    """A `MayMerge` that also knows which nodes can run."""

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool: ...

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why no device can run a node, or None."""
        ...

    def inside(self) -> Placing:
        """Return the rule for nested graphs, which run in the form that passes leave."""
        ...


_NOTHING: Mapping[str, Array] = {}


def allow_any(graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
    """Allow all merges."""
    return True


def with_nodes(graph: Graph, nodes: Sequence[Node], made: Mapping[str, Array] = _NOTHING) -> Graph:
    """Return the graph with other nodes and more constants, without unused tensors."""
    named = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    named.update(graph.inputs, graph.outputs)
    constants = {**graph.constants, **made}
    tensors = {**graph.tensors, **{name: spec_of(value) for name, value in made.items()}}
    return replace(
        graph,
        nodes=tuple(nodes),
        tensors={name: spec for name, spec in tensors.items() if name in named},
        constants={name: value for name, value in constants.items() if name in named},
        precisions={name: bits for name, bits in graph.precisions.items() if name in named},
    )
