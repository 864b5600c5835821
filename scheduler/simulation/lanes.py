"""Convert a plan's steps to work on lanes: device, order and duration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...devices.device import Device
from ...devices.host import count_cores
from ...devices.memory import HOST, HOST_MEMORIES
from ...graph.core.ir import Graph
from ...graph.core.nested import walk_nodes
from ...graph.core.operator import Operator
from ...graph.operators.item_order import is_ordered
from ..costs import Costs
from ..costs.figures import HERE, LOOP, Loop
from ..costs.host import AFTER_LAST_BYTES, ALONE_BYTES, HOST_BYTES_PER_S, INLINE_BYTES, is_on_host
from ..dispatch.core_shares import (
    SharedLanes,
    find_shared_lanes,
    name_of,
    scale_to_cores,
    share_cores,
)
from ..dispatch.inline_policy import inline_steps
from ..dispatch.item_order import Ordered
from ..plans.placement import Step, Transfer, name_lane_of_calls
from ..plans.request import ON_HOST, IoDevices
from .workload import NO_LIMIT, Placed, SimulatedHost, SimulatedLane, Workload

if TYPE_CHECKING:
    from ..plans.plan import Plan

GAP_S = 10e-6
"""Between two steps on a lane's thread, for submitting the followers of the first."""

LOOP_WAKE_S = 30e-6
"""From the end of a lane's work until the loop handles it (measured: 28 µs)."""

NOTICE_S = 80e-6
"""Computation of this process to submit a step to another process and handle its end (measured)."""

THREAD_S = 65e-6
"""Cost of a copy on a thread, used so that the loop is not blocked (measured: 63 µs)."""

USUAL = Loop(feed_s=15e-6, land_s=75e-6, contention=0.1)
"""Loop time per item and slowdown of two busy cores, if unmeasured (bench_overlap.py: 0.10)."""


HERE_S = 4e-6
"""Until a step starts on the thread that made it ready (measured: 3 to 5 µs)."""

LAND_HERE_S = 6e-6
"""Until the loop reads the results of a step that it ran itself (measured: 5 to 7 µs)."""

ONE_EACH: Mapping[str, int] = MappingProxyType({})
OWN_LANES: SharedLanes = MappingProxyType({})

AHEAD = 3
"""Steps queued at once on a lane outside this process, so that it never idles: one runs, one is
next, and the end of one before is not yet known."""


def make_workload(
    steps: Sequence[Step],
    devices: Mapping[str, Device],
    costs: Costs,
    cores: Mapping[str, int] = ONE_EACH,
    shared: SharedLanes = OWN_LANES,
) -> Workload:
    """Convert `steps` to work on lanes of `devices`, on `cores` cores of each, by default one.

    A device has one lane for programs. Its model (`copy_queues`) decides whether copies share that
    lane, or have one lane, or one per direction. Devices that share a thread, by `shared`, share a
    lane, and the calls of each async function have a lane of their own. Durations follow from
    `costs`.
    """
    lanes: dict[tuple[str, str], int] = {}
    found: list[SimulatedLane] = []
    placed = []
    for step in steps:
        # Steps of a device that wait for each other share a lane.
        called = step.awaited
        together = shared.get(step.device)
        if called is not None:
            key = "", called.name
        else:
            key = (together[0], "") if together else (step.device, _name_queue(step, costs))
        if key not in lanes:
            lanes[key] = len(found)
            if called is not None:
                found.append(_make_call_lane(called, step.device))
            elif together:
                found.append(_make_shared_lane(together, devices, costs))
            else:
                found.append(_make_lane(*key, devices, costs))
        placed.append(lanes[key])
    durations = [
        estimate_duration_s(step, devices[step.device], costs, cores.get(step.device, 1))
        for step in steps
    ]
    effects = [step.index for step in steps if step.has_effects]
    inline = inline_steps(steps, devices)
    ordered = _order_of(steps)
    waits = [step.waits for step in steps]
    return Workload(found, placed, durations, waits, effects, inline, ordered=ordered)


