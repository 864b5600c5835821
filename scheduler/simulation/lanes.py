"""From a plan's steps to lanes: which device does what in which order, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...devices.device import Device
from ...devices.host import core_count
from ...devices.memory import HOST
from ...graph.ir import Graph
from ..costs import Costs
from ..costs.figures import LOOP, Loop
from ..costs.overheads import HOST_BYTES_PER_S, INLINE_BYTES, computes_here
from ..placement import HOST_MEMORIES
from ..steps import Step, Transfer
from .workload import Host, Lane, Workload

GAP_S = 10e-6
"""Between two steps on a lane's thread: what waits for the first is submitted."""

LOOP_WAKE_S = 30e-6
"""Until the loop takes up what a lane has ended (measured: 28 µs)."""

NOTICE_S = 80e-6
"""What this process computes to give another one a step and to take note of its end (measured)."""

THREAD_S = 65e-6
"""What a copy costs that is done on a thread, lest it hold up the loop (measured: 63 µs)."""

USUAL = Loop(feed_s=15e-6, land_s=75e-6)
"""What the loop takes for an item where nobody measured it."""


def workload(steps: Sequence[Step], devices: Mapping[str, Device], costs: Costs) -> Workload:
    """Return the steps of a plan as work on lanes.

    A device has one lane for programs. Copies wait among them, or have a lane of their own, or
    one for each direction, as the device's model says (`copy_queues`).
    """
    lanes: dict[tuple[str, str], int] = {}
    found: list[Lane] = []
    placed = []
    for step in steps:
        key = step.device, _kind(step, costs)
        if key not in lanes:
            lanes[key] = len(found)
            found.append(_lane(*key, devices, costs))
        placed.append(lanes[key])
    durations = [duration_s(step, devices[step.device], costs) for step in steps]
    return Workload(found, placed, durations, [step.waits for step in steps])


def duration_s(step: Step, device: Device, costs: Costs) -> float:
    """Return for how long a step occupies its lane.

    Threads and processes of the host are idle while they are woken up; the lane knows that time.
    """
    if isinstance(step.work, Transfer):
        return costs.copy_s(step.work.source, step.work.target, step.work.nbytes)
    seconds = costs.program_s(step.device, step.work.graph)
    return seconds - costs.model(step.device).submit_s if computes_here(device) else seconds


def host_of(graph: Graph, costs: Costs | None = None) -> Host:
    """Return the host of this process, for items that are fed and fetched here."""
    fed = sum(graph.tensors[name].nbytes for name in graph.inputs)
    fetched = sum(graph.tensors[name].nbytes for name in graph.outputs)
    feed, land = _copying(fed), _copying(fetched)
    loop = (costs.loop if costs is not None else None) or USUAL
    return Host(
        cores=core_count(),
        contention=loop.contention,
        feed_s=loop.feed_s + feed[0],
        land_s=loop.land_s + land[0],
        feed_delay_s=feed[1],
        land_delay_s=LOOP_WAKE_S,
    )


def _copying(nbytes: int) -> tuple[float, float]:
    """Return how long a copy keeps the loop busy, and how long it takes besides."""
    seconds = nbytes / HOST_BYTES_PER_S
    return (seconds, 0.0) if nbytes <= INLINE_BYTES else (0.0, THREAD_S + seconds)


def _kind(step: Step, costs: Costs) -> str:
    """Return which of its device's lanes a step goes to."""
    if not isinstance(step.work, Transfer):
        return ""
    among = costs.model(step.device).copy_queues
    inward = step.work.source in HOST_MEMORIES
    return ("", "copy", "in" if inward else "out")[among]


def _lane(name: str, kind: str, devices: Mapping[str, Device], costs: Costs) -> Lane:
    device = devices[name]
    if not computes_here(device):
        keeps_order = device.capabilities.native_waits
        return Lane(f"{name} {kind}".rstrip(), name, keeps_order=keeps_order)
    usual = costs.model(name).submit_s / 2
    from_loop = costs.hop_s(LOOP, name)
    gap = costs.hop_s(name, name)
    wakes = {
        other: max(0.0, hop - _report_s(other, costs))
        for other in devices
        if other != name and (hop := costs.hop_s(other, name)) is not None
    }
    in_process = _shares_interpreter(device)
    return Lane(
        f"{name} {kind}".rstrip(),
        name,
        keeps_order=device.capabilities.native_waits,
        on_host=True,
        wake_s=usual if from_loop is None else from_loop,
        wake_after_s=wakes,
        gap_s=GAP_S if gap is None else gap,
        report_s=_report_s(name, costs),
        shares_interpreter=in_process and not kind,
        notice_s=0.0 if device.capabilities.memory == HOST else NOTICE_S,
    )


def _report_s(name: str, costs: Costs) -> float:
    """Return how long it takes until the scheduler knows what a device of the host has ended."""
    to_loop = costs.hop_s(name, LOOP)
    return costs.model(name).submit_s / 2 if to_loop is None else max(0.0, to_loop - LOOP_WAKE_S)


def _shares_interpreter(device: Device) -> bool:
    offers = device.capabilities
    return offers.runs_python and offers.memory == HOST and not offers.atomic_programs
