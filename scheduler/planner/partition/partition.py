"""The assignment of nodes by order of preference, and errors for nodes without a device.

A node goes where it is pinned, else to the first of the user's devices that supports it. Where
shapes are known, `choose` weighs what that would cost against other ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ....devices.device import Device, Support, support, why_not
from ....devices.kinds import device_kind
from ....graph.ir import Graph, Node
from ....graph.operators.control import placed_nodes, waits
from ....graph.passes import Placing, attempts, can_be_written_out
from ....graph.traits import RUNTIME
from ...errors import UnsupportedOpError
from ...plans.partition import SESSION
from ...plans.request import Pins, find_pin

MAX_LISTED = 20
"""Lines of an error."""
MAX_NAMED = 3
"""Nodes of one line."""

WRITTEN_OUT = "written out in simpler nodes"


def by_preference(
    graph: Graph, devices: Mapping[str, Device], pins: Pins, *, writes_out: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Give every node to the first device that it may go to; return the devices and the reasons.

    Parameters
    ----------
    graph : Graph
    devices : Mapping of str to Device
        In order of preference.
    pins : Mapping of str to str
    writes_out : bool
        Whether devices are given nodes that they lack in simpler ones.

    Raises
    ------
    UnsupportedOpError
        If nodes find no device; the message lists all of them with the reasons.
    """
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    homeless: list[Homeless] = []
    for path, around, node in placed_nodes(graph):
        if waits(node):
            # No device runs control flow whose shapes are not known: the session goes through it.
            assignment[path], reasons[path] = SESSION, "decided when its inputs are known"
            continue
        named = replace(node, name=path)
        device, reason = _choose(around, named, devices, pins, writes_out=writes_out)
        if device is None:
            homeless.append(Homeless(around, named, reason))
        else:
            assignment[path], reasons[path] = device, reason
    if homeless:
        raise unsupported_error(graph, homeless, devices, pins)
    return assignment, reasons


def may_merge(devices: Mapping[str, Device], pins: Pins, *, writes_out: bool = False) -> Placing:
    """Return the rule for passes: what is pinned alike, and loses no device, may become one.

    With `writes_out`, devices are given nodes that they lack in simpler ones.
    """
    return _Placing(devices, pins, writes_out)


