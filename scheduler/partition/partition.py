"""Which device runs which node, and the subgraphs that follow.

A node goes where it is pinned, else to the first of the user's devices that supports it. Subgraphs
are then cut so that none waits for itself: give every node the level

    level(n) = max over producers p of n:  level(p)      where p is on n's device
                                           level(p) + 1  elsewhere

Edges never lead to a lower level, and within a level never to another device. So the groups of one
(device, level) are convex and their quotient has no cycle; each weakly connected component of a
group is one subgraph, and unconnected branches stay free to start on their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ...devices.device import Device, Support
from ...graph.ir import Graph, Node
from ...graph.nested import all_nodes
from ...graph.operators.control import CONTROL_FLOW
from ...graph.passes import MayMerge
from ..errors import PlanError, UnsupportedOpError
from ..inlining import path_of

Pins = Mapping[str, str]
"""Node name, or pattern as in `fnmatch`, to device name."""

MAX_LISTED = 20

SESSION = "session"
"""Stands in place of a device where a node is control flow that waits for values."""


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


@dataclass(frozen=True, slots=True)
class Partition:
    """The assignment of all nodes to devices, and the subgraphs that follow.

    Attributes
    ----------
    assignment : Mapping of str to str
        Node name to device name, also for nodes of nested graphs: ``"loop/add"``.
    reasons : Mapping of str to str
        Why each node is where it is.
    subgraphs : tuple of Subgraph
        In a topological order.
    """

    assignment: Mapping[str, str]
    reasons: Mapping[str, str]
    subgraphs: tuple[Subgraph, ...]


def partition(graph: Graph, devices: Mapping[str, Device], pins: Pins) -> Partition:
    """Give every node to a device and cut the graph into subgraphs.

    Parameters
    ----------
    graph : Graph
    devices : Mapping of str to Device
        In order of preference.
    pins : Mapping of str to str

    Raises
    ------
    UnsupportedOpError
        If nodes find no device; the message lists all of them with the reasons.
    """
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    homeless: list[str] = []
    for path, around, node in all_nodes(graph):
        if node.op in CONTROL_FLOW:
            assignment[path], reasons[path] = SESSION, "decided when its inputs are known"
            continue
        device, reason = _choose(around, replace(node, name=path), devices, pins)
        if device is None:
            homeless.append(f"{path!r} ({node.op}): {reason}")
        else:
            assignment[path], reasons[path] = device, reason
    if homeless:
        raise _unsupported(graph, homeless, devices)
    return Partition(assignment, reasons, _cut(graph, assignment))


def check_pins(graph: Graph, devices: Mapping[str, Device], pins: Pins) -> None:
    """Raise PlanError if a pin names a device or node that there is not, or control flow."""
    nodes = {path: node for path, _, node in all_nodes(graph)}
    names = [*nodes]
    for pattern, device in pins.items():
        if device not in devices:
            raise PlanError(
                f"node {pattern!r} is pinned to {device!r}, which is not one of the plan's devices",
                fix=f"pin to one of {', '.join(devices)}, or add {device!r} to devices",
            )
        if pattern not in names and not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else _some(names)
            raise PlanError(f"the pin {pattern!r} matches no node of {graph.name!r}", fix=hint)
        if pattern in nodes and nodes[pattern].op in CONTROL_FLOW:
            raise PlanError(
                f"{nodes[pattern]} is pinned, but control flow runs on no device",
                fix=f"pin the nodes in it: {f'{pattern}/*'!r}",
            )


def may_merge(devices: Mapping[str, Device], pins: Pins) -> MayMerge:
    """Return the rule for passes: what is pinned alike, and stays on its device, may become one."""

    def decide(graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        patterns = [_pin_of(node, pins) for node in nodes]
        if len({pattern and pins[pattern] for pattern in patterns}) > 1:
            return False
        last = nodes[-1]
        return one.op == last.op or (
            _choose(graph, one, devices, pins)[0] == _choose(graph, last, devices, pins)[0]
        )

    return decide


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > 10 else ""
    return f"its nodes are: {', '.join(names[:10])}{more}"


def _choose(
    graph: Graph, node: Node, devices: Mapping[str, Device], pins: Pins
) -> tuple[str | None, str]:
    """Return a node's device, or None, and the reason."""
    call = graph.call(node)
    node = replace(node, op=node.operator.bounded or node.op)
    pattern = _pin_of(node, pins)
    if pattern is not None:
        name = pins[pattern]
        support = devices[name].supports(node, call)
        if support.ok:
            return name, f"pinned by {pattern!r}"
        return None, f"pinned to {name} by {pattern!r}: {support.reason}"
    refused: list[str] = []
    for name, device in devices.items():
        support = device.supports(node, call)
        if support.ok:
            return name, _placed(support, refused)
        refused.append(f"{name}: {support.reason}")
    return None, "; ".join(refused)


def _placed(support: Support, refused: Sequence[str]) -> str:
    if refused:
        return f"{support.reason} (not on {'; '.join(refused)})"
    return f"first choice: {support.reason}"


def _pin_of(node: Node, pins: Pins) -> str | None:
    """Return the pin that applies: the exact name, else the first pattern that matches."""
    names = node.name, path_of(node.name)
    exact = (name for name in names if name in pins)
    matching = (p for p in pins if any(fnmatchcase(name, p) for name in names))
    return next(exact, None) or next(matching, None)


def _unsupported(
    graph: Graph, homeless: Sequence[str], devices: Mapping[str, Device]
) -> UnsupportedOpError:
    listed = "\n    ".join(homeless[:MAX_LISTED])
    more = len(homeless) - MAX_LISTED
    return UnsupportedOpError(
        f"{len(homeless)} of {len(graph.nodes)} nodes run on none of the devices they may use:\n"
        f"    {listed}" + (f"\n    and {more} more" if more > 0 else ""),
        at=f"graph {graph.name!r}, devices {', '.join(devices)}",
        fix="add a device that supports them ('cpu'), change the pins, or register kernels",
    )


def _cut(graph: Graph, assignment: Mapping[str, str]) -> tuple[Subgraph, ...]:
    """Return the subgraphs: components of equal (device, level), in topological order."""
    levels = _levels(graph, assignment)
    parent = {node.name: node.name for node in graph.nodes}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in graph.nodes:
        for producer in _producers(graph, node):
            if _group(producer, levels, assignment) == _group(node, levels, assignment):
                parent[root(node.name)] = root(producer.name)
    members: dict[str, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(root(node.name), []).append(node)
    # Levels never fall along an edge and components of one level are not connected.
    ordered = sorted(members.values(), key=lambda nodes: levels[nodes[0].name])
    return tuple(
        Subgraph(
            index,
            assignment[nodes[0].name],
            graph.extract(nodes, f"{index}:{assignment[nodes[0].name]}"),
        )
        for index, nodes in enumerate(ordered)
    )


def _levels(graph: Graph, assignment: Mapping[str, str]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for node in graph.nodes:
        levels[node.name] = max(
            (
                levels[producer.name] + (assignment[producer.name] != assignment[node.name])
                for producer in _producers(graph, node)
            ),
            default=0,
        )
    return levels


def _producers(graph: Graph, node: Node) -> list[Node]:
    return [graph.producers[name] for name in node.inputs if name in graph.producers]


def _group(node: Node, levels: Mapping[str, int], assignment: Mapping[str, str]) -> tuple[str, int]:
    return assignment[node.name], levels[node.name]
