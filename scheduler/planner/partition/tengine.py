"""Tengine's rule, for comparison: runs of supported nodes, unless they are too short.

In Tengine there is one device, with the CPU as its fallback, and the nodes form a row. Each node
that the device lacks goes to the CPU, together with the nodes up to the next such one if these
weigh less than 3: a fully connected node counts 3, any other 1. Nodes before the first go to the
device. Neighbours on the same device are one subgraph.

Three mistakes of its source are fixed. A node without outputs is not unsupported. An unsupported
first node has no empty subgraph before it. Subgraphs are cut along edges, so that a branch
unrelated to an unsupported node is not split. With more than two devices, nodes that the first does
not get go to the first of the others that supports them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.core.ir import Graph, Node
from ....graph.core.traits import FULLY_CONNECTED
from .offers import Offers

WORTHWHILE = 3
FULLY_CONNECTED_WEIGHT = 3


def assign_by_runs(offers: Offers) -> tuple[dict[str, str], dict[str, str]]:
    """Assign nodes by Tengine's rule, as `offers` allow; return reasons by node, too.

    The first device is Tengine's device, the rest its CPU.
    """
    graph, names = offers.graph, tuple(offers.devices)
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for first, after in _split_segments(offers):
        blocked = 0 not in offers.allowed[first]
        inside = range(first + blocked, after)
        weight = sum(_weigh(graph, graph.nodes[index]) for index in inside)
        short = blocked and weight < WORTHWHILE
        for index in range(first, after):
            node, allowed = graph.nodes[index], offers.allowed[index]
            others = [device for device in allowed if device]
            leaves = short and others
            device = others[0] if leaves or 0 not in allowed else 0
            assignment[node.name] = names[device]
            reasons[node.name] = _explain(offers, index, names, bool(leaves), weight)
    return assignment, reasons


def _split_segments(offers: Offers) -> list[tuple[int, int]]:
    count = len(offers.allowed)
    begins = [index for index, allowed in enumerate(offers.allowed) if 0 not in allowed]
    if count and 0 not in begins:
        begins.insert(0, 0)
    return list(zip(begins, [*begins[1:], count], strict=True))


def _weigh(graph: Graph, node: Node) -> int:
    connected = FULLY_CONNECTED in node.operator.traits
    connected |= node.op == "MatMul" and node.inputs[1] in graph.constants
    return FULLY_CONNECTED_WEIGHT if connected else 1


def _explain(offers: Offers, index: int, names: Sequence[str], leaves: bool, weight: int) -> str:
    pattern = offers.pinned[index]
    if pattern is not None:
        return f"pinned by {pattern!r}"
    if 0 not in offers.allowed[index]:
        return f"not on {names[0]}: {offers.supports[index][0].reason}"
    if leaves:
        return f"a run of weight {weight} is too short for {names[0]}: it takes {WORTHWHILE}"
    return f"part of a run on {names[0]}: {offers.supports[index][0].reason}"