@dataclass(frozen=True, slots=True)
class _Placing:
    """What passes may ask: neither which devices there are, nor what is pinned to them."""

    devices: Mapping[str, Device]
    pins: Pins
    writes_out: bool

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        """Say whether nodes of a graph may become one.

        Not where that would take all of them away from a device: who runs the nodes must run the
        one as well, be it written out again. The order of the devices does not matter.
        """
        patterns = [find_pin(node, self.pins) for node in nodes]
        if len({pattern and self.pins[pattern] for pattern in patterns}) > 1:
            return False
        # The last node stays what it was: who ran it runs it still.
        if one.op == nodes[-1].op:
            return True
        devices = allowed(one, self.devices, self.pins).values()
        lacking = [device for device in devices if not support(graph, one, device).ok]
        # Somebody must be able to run it, and nobody may lose what it could run before.
        return len(lacking) < len(devices) and not any(
            not self._runs(graph, one, device)
            and all(self._runs(graph, node, device) for node in nodes)
            for device in lacking
        )

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why a node can run on none of the devices that it may go to."""
        device, reason = _choose(graph, node, self.devices, self.pins)
        return reason if device is None else None

    def inside(self) -> Placing:
        """Return the same for graphs in nodes, which no device gets in simpler ones."""
        return replace(self, writes_out=False)

    def _runs(self, graph: Graph, node: Node, device: Device) -> bool:
        """Say whether a device runs a node, or can if it is written out."""
        return offer(graph, node, device, writes_out=self.writes_out).ok


def offer(graph: Graph, node: Node, device: Device, *, writes_out: bool) -> Support:
    """Say whether a device can run a node of a graph, written out in simpler ones if need be."""
    answer = support(graph, node, device)
    if answer.ok or not (writes_out and can_be_written_out(graph, node, partial(why_not, device))):
        return answer
    return Support(True, WRITTEN_OUT)


class Homeless(NamedTuple):
    """A node that finds no device, the graph that it is in, and why."""

    graph: Graph
    node: Node
    reason: str

    @property
    def kind(self) -> tuple[str, str]:
        """What those have in common that one line tells of."""
        return self.node.op, self.reason


def unsupported_error(
    graph: Graph, homeless: Sequence[Homeless], devices: Mapping[str, Device], pins: Pins
) -> UnsupportedOpError:
    """Return the error of nodes that find no device."""
    alike: dict[tuple[str, str], list[Homeless]] = {}
    for each in homeless:
        alike.setdefault(each.kind, []).append(each)
    kinds = list(alike.values())
    lines = [f"{_named(group)}: {_why(group[0], devices, pins)}" for group in kinds[:MAX_LISTED]]
    if len(kinds) > MAX_LISTED:
        lines.append(f"and {sum(map(len, kinds[MAX_LISTED:]))} more")
    return UnsupportedOpError(
        f"{len(homeless)} of {len(graph.nodes)} nodes run on none of the devices they may use:\n"
        "    " + "\n    ".join(lines),
        at=f"graph {graph.name!r}, devices {', '.join(devices)}",
        fix=_way_out(homeless, devices, pins),
    )


def _named(group: Sequence[Homeless]) -> str:
    """Return the names of nodes of one operator, the first ones."""
    names = ", ".join(repr(each.node.name) for each in group[:MAX_NAMED])
    more = f" and {len(group) - MAX_NAMED} more" if len(group) > MAX_NAMED else ""
    return f"{names}{more} ({group[0].node.op})"


def _why(one: Homeless, devices: Mapping[str, Device], pins: Pins) -> str:
    """Return why a node finds no device, and why it is no help to write it out as others.

    Not where those fail for the same reason, which is not their operator then.
    """
    cause = one.reason.rpartition(": ")[2]
    others = attempts(one.graph, one.node, may_merge(devices, pins).why_not)
    return "; ".join((one.reason, *(other for other in others if not other.endswith(cause))))


def _way_out(homeless: Sequence[Homeless], devices: Mapping[str, Device], pins: Pins) -> str:
    """Return what to do: another pin, where that is all it takes, else another device."""
    able = [
        name
        for name, device in devices.items()
        if all(support(each.graph, each.node, device).ok for each in homeless)
    ]
    if able:
        # Each pin once, in the order in which nodes were met.
        given = dict.fromkeys(find_pin(each.node, pins) for each in homeless)
        changed = ", ".join(repr(pattern) for pattern in given if pattern is not None)
        return f"change the pin {changed}: {able[0]!r} runs them"
    kinds = {device_kind(name) for name in devices}
    if "ort" not in kinds and any(RUNTIME in each.node.operator.traits for each in homeless):
        return "add 'ort' to the devices: only ONNX Runtime has kernels for its own operators"
    if "cpu" in kinds:
        return "register kernels for them, or change the graph"
    return "add a device that supports them ('cpu'), change the pins, or register kernels"


def _choose(
    graph: Graph,
    node: Node,
    devices: Mapping[str, Device],
    pins: Pins,
    *,
    writes_out: bool = False,
) -> tuple[str | None, str]:
    """Return a node's device, or None, and the reason."""
    pattern = find_pin(node, pins)
    refused: list[str] = []
    for name, device in allowed(node, devices, pins).items():
        answer = offer(graph, node, device, writes_out=writes_out)
        # A pin is a demand: who cannot meet it is not replaced by another device.
        if pattern is not None:
            pinned = f"pinned to {name} by {pattern!r}: {answer.reason}"
            return (name, f"pinned by {pattern!r}") if answer.ok else (None, pinned)
        if answer.ok:
            return name, placed(answer, refused)
        refused.append(f"{name}: {answer.reason}")
    return None, "; ".join(refused)


def allowed(node: Node, devices: Mapping[str, Device], pins: Pins) -> Mapping[str, Device]:
    """Return the devices that a node may go to: the one that it is pinned to, or all."""
    pattern = find_pin(node, pins)
    return devices if pattern is None else {pins[pattern]: devices[pins[pattern]]}


def placed(answer: Support, refused: Sequence[str]) -> str:
    """Return why a node is where it is, and why it is not on devices before that."""
    if refused:
        return f"{answer.reason} (not on {'; '.join(refused)})"
    return f"first choice: {answer.reason}"
