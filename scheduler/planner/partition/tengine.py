"""Tengine's rule, for comparison: runs of supported nodes, unless they are too short.

In Tengine one device is set and the CPU stands behind it. The nodes stand in a row. Each node that
the device lacks goes to the CPU, and with it what follows up to the next such node if that weighs
less than 3, a fully connected node counting 3 and any other 1. What comes before the first goes to
the device. Neighbours on the same device are one subgraph.

Three things are other than in its source, where they are mistakes. A node without outputs is not
taken to be unsupported. Where the first node is unsupported there is no empty subgraph before it.
And subgraphs are cut along edges, so that a branch which has nothing to do with an unsupported node
beside it is not torn. Where there are more than two devices, what the first does not get goes to
the first of the others that supports it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.ir import Graph, Node
from ....graph.traits import FULLY_CONNECTED
from .offers import Offers

WORTHWHILE = 3
FULLY_CONNECTED_WEIGHT = 3


def by_runs(offers: Offers) -> tuple[dict[str, str], dict[str, str]]:
    """Return the device of every node by Tengine's rule, and the reasons.

    The first device is Tengine's device, the rest its CPU.
    """
    graph, names = offers.graph, tuple(offers.devices)
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for first, after in _segments(offers):
        blocked = 0 not in offers.allowed[first]
        inside = range(first + blocked, after)
        weight = sum(_weight(graph, graph.nodes[index]) for index in inside)
        short = blocked and weight < WORTHWHILE
        for index in range(first, after):
            node, allowed = graph.nodes[index], offers.allowed[index]
            others = [device for device in allowed if device]
            leaves = short and others
            device = others[0] if leaves or 0 not in allowed else 0
            assignment[node.name] = names[device]
            reasons[node.name] = _reason(offers, index, names, bool(leaves), weight)
    return assignment, reasons


def _segments(offers: Offers) -> list[tuple[int, int]]:
    """Return the row of nodes in pieces, each but the first beginning where the device cannot."""
    count = len(offers.allowed)
    begins = [index for index, allowed in enumerate(offers.allowed) if 0 not in allowed]
    if count and 0 not in begins:
        begins.insert(0, 0)
    return list(zip(begins, [*begins[1:], count], strict=True))


def _weight(graph: Graph, node: Node) -> int:
    connected = FULLY_CONNECTED in node.operator.traits
    connected |= node.op == "MatMul" and node.inputs[1] in graph.constants
    return FULLY_CONNECTED_WEIGHT if connected else 1


def _reason(offers: Offers, index: int, names: Sequence[str], leaves: bool, weight: int) -> str:
    pattern = offers.pinned[index]
    if pattern is not None:
        return f"pinned by {pattern!r}"
    if 0 not in offers.allowed[index]:
        return f"not on {names[0]}: {offers.supports[index][0].reason}"
    if leaves:
        return f"a run of weight {weight} is too short for {names[0]}: it takes {WORTHWHILE}"
    return f"part of a run on {names[0]}: {offers.supports[index][0].reason}"
