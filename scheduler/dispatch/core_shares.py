"""The number of the host's cores that each device of a plan computes on, and shared lanes.

Devices that compute here have equal shares of the cores but one, which the event loop and the
others keep. One with scaling programs has more if nothing else computes: replicas divide all
cores, and where items go one at a time, so that the loop waits, a single one has all of them. So do
replicas of several devices divide all cores where each set of these has one item at a time. A
device that only copies values to variables does not count.

Devices of one set of replicas work on one thread, and so take turns on one lane, where every device
in use has as many replicas as there are cores, or more: an item goes from one device to the next
without a change of threads then. Further threads would take turns on the cores, and wait for each
other to have the interpreter.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ...devices.device import Device, Scaling
from ...devices.host import count_cores, may_run_anywhere
from ...graph.core.ir import ASSIGN
from ..costs.host import is_on_host
from ..plans.partition import SESSION
from ..plans.placement import Outline, Step, summarize_step
from ..plans.replicas import count_variants, list_devices

if TYPE_CHECKING:
    from ..plans.plan import Plan

MOST_STEPS = 2_000
"""Among more it is not looked for those that never overlap."""

SharedLanes: TypeAlias = Mapping[str, tuple[str, ...]]
"""For every device that shares a lane, all that do; the lane is the first one's."""


def share_equally(plan: Plan) -> int:
    """Return an equal share of the cores for each computing device of `plan`; at least 1."""
    return divide_equally(len(list_devices(_find_computing(plan), plan.replicas)))


def share_cores(plan: Plan) -> dict[str, int]:
    """Return the number of cores of each computing device of `plan`, replicas included, by name."""
    groups = plan.replicas or plan.beside
    counts = {name: len(names) for names in groups for name in names}
    in_flight = plan.max_in_flight * count_variants(groups)
    shares = divide_cores(plan.steps, _find_computing(plan), in_flight=in_flight, replicas=counts)
    return {
        name: share
        for first, share in shares.items()
        for name in list_devices([first], plan.replicas)
    }


def divide_cores(
    steps: Sequence[Step],
    devices: Mapping[str, Device],
    *,
    in_flight: int,
    replicas: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the number of cores of each device by name; each of its replicas has as many.

    `steps` are those of an item; without any, as shapes are unknown, all devices may overlap.
    `devices` have nodes and compute on the host. Up to `in_flight` items run at once on all
    `replicas`, which are counted by device, including the device itself.
    """
    counts = {name: (replicas or {}).get(name, 1) for name in devices}
    cores, shares = count_cores(), dict.fromkeys(counts, divide_equally(sum(counts.values())))
    for name, count in counts.items():
        if not isinstance(devices[name], Scaling):
            continue
        is_only = len(counts) == 1
        if in_flight <= count and {*counts.values()} == {count}:  # one item on each set of devices
            has_all = is_only or _is_alone(name, steps, counts)
        else:
            has_all = is_only and count > 1
        if has_all:
            shares[name] = max(1, cores // count)
    return shares


def scale_to_cores(device: Device, seconds: float, cores: int) -> float:
    return seconds / device.speedup(seconds, cores) if isinstance(device, Scaling) else seconds


def scale_to_one_core(device: Device, seconds: float, cores: int) -> float:
    """Convert `seconds` that `device` takes on `cores` cores to its seconds on one core.

    The speed-up depends on the seconds: a longer program never makes use of fewer cores.
    """
    if not isinstance(device, Scaling):
        return seconds
    before, found = 0.0, seconds
    while found > before:
        before, found = found, seconds * device.speedup(found, cores)
    return found


def divide_equally(sharing: int) -> int:
    """Return the number of cores of each of `sharing` devices, with one left over; at least 1."""
    return max(1, (count_cores() - 1) // max(1, sharing))


def _find_computing(plan: Plan) -> dict[str, Device]:
    copying = {node.name for node in plan.graph.nodes if node.op == ASSIGN}
    used = {device for node, device in plan.assignment.items() if node not in copying}
    return find_computing(plan.prototypes, used)


def find_computing(devices: Mapping[str, Device], used: Container[str]) -> dict[str, Device]:
    """Return the `devices` that are in `used` and keep the host's cores busy.

    `used` have nodes that compute.
    """
    return {name: one for name, one in devices.items() if name in used and is_on_host(one)}


def list_planned(plan: Plan) -> set[str]:
    return set(plan.assignment.values()) - {SESSION}


def _is_alone(name: str, steps: Sequence[Step], sharing: Container[str]) -> bool:
    """Return whether no other device in `sharing` may run a step while device `name` runs one.

    They may not if each of their `steps` comes before, or after, each step of `name`.
    """
    if not 0 < len(steps) <= MOST_STEPS:
        return False
    before = list[int]()  # for each step a bit for every one that it comes after
    for step in steps:
        found = 0
        for wait in step.waits:
            found |= before[wait] | 1 << wait
        before.append(found)
    own = sum(1 << step.index for step in steps if step.device == name)
    others = sum(1 << s.index for s in steps if s.device != name and s.device in sharing)
    in_order = sum(
        (before[step.index] & (others if step.device == name else own)).bit_count()
        for step in steps
        if (own | others) >> step.index & 1
    )
    return in_order == own.bit_count() * others.bit_count()


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