def _order_of(steps: Sequence[Step]) -> Ordered:
    claims = {step.index: keys for step in steps if (keys := step.order)}
    releases = {step.index: keys for step in steps if (keys := step.releases)}
    # A function cannot be rolled back, unlike variables: it waits for the end of earlier items.
    hands_on = any(step.state.writes for step in steps)
    functions = (key for step in steps for key in step.functions_in_order if hands_on)
    shared = {
        node.op
        for step in steps
        if not isinstance(step.work, Transfer)
        for _, _, node in walk_nodes(step.work.graph)
        if is_ordered(node.operator) and not node.operator.owns
    }
    return Ordered(claims, releases, frozenset(functions), frozenset(shared))


def make_work(plan: Plan) -> Workload:
    shared = find_shared_lanes(plan)
    return make_workload(plan.steps, plan.prototypes, plan.costs, share_cores(plan), shared)


def merge_lanes(works: Iterable[Workload]) -> list[SimulatedLane]:
    lanes: dict[str, SimulatedLane] = {}
    for lane in (lane for work in works for lane in work.lanes):
        known = lanes.get(lane.name, lane)
        # Devices outside of ranges are in several variants, as one lane, which any of them may
        # wake.
        wakes = {**known.wake_after_s, **lane.wake_after_s}
        lanes[lane.name] = replace(known, wake_after_s=wakes)
    return list(lanes.values())


def combine_works(works: Sequence[Workload], lanes: Sequence[SimulatedLane]) -> Workload:
    place = {lane.name: index for index, lane in enumerate(lanes)}
    first, *others = (
        Placed([place[work.lanes[lane].name] for lane in work.lane], work.duration_s)
        for work in works
    )
    return replace(works[0], lanes=lanes, lane=first.lane, others=others)


def estimate_duration_s(step: Step, device: Device, costs: Costs, cores: int = 1) -> float:
    """Estimate by `costs` the seconds of `step` on `cores` cores of `device`, without wake-ups."""
    if isinstance(step.work, Transfer):
        return costs.copy_s(step.work.source, step.work.target, step.work.nbytes)
    seconds = costs.program_s(step.device, step.work.graph)
    if not is_on_host(device):
        return seconds
    # Measured times include the submission, which the lane adds.
    return scale_to_cores(device, seconds - costs.model(step.device).submit_s, cores)


def describe_host(
    graph: Graph, costs: Costs | None = None, ends: IoDevices = ON_HOST, *, one_by_one: bool = False
) -> SimulatedHost:
    """Describe this process as host of items of `graph`, fed and fetched here but for `ends`.

    If items run `one_by_one`, the loop copies larger tensors itself. `costs` may contain measured
    times of the loop.
    """
    fed = sum(graph.tensors[name].nbytes for name in graph.inputs if name not in ends.inputs)
    fetched = sum(graph.tensors[name].nbytes for name in graph.outputs if name not in ends.outputs)
    most = (ALONE_BYTES, ALONE_BYTES) if one_by_one else (INLINE_BYTES, AFTER_LAST_BYTES)
    feed = _estimate_copy(fed, most[0])
    loop = (costs.loop if costs is not None else None) or USUAL
    if loop is USUAL and costs is not None and (costs.nodes or costs.programs):
        loop = USUAL._replace(contention=0.0)  # what was measured ran beside others already
    landed_here = None if costs is None else costs.hop_s(HERE, LOOP)
    return SimulatedHost(
        cores=count_cores(),
        contention=loop.contention,
        feed_s=loop.feed_s + feed[0],
        land_s=loop.land_s,
        feed_delay_s=feed[1],
        land_delay_s=LOOP_WAKE_S + _estimate_taking_s(fetched, most[1]),
        land_here_s=LAND_HERE_S if landed_here is None else landed_here,
    )


def _estimate_copy(nbytes: int, most: int) -> tuple[float, float]:
    seconds = nbytes / HOST_BYTES_PER_S
    return (seconds, 0.0) if nbytes <= most else (0.0, THREAD_S + seconds)


