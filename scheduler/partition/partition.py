"""Which device runs which node by order of preference, and the subgraphs that follow.

A node goes where it is pinned, else to the first of the user's devices that supports it. Where
shapes are known, `choose` weighs what that would cost against other ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...devices.device import Device, Support
from ...graph.infer import asking
from ...graph.ir import Graph, Node
from ...graph.nested import all_nodes
from ...graph.operators.control import CONTROL_FLOW
from ...graph.passes import Placing, attempts
from ..errors import UnsupportedOpError
from .cutting import Subgraph
from .pins import Pins, check_pins, pin_of

__all__ = [
    "SESSION",
    "Partition",
    "Pins",
    "Subgraph",
    "by_preference",
    "check_pins",
    "may_merge",
    "support",
    "tried",
]

MAX_LISTED = 20

SESSION = "session"
"""Stands in place of a device where a node is control flow that waits for values."""


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


def by_preference(
    graph: Graph, devices: Mapping[str, Device], pins: Pins
) -> tuple[dict[str, str], dict[str, str]]:
    """Give every node to the first device that it may go to; return the devices and the reasons.

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
            more = tried(around, replace(node, name=path), devices, pins)
            homeless.append(f"{path!r} ({node.op}): {reason}{more}")
        else:
            assignment[path], reasons[path] = device, reason
    if homeless:
        raise unsupported(graph, homeless, devices)
    return assignment, reasons


def may_merge(devices: Mapping[str, Device], pins: Pins) -> Placing:
    """Return the rule for passes: what is pinned alike, and stays on its device, may become one."""
    return _Placing(devices, pins)


@dataclass(frozen=True, slots=True)
class _Placing:
    """What passes may ask: neither which devices there are, nor what is pinned to them."""

    devices: Mapping[str, Device]
    pins: Pins

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        """Say whether nodes of a graph may become one."""
        patterns = [pin_of(node, self.pins) for node in nodes]
        if len({pattern and self.pins[pattern] for pattern in patterns}) > 1:
            return False
        last = nodes[-1]
        return one.op == last.op or self._device(graph, one) == self._device(graph, last)

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why a node can run on none of the devices that it may go to."""
        device, reason = _choose(graph, node, self.devices, self.pins)
        return reason if device is None else None

    def _device(self, graph: Graph, node: Node) -> str | None:
        return _choose(graph, node, self.devices, self.pins)[0]


def tried(graph: Graph, node: Node, devices: Mapping[str, Device], pins: Pins) -> str:
    """Return what a node that finds no device could be written out as, and why that is no help."""
    found = attempts(graph, node, may_merge(devices, pins).why_not)
    return "".join(f"; {one}" for one in found)


def support(graph: Graph, node: Node, device: Device) -> Support:
    """Say whether a device can run a node of a graph."""
    bounded = node.operator.bounded
    asked, call = node if bounded is None else replace(node, op=bounded), graph.call(node)
    with asking(node, call):
        return device.supports(asked, call)


def unsupported(
    graph: Graph, homeless: Sequence[str], devices: Mapping[str, Device]
) -> UnsupportedOpError:
    """Return the error of nodes that find no device."""
    listed = "\n    ".join(homeless[:MAX_LISTED])
    more = len(homeless) - MAX_LISTED
    return UnsupportedOpError(
        f"{len(homeless)} of {len(graph.nodes)} nodes run on none of the devices they may use:\n"
        f"    {listed}" + (f"\n    and {more} more" if more > 0 else ""),
        at=f"graph {graph.name!r}, devices {', '.join(devices)}",
        fix="add a device that supports them ('cpu'), change the pins, or register kernels",
    )


def _choose(
    graph: Graph, node: Node, devices: Mapping[str, Device], pins: Pins
) -> tuple[str | None, str]:
    """Return a node's device, or None, and the reason."""
    pattern = pin_of(node, pins)
    if pattern is not None:
        name = pins[pattern]
        answer = support(graph, node, devices[name])
        if answer.ok:
            return name, f"pinned by {pattern!r}"
        return None, f"pinned to {name} by {pattern!r}: {answer.reason}"
    refused: list[str] = []
    for name, device in devices.items():
        answer = support(graph, node, device)
        if answer.ok:
            return name, _placed(answer, refused)
        refused.append(f"{name}: {answer.reason}")
    return None, "; ".join(refused)


def _placed(answer: Support, refused: Sequence[str]) -> str:
    if refused:
        return f"{answer.reason} (not on {'; '.join(refused)})"
    return f"first choice: {answer.reason}"
