"""The graph as a drawing: vertices, edges, and groups of nodes, which can be collapsed.

A group is a subgraph, or a part of a large one, cut between layers so that groups form no cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....graph.core.ir import Graph
from ...plans.plan import Plan
from .columns import Texts
from .layout import DrawingLayout, Edge, place_vertices

GROUP_NODES = 100
"""Approximate limit for the nodes of a group; larger subgraphs are cut."""
FLAT_NODES = 500
"""Graphs of more nodes are shown as groups at first."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that can be collapsed, as indices in the graph."""

    subgraph: int
    name: str
    nodes: Sequence[int]


def draw_graph(plan: Plan, texts: Texts) -> dict[str, Any]:
    """Return the drawing of the graph of `plan` as plain values.

    Vertices are numbered: inputs, then nodes, then outputs. Strings are replaced by numbers in
    `texts`.
    """
    graph = plan.graph
    edges = _list_edges(graph)
    first = len(graph.inputs)
    flat = place_vertices(first + len(graph.nodes) + len(graph.outputs), list(edges))
    groups = _group_nodes(plan, flat.layers[first:])
    of_node = {node: index for index, group in enumerate(groups) for node in group.nodes}
    units, unit_edges = _collapse_groups(graph, edges, of_node, len(groups))
    return {
        "inputs": [[texts.number(n), texts.number(str(graph.tensors[n]))] for n in graph.inputs],
        "outputs": [[texts.number(n), texts.number(str(graph.tensors[n]))] for n in graph.outputs],
        "edges": {
            "source": [source for source, _ in edges],
            "target": [target for _, target in edges],
            "tensor": texts.numbers(edges.values()),
        },
        "flat": _to_dict(flat),
        "collapsed": len(graph.nodes) > FLAT_NODES,
        "groups": {
            "name": [group.name for group in groups],
            "subgraph": [group.subgraph for group in groups],
            "nodes": [list(group.nodes) for group in groups],
            "layout": [
                _to_dict(layout) for layout in _lay_out_groups(groups, of_node, edges, first)
            ],
        },
        "units": _to_dict(place_vertices(units, unit_edges)),
    }


def _list_edges(graph: Graph) -> dict[Edge, str]:
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


def _group_nodes(plan: Plan, layers: Sequence[int]) -> list[NodeGroup]:
    """Group nodes of `plan` by subgraph; one on many of the `layers` becomes several groups."""
    place = {node.name: index for index, node in enumerate(plan.graph.nodes)}
    groups: list[NodeGroup] = []
    for subgraph in plan.subgraphs:
        members = [place[node.name] for node in subgraph.graph.nodes]
        pieces = _cut_subgraph(members, layers)
        for number, nodes in enumerate(pieces, 1):
            part = f" ({number} of {len(pieces)})" if len(pieces) > 1 else ""
            groups.append(NodeGroup(subgraph.index, subgraph.name + part, nodes))
    return groups


def _cut_subgraph(members: Sequence[int], layers: Sequence[int]) -> list[list[int]]:
    pieces: list[list[int]] = []
    last = -1
    for node in sorted(members, key=lambda node: (layers[node], node)):
        if not pieces or (len(pieces[-1]) >= GROUP_NODES and layers[node] > last):
            pieces.append([])
        pieces[-1].append(node)
        last = layers[node]
    return [sorted(piece) for piece in pieces]


def _lay_out_groups(
    groups: Sequence[NodeGroup], of_node: Mapping[int, int], edges: Mapping[Edge, str], first: int
) -> Iterator[DrawingLayout]:
    inner: list[list[Edge]] = [[] for _ in groups]
    local = {node: index for group in groups for index, node in enumerate(group.nodes)}
    for source, target in edges:
        group = of_node.get(source - first)
        if group is not None and group == of_node.get(target - first):
            inner[group].append((local[source - first], local[target - first]))
    for one, between in zip(groups, inner, strict=True):
        yield place_vertices(len(one.nodes), between)


def _collapse_groups(
    graph: Graph, edges: Mapping[Edge, str], of_node: Mapping[int, int], groups: int
) -> tuple[int, list[Edge]]:
    """Return the number of vertices, and the edges, after each group of nodes becomes one vertex.

    `of_node` maps the index of a node of `graph` to that of its group, of which there are `groups`.
    """
    first, nodes = len(graph.inputs), len(graph.nodes)

    def unit(vertex: int) -> int:
        if vertex < first:
            return vertex
        if vertex < first + nodes:
            return first + of_node[vertex - first]
        return vertex - nodes + groups

    between = dict.fromkeys((unit(source), unit(target)) for source, target in edges)
    return first + groups + len(graph.outputs), [(s, t) for s, t in between if s != t]


def _to_dict(layout: DrawingLayout) -> dict[str, Any]:
    return {
        "layer": list(layout.layers),
        "x": [round(x, 2) for x in layout.xs],
        "chain": {
            str(vertex): [round(x, 2) for x in chain]
            for vertex, chain in enumerate(layout.chains)
            if chain
        },
    }
