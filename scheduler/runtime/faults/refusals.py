"""Plans around nodes that a device refused as unsupported when it loaded or ran them.

A refusal is remembered for the device's kind and version (`plait.devices.refusals`), the plans with
such nodes are replaced, and the items run again. Until the first item of a plan has ended well, the
inputs of its items are kept for that: refusals depend on dtypes and shapes, hardly on values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....devices.device import Device
from ....devices.errors import UnsupportedNodeError
from ....devices.refusals import find_refusal, note_refusal
from ....graph.errors import PlaitError
from ....graph.ir import Graph, Node
from ....graph.passes import fuse_chains
from ...plans.plan import Plan


def may_refuse(plan: Plan) -> bool:
    """Return True if libraries compute whole subgraphs of a plan: these may refuse late."""
    used = {step.device for step in plan.steps}
    return any(
        device.capabilities.atomic_programs
        for name, device in plan.prototypes.items()
        if name in used
    )


def note_refusals(plan: Plan, error: UnsupportedNodeError) -> dict[str, tuple[str, ...]]:
    """Remember the refused nodes of a plan; return those that are new, by device."""
    found: dict[str, tuple[str, ...]] = {}
    for device, graph, node in _iterate_nodes(plan):
        is_meant = node.name in error.nodes and device.capabilities.atomic_programs
        if is_meant and note_refusal(device, graph, node, error.what):
            found[device.name] = (*found.get(device.name, ()), node.name)
    return found


def plan_around(plan: Plan) -> Plan:
    """Return a plan in which no device has a node that it refused, perhaps the same plan.

    Pins hold: a node that is pinned to the device that refused it fails there.
    """
    if all(find_refusal(*place) is None for place in _iterate_nodes(plan)):
        return plan
    # The nodes stay as they are, and their results.
    passes = tuple(one for one in plan.passes if one is fuse_chains)
    try:
        return replace(plan, passes=passes).replan()
    except PlaitError:
        return plan


def _iterate_nodes(plan: Plan) -> Iterator[tuple[Device, Graph, Node]]:
    for part in (plan, plan.prologue):
        for subgraph in () if part is None else part.subgraphs:
            device = plan.prototypes[subgraph.device]
            yield from ((device, subgraph.graph, node) for node in subgraph.graph.nodes)
