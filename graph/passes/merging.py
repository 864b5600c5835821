"""Which nodes a pass may make one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..ir import Graph, Node

MayMerge: TypeAlias = Callable[[Graph, Sequence[Node], Node], bool]
"""Says whether nodes of a graph may become one: the graph, the nodes, and the one."""


def always(graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
    """Allow everything."""
    return True
