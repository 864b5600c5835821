"""From a plan's steps to lanes: which device does what in which order, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...devices.device import Device
from ...devices.host import core_count
from ...devices.memory import HOST
from ...graph.ir import Graph
from ..costs import Costs
from ..placement import HOST_MEMORIES
from ..steps import Step, Transfer
from .workload import Host, Lane, Workload

GAP_S = 2e-6
"""Between two steps on a lane's thread: what it waits for is submitted there (measured: 1.7 µs)."""

LOOP_S = 30e-6
"""What the loop does for an item besides copying, on each side of it."""

LOOP_WAKE_S = 30e-6
"""Until the loop takes up what a lane has ended (measured: 28 µs)."""

THREAD_S = 65e-6
"""What a copy costs that is done on a thread, lest it hold up the loop (measured: 63 µs)."""

INLINE_BYTES = 1 << 20
"""More than this is copied on a thread."""

HOST_BYTES_PER_S = 10e9
"""How fast inputs are written and results read."""


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
            found.append(_lane(*key, devices[step.device], costs))
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
    return seconds - _wake_s(step.device, device, costs)


def host_of(graph: Graph) -> Host:
    """Return the host of this process, for items that are fed and fetched here."""
    fed = sum(graph.tensors[name].nbytes for name in graph.inputs)
    fetched = sum(graph.tensors[name].nbytes for name in graph.outputs)
    feed, land = _copying(fed), _copying(fetched)
    return Host(
        cores=core_count(),
        feed_s=LOOP_S + feed[0],
        land_s=LOOP_S + land[0],
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


def _lane(name: str, kind: str, device: Device, costs: Costs) -> Lane:
    on_host = _is_on_host(device)
    wake_s = _wake_s(name, device, costs)
    return Lane(
        f"{name} {kind}".rstrip(),
        name,
        keeps_order=device.capabilities.native_waits,
        on_host=on_host,
        wake_s=wake_s / 2,
        gap_s=GAP_S if on_host else 0.0,
        report_s=wake_s / 2,
        shares_interpreter=not kind and _shares_interpreter(device),
    )


def _wake_s(name: str, device: Device, costs: Costs) -> float:
    return costs.model(name).submit_s if _is_on_host(device) else 0.0


def _is_on_host(device: Device) -> bool:
    """True when a device's kernels keep the host's cores busy."""
    offers = device.capabilities
    return offers.runs_python or not offers.accesses.isdisjoint(HOST_MEMORIES)


def _shares_interpreter(device: Device) -> bool:
    offers = device.capabilities
    return offers.runs_python and offers.memory == HOST and not offers.atomic_programs
