"""Standby plans: plans for the remaining devices after a loss."""

from __future__ import annotations

from dataclasses import replace

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
