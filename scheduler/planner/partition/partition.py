"""The assignment of nodes by order of preference, and errors for nodes without a device.

A node goes where it is pinned, else to the first of the user's devices that supports it. If shapes
are known, `choose` compares the cost of alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ....devices.device import Device, Support, check_support, explain_refusal
from ....devices.kinds import get_kind
from ....graph.core.ir import Graph, Node
from ....graph.core.traits import RUNTIME
from ....graph.operators.control import iterate_placed_nodes, waits
from ....graph.passes.expand import can_be_written_out, describe_attempts
from ....graph.passes.rewriting import Placing
from ...errors import UnsupportedOpError
from ...plans.partition import SESSION
from ...plans.request import Pins, find_pin

MAX_LISTED = 20
"""Lines of an error."""
MAX_NAMED = 3
"""Nodes in one line."""

WRITTEN_OUT = "written out in simpler nodes"


def assign_by_preference(
    graph: Graph, devices: Mapping[str, Device], pins: Pins, *, writes_out: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Assign nodes of `graph` to their `pins`, or else to the first of `devices` that can.

    Return reasons by node, too. With `writes_out`, devices get replacements of nodes that they
    lack. Raises UnsupportedOpError with the reasons of all nodes that find no device.
    """
    assignment: dict[str, str] = {}
    reasons: dict[str, str] = {}
    homeless: list[Homeless] = []
    for path, around, node in iterate_placed_nodes(graph):
        if waits(node):
            # The session itself runs control flow with unknown shapes.
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
    """Return the rule for passes: nodes may become one if pins agree and no device is lost.

    With `writes_out`, devices get replacements of nodes that they lack.
    """
    return _Placing(devices, pins, writes_out)


