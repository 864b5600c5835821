"""Devices of one set of replicas that work on one thread, and so take turns on one lane.

They do where every device in use has as many replicas as there are cores, or more: an item goes
from one device to the next without a change of threads then. Further threads would take turns on
the cores, and wait for each other to have the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ...devices.device import Device
from ...devices.host import count_cores, may_run_anywhere
from ..plans.placement import Outline, summarize_step
from ..plans.replicas import count_variants
from .core_shares import list_planned

if TYPE_CHECKING:
    from ..plans.plan import Plan

SharedLanes: TypeAlias = Mapping[str, tuple[str, ...]]
"""For every device that shares a lane, all that do; the lane is the first one's."""


def find_shared_lanes(plan: Plan) -> SharedLanes:
    groups = plan.replicas or plan.beside
    count = count_variants(groups)
    have_replicas = list_planned(plan).issubset(name for names in groups for name in names)
    if not have_replicas or {*map(len, groups)} != {count} or count < count_cores():
        return {}
    free = [names for names in groups if any(map(_may_share, map(plan.prototypes.get, names)))]
    sets = zip(*free, strict=True) if len(free) > 1 else ()
    return {name: together for together in sets for name in together}


def name_of(devices: Sequence[str]) -> str:
    """Return the name of the lane that `devices` share; an empty one if there are none."""
    return " and ".join(devices)


def outline_steps(plan: Plan) -> tuple[Outline, ...]:
    shared = find_shared_lanes(plan)
    return tuple(summarize_step(step, name_of(shared.get(step.device, ()))) for step in plan.steps)


def _may_share(device: Device | None) -> bool:
    """Return whether `device` may work on another device's thread: it is bound to no cores."""
    return may_run_anywhere(device) and not device.options.get("affinity")
