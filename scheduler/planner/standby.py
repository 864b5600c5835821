"""Standby plans: plans for the remaining devices after a loss, and around refused nodes.

A node that a device refused as unsupported, when it loaded or ran it, is remembered for the
device's kind and version (`plait.devices.refusals`), plans with the node are replaced, and their
items run again. For that, the inputs of a plan's items are kept until its first item succeeds:
refusals depend on dtypes and shapes, hardly on values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...devices.device import Device
from ...devices.errors import UnsupportedNodeError
from ...devices.refusals import find_refusal, note_refusal
from ...graph.core.ir import Graph, Node
from ...graph.passes.pipeline import fuse_chains
from ...graph.values.errors import PlaitError
from ..plans.partition import SESSION
from ..plans.plan import Plan


def list_devices(plan: Plan) -> frozenset[str]:
    once = frozenset() if plan.prologue is None else list_devices(plan.prologue)
    return once.union(step.device for step in plan.steps) - {SESSION}


def plan_without(plan: Plan, lost: frozenset[str]) -> Plan | None:
    """Plan the same nodes as in `plan` without the `lost` devices, or return None.

    Pins to lost devices are dropped. Python functions are not moved: a function that crashes a
    worker would crash this process.
    """
    left = {name: device for name, device in plan.prototypes.items() if name not in lost}
    moving = (step for step in plan.steps if step.device in lost)
    if not left or plan.ends.devices & lost or any(step.calls_python for step in moving):
        return None
    limits = plan.request.memory_limits
    request = replace(
        plan.request,
        devices=left,
        pins={pattern: name for pattern, name in plan.pins.items() if name in left},
        memory_limits={name: n for name, n in limits.items() if name not in lost},
    )
    return replan_nodes(replace(plan, request=request))


def replan_nodes(plan: Plan) -> Plan | None:
    """Plan the nodes of `plan` again; return None if that is impossible.

    Only chains are fused again: other passes could change nodes and results.
    """
    try:
        passes = tuple(one for one in plan.passes if one is fuse_chains)
        return replace(plan, passes=passes).replan()
    except PlaitError:
        return None


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
