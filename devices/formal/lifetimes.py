"""Last uses of the tensors of a subgraph."""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.ir import Graph
from ..memory import View


def expiring(graph: Graph, views: Mapping[str, View]) -> list[list[str]]:
    """Return for each node the tensors that nobody reads after it.

    Not the subgraph's own inputs and outputs, nor what shares bytes with them or with a tensor that
    is still to be read.
    """
    end = len(graph.nodes)
    first, last = dict.fromkeys(graph.inputs, -1), dict.fromkeys(graph.inputs, end)
    for index, node in enumerate(graph.nodes):
        first.update({name: index for name in node.outputs if name})
        for name in (*node.inputs, *node.outputs):
            if name:
                last[name] = max(last.get(name, index), index)
    last.update(dict.fromkeys(graph.outputs, end))
    alive = {name: (first[name], last[name]) for name in first if name in views}

    def is_shared(name: str, index: int) -> bool:
        return any(
            born <= index < died and _overlap(views[name], views[other])
            for other, (born, died) in alive.items()
        )

    return [
        [name for name, (_, died) in alive.items() if died == index and not is_shared(name, index)]
        for index in range(end)
    ]


def _overlap(a: View, b: View) -> bool:
    if a.arena is not b.arena:
        return False
    return a.offset < b.offset + b.spec.nbytes and b.offset < a.offset + a.spec.nbytes
