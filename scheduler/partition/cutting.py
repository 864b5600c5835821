"""From an assignment to subgraphs, cut so that none waits for itself.

Give every node the level

    level(n) = max over producers p of n:  level(p)      where p is on n's device
                                           level(p) + 1  elsewhere

Edges never lead to a lower level, and within a level never to another device. So the groups of one
(device, level) are convex and their quotient has no cycle; each weakly connected component of a
group is one subgraph, and unconnected branches stay free to start on their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...graph.ir import Graph


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A set of nodes given to one device; runs as one program.

    Attributes
    ----------
    index : int
        Its place in the partition, a topological order.
    device : str
    graph : Graph
        The nodes, with the tensors that cross into and out of it as inputs and outputs.
    """

    index: int
    device: str
    graph: Graph

    @property
    def name(self) -> str:
        """How reports and traces call it."""
        return self.graph.name


def cut(graph: Graph, assignment: Mapping[str, str]) -> tuple[Subgraph, ...]:
    """Return the subgraphs: components of equal (device, level), in topological order."""
    indices = {node.name: index for index, node in enumerate(graph.nodes)}
    producers = [
        [indices[graph.producers[name].name] for name in node.inputs if name in graph.producers]
        for node in graph.nodes
    ]
    devices = [assignment[node.name] for node in graph.nodes]
    groups = [
        [graph.nodes[index] for index in component] for component in components(producers, devices)
    ]
    return tuple(
        Subgraph(
            index,
            assignment[nodes[0].name],
            graph.extract(nodes, f"{index}:{assignment[nodes[0].name]}"),
        )
        for index, nodes in enumerate(groups)
    )


def components(producers: Sequence[Sequence[int]], devices: Sequence[object]) -> list[list[int]]:
    """Return the nodes of each subgraph, in topological order; nodes are given in one."""
    levels: list[int] = []
    root: list[int] = []
    for node, device in enumerate(devices):
        level = 0
        for producer in producers[node]:
            there = levels[producer] + (devices[producer] != device)
            level = there if there > level else level
        levels.append(level)
        root.append(node)
        for producer in producers[node]:
            if levels[producer] == level and devices[producer] == device:
                first = producer
                while root[first] != first:
                    root[first] = root[root[first]]
                    first = root[first]
                last = node
                while root[last] != last:
                    last = root[last]
                if first != last:
                    root[max(first, last)] = min(first, last)
    members: dict[int, list[int]] = {}
    for node in range(len(levels)):
        first = node
        while root[first] != first:
            first = root[first]
        root[node] = first
        members.setdefault(first, []).append(node)
    # Levels never fall along an edge and components of one level are not connected.
    return sorted(members.values(), key=lambda nodes: levels[nodes[0]])
