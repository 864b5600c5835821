"""Splits a Fused node's modelled time among its members."""

from __future__ import annotations

from typing import NamedTuple

from ...devices.model import DeviceModel, family
from ...graph.infer import cost_of
from ...graph.ir import Graph, Node
from ...graph.nested import called
from ...graph.operators.fused import FUSED


class MemberShare(NamedTuple):
    """A node that is timed alone, or one inside of a Fused node.

    Attributes
    ----------
    graph : Graph
        Of which it is a node.
    node : Node
    share : float
        Of the time.
    """

    graph: Graph
    node: Node
    share: float


def parts_of(graph: Graph, node: Node, model: DeviceModel) -> list[MemberShare]:
    """Return what a node of a static graph consists of: mostly itself."""
    if node.op != FUSED:
        return [MemberShare(graph, node, 1.0)]
    inner = called(node.attributes["body"], graph.call(node).inputs)
    seconds = [model.kernel_s(family(inner, one), cost_of(inner, one)) for one in inner.nodes]
    whole = sum(seconds)
    if whole <= 0:
        return [MemberShare(inner, one, 1 / len(seconds)) for one in inner.nodes]
    return [MemberShare(inner, one, s / whole) for one, s in zip(inner.nodes, seconds, strict=True)]