@dataclass(frozen=True, slots=True)
class _Placing:
    """Answers passes without exposing devices and pins."""

    devices: Mapping[str, Device]
    pins: Pins
    writes_out: bool

    def __call__(self, graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        """Return whether `nodes` of `graph` may become `one`.

        Every device that runs all of the nodes must run the one too, possibly written out again.
        The order of the devices does not matter.
        """
        patterns = [find_pin(node, self.pins) for node in nodes]
        if len({pattern and self.pins[pattern] for pattern in patterns}) > 1:
            return False
        # The operator of the last node stays, and so do its devices.
        if one.op == nodes[-1].op:
            return True
        devices = find_allowed(one, self.devices, self.pins).values()
        lacking = [device for device in devices if not check_support(graph, one, device).ok]
        # At least one device must support it, and none that ran all the nodes may drop out.
        return len(lacking) < len(devices) and not any(
            not self._runs(graph, one, device)
            and all(self._runs(graph, node, device) for node in nodes)
            for device in lacking
        )

    def why_not(self, graph: Graph, node: Node) -> str | None:
        """Return why none of its possible devices can run `node` of `graph`, or None."""
        device, reason = _choose(graph, node, self.devices, self.pins)
        return reason if device is None else None

    def inside(self) -> Placing:
        """Return the rule for graphs in nodes, which are not written out."""
        return replace(self, writes_out=False)

    def _runs(self, graph: Graph, node: Node, device: Device) -> bool:
        return offer(graph, node, device, writes_out=self.writes_out).ok


def offer(graph: Graph, node: Node, device: Device, *, writes_out: bool) -> Support:
    answer = check_support(graph, node, device)
    if answer.ok or not (
        writes_out and can_be_written_out(graph, node, partial(explain_refusal, device))
    ):
        return answer
    return Support(True, WRITTEN_OUT)


class Homeless(NamedTuple):
    """A node without a device, its graph, and the reason."""

    graph: Graph
    node: Node
    reason: str

    @property
    def kind(self) -> tuple[str, str]:
        """The key of nodes that share a line of the error."""
        return self.node.op, self.reason


def unsupported_error(
    graph: Graph, homeless: Sequence[Homeless], devices: Mapping[str, Device], pins: Pins
) -> UnsupportedOpError:
    alike: dict[tuple[str, str], list[Homeless]] = {}
    for each in homeless:
        alike.setdefault(each.kind, []).append(each)
    kinds = list(alike.values())
    lines = [
        f"{_name_nodes(group)}: {_explain(group[0], devices, pins)}" for group in kinds[:MAX_LISTED]
    ]
    if len(kinds) > MAX_LISTED:
        lines.append(f"and {sum(map(len, kinds[MAX_LISTED:]))} more")
    return UnsupportedOpError(
        f"{len(homeless)} of {len(graph.nodes)} nodes run on none of the devices they may use:\n"
        "    " + "\n    ".join(lines),
        at=f"graph {graph.name!r}, devices {', '.join(devices)}",
        fix=_suggest_fix(homeless, devices, pins),
    )


def _name_nodes(group: Sequence[Homeless]) -> str:
    names = ", ".join(repr(each.node.name) for each in group[:MAX_NAMED])
    more = f" and {len(group) - MAX_NAMED} more" if len(group) > MAX_NAMED else ""
    return f"{names}{more} ({group[0].node.op})"


def _explain(one: Homeless, devices: Mapping[str, Device], pins: Pins) -> str:
    """Return why the node `one` has no device, and why its parts fit none of `devices`.

    `pins` bind the parts, too. Replacements that fail for the same reason are left out: the cause
    is not their operator.
    """
    cause = one.reason.rpartition(": ")[2]
    others = describe_attempts(one.graph, one.node, may_merge(devices, pins).why_not)
    return "; ".join((one.reason, *(other for other in others if not other.endswith(cause))))


def _suggest_fix(homeless: Sequence[Homeless], devices: Mapping[str, Device], pins: Pins) -> str:
    able = [
        name
        for name, device in devices.items()
        if all(check_support(each.graph, each.node, device).ok for each in homeless)
    ]
    if able:
        # Each pin once, in the order of the nodes.
        given = dict.fromkeys(find_pin(each.node, pins) for each in homeless)
        changed = ", ".join(repr(pattern) for pattern in given if pattern is not None)
        return f"change the pin {changed}: {able[0]!r} runs them"
    kinds = {get_kind(name) for name in devices}
    if "ort" not in kinds and any(RUNTIME in each.node.operator.traits for each in homeless):
        return "add 'ort' to the devices: only ONNX Runtime has kernels for its own operators"
    if "cpu" in kinds:
        return "register kernels for them, or change the graph"
    return "add a device that supports them ('cpu'), change the pins, or register kernels"


def _choose(
    graph: Graph, node: Node, devices: Mapping[str, Device], pins: Pins, *, writes_out: bool = False
) -> tuple[str | None, str]:
    pattern = find_pin(node, pins)
    refused: list[str] = []
    for name, device in find_allowed(node, devices, pins).items():
        answer = offer(graph, node, device, writes_out=writes_out)
        # A pin is a demand: no other device may replace it.
        if pattern is not None:
            pinned = f"pinned to {name} by {pattern!r}: {answer.reason}"
            return (name, f"pinned by {pattern!r}") if answer.ok else (None, pinned)
        if answer.ok:
            return name, explain_place(answer, refused)
        refused.append(f"{name}: {answer.reason}")
    return None, "; ".join(refused)


def find_allowed(node: Node, devices: Mapping[str, Device], pins: Pins) -> Mapping[str, Device]:
    pattern = find_pin(node, pins)
    return devices if pattern is None else {pins[pattern]: devices[pins[pattern]]}


def explain_place(answer: Support, refused: Sequence[str]) -> str:
    """Return `answer` of a device as reason; `refused` are refusals of devices before it."""
    if refused:
        return f"{answer.reason} (not on {'; '.join(refused)})"
    return f"first choice: {answer.reason}"
