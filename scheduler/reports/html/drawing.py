"""The graph as a drawing: vertices, edges, and groups of nodes that may stand for them.

A group is a subgraph; a large one is cut between layers, so that groups stay without cycles, as the
subgraphs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....graph.ir import Graph
from ...plans.plan import Plan
from .columns import Texts
from .layout import DrawingLayout, Edge, lay_out

GROUP_NODES = 100
"""Nodes of a group, about; subgraphs above are cut."""
FLAT_NODES = 500
"""Up to here all nodes are shown at once; above, groups are."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are drawn as one: by their place in the graph."""

    subgraph: int
    name: str
    nodes: Sequence[int]


def drawing(plan: Plan, texts: Texts) -> dict[str, Any]:
    """Return the drawing of a plan's graph as plain values.

    Vertices are numbered: inputs, then nodes, then outputs.
    """
    graph = plan.graph
    edges = _edges(graph)
    first = len(graph.inputs)
    flat = lay_out(first + len(graph.nodes) + len(graph.outputs), list(edges))
    groups = _groups(plan, flat.layers[first:])
    of_node = {node: index for index, group in enumerate(groups) for node in group.nodes}
    units, unit_edges = _units(graph, edges, of_node, len(groups))
    return {
        "inputs": [[texts.number(n), texts.number(str(graph.tensors[n]))] for n in graph.inputs],
        "outputs": [[texts.number(n), texts.number(str(graph.tensors[n]))] for n in graph.outputs],
        "edges": {
            "source": [source for source, _ in edges],
            "target": [target for _, target in edges],
            "tensor": texts.numbers(edges.values()),
        },
        "flat": _plain(flat),
        "collapsed": len(graph.nodes) > FLAT_NODES,
        "groups": {
            "name": [group.name for group in groups],
            "subgraph": [group.subgraph for group in groups],
            "nodes": [list(group.nodes) for group in groups],
            "layout": [_plain(layout) for layout in _insides(groups, of_node, edges, first)],
        },
        "units": _plain(lay_out(units, unit_edges)),
    }


def _edges(graph: Graph) -> dict[Edge, str]:
    """Return the edges between vertices, with one tensor that flows there."""
    first = len(graph.inputs)
    source = {name: index for index, name in enumerate(graph.inputs)}
    edges: dict[Edge, str] = {}
    for index, node in enumerate(graph.nodes, first):
        for name in node.inputs:
            if name in source:
                edges.setdefault((source[name], index), name)
        source.update((name, index) for name in node.outputs if name)
    for index, name in enumerate(graph.outputs, first + len(graph.nodes)):
        if name in source:
            edges[source[name], index] = name
    return edges


def _groups(plan: Plan, layers: Sequence[int]) -> list[NodeGroup]:
    """Return the subgraphs, the large ones in several pieces."""
    place = {node.name: index for index, node in enumerate(plan.graph.nodes)}
    groups: list[NodeGroup] = []
    for subgraph in plan.subgraphs:
        members = [place[node.name] for node in subgraph.graph.nodes]
        pieces = _pieces(members, layers)
        for number, nodes in enumerate(pieces, 1):
            part = f" ({number} of {len(pieces)})" if len(pieces) > 1 else ""
            groups.append(NodeGroup(subgraph.index, subgraph.name + part, nodes))
    return groups


def _pieces(members: Sequence[int], layers: Sequence[int]) -> list[list[int]]:
    pieces: list[list[int]] = []
    last = -1
    for node in sorted(members, key=lambda node: (layers[node], node)):
        if not pieces or (len(pieces[-1]) >= GROUP_NODES and layers[node] > last):
            pieces.append([])
        pieces[-1].append(node)
        last = layers[node]
    return [sorted(piece) for piece in pieces]


def _insides(
    groups: Sequence[NodeGroup], of_node: Mapping[int, int], edges: Mapping[Edge, str], first: int
) -> Iterator[DrawingLayout]:
    """Lay out the nodes of each group among themselves."""
    inner: list[list[Edge]] = [[] for _ in groups]
    local = {node: index for group in groups for index, node in enumerate(group.nodes)}
    for source, target in edges:
        group = of_node.get(source - first)
        if group is not None and group == of_node.get(target - first):
            inner[group].append((local[source - first], local[target - first]))
    for one, between in zip(groups, inner, strict=True):
        yield lay_out(len(one.nodes), between)


def _units(
    graph: Graph, edges: Mapping[Edge, str], of_node: Mapping[int, int], groups: int
) -> tuple[int, list[Edge]]:
    """Return what is laid out when all groups are closed: inputs, groups, outputs."""
    first, nodes = len(graph.inputs), len(graph.nodes)

    def unit(vertex: int) -> int:
        if vertex < first:
            return vertex
        if vertex < first + nodes:
            return first + of_node[vertex - first]
        return vertex - nodes + groups

    between = dict.fromkeys((unit(source), unit(target)) for source, target in edges)
    return first + groups + len(graph.outputs), [(s, t) for s, t in between if s != t]


def _plain(layout: DrawingLayout) -> dict[str, Any]:
    return {
        "layer": list(layout.layers),
        "x": [round(x, 2) for x in layout.xs],
        "chain": {
            str(vertex): [round(x, 2) for x in chain]
            for vertex, chain in enumerate(layout.chains)
            if chain
        },
    }
