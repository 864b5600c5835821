"""Plans around nodes that a device refused as unsupported when it loaded or ran them.

A refusal is remembered for the device's kind and version (`plait.devices.refusals`), plans with the
node are replaced, and their items run again. For that, the inputs of a plan's items are kept until
its first item succeeds: refusals depend on dtypes and shapes, hardly on values.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....devices.device import Device
from ....devices.errors import UnsupportedNodeError
from ....devices.refusals import find_refusal, note_refusal
from ....graph.core.ir import Graph, Node
from ...planner.standby import replan_nodes
from ...plans.plan import Plan


def may_refuse(plan: Plan) -> bool:
    used = {step.device for step in plan.steps}
    return any(
        device.capabilities.atomic_programs
        for name, device in plan.prototypes.items()
        if name in used
    )


def note_refusals(plan: Plan, error: UnsupportedNodeError) -> dict[str, tuple[str, ...]]:
    """Remember the nodes of `plan` that devices refused for `error`; return new ones by device."""
    found: dict[str, tuple[str, ...]] = {}
    for device, graph, node in _iterate_nodes(plan):
        is_meant = node.name in error.nodes and device.capabilities.atomic_programs
        if is_meant and note_refusal(device, graph, node, error.what):
            found[device.name] = (*found.get(device.name, ()), node.name)
    return found


def plan_around(plan: Plan) -> Plan:
    """Return `plan` with refused nodes on other devices, or itself without refused nodes.

    Pins hold: a node pinned to a device that refused it fails there.
    """
    if all(find_refusal(*place) is None for place in _iterate_nodes(plan)):
        return plan
    return replan_nodes(plan) or plan


def _iterate_nodes(plan: Plan) -> Iterator[tuple[Device, Graph, Node]]:
    for part in (plan, plan.prologue):
        for subgraph in () if part is None else part.subgraphs:
            device = plan.prototypes[subgraph.device]
            yield from ((device, subgraph.graph, node) for node in subgraph.graph.nodes)
