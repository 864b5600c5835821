"""Passes inside of nodes: the branches of If, the bodies of Loop and Scan, and what is in those.

A nested graph is simplified for all that its node may hand it, which is more than it says itself:
shapes of states may differ from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import ShapeError
from ..ir import Graph, Node
from ..nested import called
from ..operators.control import CONTROL_FLOW, handed
from .applied import Applied
from .merging import MayMerge, Placing

Simplify = Callable[[Graph, MayMerge], tuple[Graph, Sequence[Applied]]]


def simplified_inside(
    graph: Graph, may_merge: MayMerge, simplify: Simplify
) -> tuple[Graph, tuple[Applied, ...]]:
    """Return the graph with simpler graphs in its nodes of control flow, and what was done."""
    done: list[Applied] = []
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        if node.op not in CONTROL_FLOW:
            continue
        made: dict[str, Graph] = {}
        for key, nested in node.attributes.items():
            if not isinstance(nested, Graph):
                continue
            try:
                simple, applied = simplify(_entered(graph, node, nested), _at(node.name, may_merge))
            except ShapeError:  # what is never entered need not fit: it stays as it is
                continue
            if applied:
                made[key] = simple
                done += (one.within(node.name) for one in applied)
        if made:
            nodes[index] = replace(node, attributes={**node.attributes, **made})
    return (replace(graph, nodes=tuple(nodes)) if done else graph), tuple(done)


def _entered(graph: Graph, node: Node, nested: Graph) -> Graph:
    """Return one of a node's nested graphs with specs that hold whenever it is entered."""
    results = [graph.tensors.get(name) for name in node.outputs]
    return called(nested, handed(node.op, graph.call(node), results))


def _at(path: str, may_merge: MayMerge) -> MayMerge:
    """Return the rule for nodes inside of one: pins name them by their paths."""
    inside = _Inside(path, may_merge)
    return _PlacingInside(path, may_merge) if isinstance(may_merge, Placing) else inside


class _Inside:
    def __init__(self, path: str, may_merge: MayMerge) -> None:
        self._path = path
        self._may_merge = may_merge

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        """Say whether nodes of a nested graph may become one."""
        return self._may_merge(graph, [self._named(node) for node in nodes], self._named(one))

    def _named(self, node: Node) -> Node:
        return replace(node, name=f"{self._path}/{node.name}") if node.name else node


class _PlacingInside(_Inside):
    def __init__(self, path: str, placing: Placing) -> None:
        super().__init__(path, placing.inside())
        self._placing = placing

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why a node of a nested graph can run nowhere."""
        return self._placing.why_not(graph, self._named(node))

    def inside(self) -> Placing:
        """Return the rule itself, which is that for nested graphs."""
        return self
