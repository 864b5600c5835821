"""Permission to merge nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from ..core.ir import Graph, Node

MayMerge: TypeAlias = Callable[[Graph, Sequence[Node], Node], bool]
"""Returns whether nodes of a graph may be replaced by one node: (graph, nodes, replacement)."""


@runtime_checkable
class Placing(Protocol):
    """A `MayMerge` that also knows which nodes can run."""

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool: ...

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why no device can run `node` of `graph`, or None."""

    def inside(self) -> Placing:
        """Return the rule for nested graphs, which run in the form that passes leave."""


def allow_any(graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
    return True