def _estimate_taking_s(nbytes: int, most: int) -> float:
    return nbytes / HOST_BYTES_PER_S + (THREAD_S if nbytes > most else 0.0)


def _name_queue(step: Step, costs: Costs) -> str:
    if not isinstance(step.work, Transfer):
        return ""
    among = costs.model(step.device).copy_queues
    return ("", "copy", "in" if step.work.is_inward else "out")[among]


def _make_lane(name: str, kind: str, devices: Mapping[str, Device], costs: Costs) -> SimulatedLane:
    device = devices[name]
    if not is_on_host(device):
        keeps_order = device.capabilities.native_waits
        label = f"{name} {kind}".rstrip()
        follows = _find_followed(name, devices)
        return SimulatedLane(label, name, keeps_order=keeps_order, depth=AHEAD, follows=follows)
    # Without measurements, submission is split evenly between both directions.
    usual = costs.model(name).submit_s / 2
    from_loop = costs.hop_s(LOOP, name)
    gap, to_here = costs.hop_s(name, name), costs.hop_s(LOOP, HERE)
    is_thread = device.capabilities.memory == HOST
    return SimulatedLane(
        f"{name} {kind}".rstrip(),
        name,
        keeps_order=device.capabilities.native_waits,
        depth=1 if is_thread else AHEAD,
        on_host=True,
        wake_s=usual if from_loop is None else from_loop,
        wake_after_s=_estimate_wakes(name, devices, costs),
        gap_s=GAP_S if gap is None else gap,
        report_s=0.0 if is_thread else _estimate_notice_s(name, costs),
        loop_s=_estimate_notice_s(name, costs) if is_thread else 0.0,
        shares_interpreter=_uses_interpreter(device) and not kind,
        notice_s=0.0 if is_thread else NOTICE_S,
        here_s=HERE_S if to_here is None else to_here,
    )


def _make_shared_lane(
    names: Sequence[str], devices: Mapping[str, Device], costs: Costs
) -> SimulatedLane:
    lane = _make_lane(names[0], "", devices, costs)
    interprets = any(_uses_interpreter(devices[name]) for name in names)
    return replace(lane, name=name_of(names), shares_interpreter=interprets)


def _make_call_lane(operator: Operator, device: str) -> SimulatedLane:
    depth = operator.concurrency or NO_LIMIT
    return SimulatedLane(name_lane_of_calls(operator.name), device, depth=depth, awaits=True)


def _find_followed(name: str, devices: Mapping[str, Device]) -> frozenset[str]:
    offers = devices[name].capabilities
    known = {*offers.copies_from, offers.memory} - HOST_MEMORIES
    return frozenset(other for other, one in devices.items() if one.capabilities.memory in known)


def _estimate_wakes(name: str, devices: Mapping[str, Device], costs: Costs) -> dict[str, float]:
    """Return the delay from the known ends of each of `devices` to a start on `name`, by `costs`.

    A thread of this process knows of its own ends at once, and wakes others itself.
    """
    found = {}
    for other, device in devices.items():
        hop = costs.hop_s(other, name)
        is_thread = device.capabilities.memory == HOST
        known = 0.0 if is_thread else _estimate_notice_s(other, costs)
        if other == name:
            continue
        if hop is not None:
            found[other] = max(0.0, hop - known)
        elif is_thread and is_on_host(device):
            found[other] = (costs.model(other).submit_s + costs.model(name).submit_s) / 2
    return found


def _estimate_notice_s(name: str, costs: Costs) -> float:
    # Measurements end when the loop is awake.
    to_loop = costs.hop_s(name, LOOP)
    return costs.model(name).submit_s / 2 if to_loop is None else max(0.0, to_loop - LOOP_WAKE_S)


def _uses_interpreter(device: Device) -> bool:
    offers = device.capabilities
    # Atomic programs are one call that releases the GIL; workers have their own interpreter.
    return offers.runs_python and offers.memory == HOST and not offers.atomic_programs
