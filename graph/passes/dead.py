"""Dead code: what nobody reads or fetches, and no effect depends on."""

from __future__ import annotations

from ..ir import Graph
from ..nested import has_effects
from .merging import MayMerge, always, with_nodes


def remove_dead(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Nodes without a reader -> nothing, and so on towards the inputs, in one sweep.

    Outputs of the graph and nodes with effects are the roots.
    """
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or has_effects(node):
            wanted.update(node.inputs)
            kept.append(node)
    if len(kept) == len(graph.nodes):
        return graph
    return with_nodes(graph, kept[::-1])
