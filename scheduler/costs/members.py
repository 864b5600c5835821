"""Splits a Fused node's modelled time among its members."""

from __future__ import annotations

from typing import NamedTuple

from ...devices.model import DeviceModel, name_family
from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import call_graph
from ...graph.operators.fused import FUSED


class MemberShare(NamedTuple):
    """A node that is timed alone, or one inside of a Fused node."""

    graph: Graph
    """The graph that contains it."""
    node: Node
    share: float
    """Its fraction of the time."""


def split_members(graph: Graph, node: Node, model: DeviceModel) -> list[MemberShare]:
    if node.op != FUSED:
        return [MemberShare(graph, node, 1.0)]
    inner = call_graph(node.attributes["body"], graph.call(node).inputs)
    seconds = [model.kernel_s(name_family(inner, one), get_cost(inner, one)) for one in inner.nodes]
    whole = sum(seconds)
    if whole <= 0:
        return [MemberShare(inner, one, 1 / len(seconds)) for one in inner.nodes]
    return [MemberShare(inner, one, s / whole) for one, s in zip(inner.nodes, seconds, strict=True)]
