"""The plan for what remains when devices are lost."""

from __future__ import annotations

from dataclasses import replace

from ....graph.errors import PlaitError
from ....graph.passes import fuse_chains
from ...plans.partition import SESSION
from ...plans.plan import Plan


def devices_of(plan: Plan) -> frozenset[str]:
    """Return the devices that a static plan has work for, be it once."""
    once = frozenset() if plan.prologue is None else devices_of(plan.prologue)
    return once.union(step.device for step in plan.steps) - {SESSION}


def standby(plan: Plan, lost: frozenset[str]) -> Plan | None:
    """Return a plan of the same nodes without some devices; None if there is none.

    Pins to what is lost do not hold. Python functions stay where they are: one that brings down a
    worker would bring down this process.
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
    # The nodes stay as they are, and their results.
    passes = tuple(one for one in plan.passes if one is fuse_chains)
    try:
        return replace(plan, request=request, passes=passes).replan()
    except PlaitError:
        return None
