"""Critical steps of a simulation, and the slack of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

from ..plans.placement import Step
from .workload import NEVER, Timeline, Workload, to_ns

Cause = Literal["admission", "input", "lane", "memory", "order"]


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """A step on the path that decides the makespan."""

    item: int
    """For a step of a batch, the item that completed it with its rows."""
    step: Step
    started_s: float
    ended_s: float
    rows_of: str | None
    """The queue of the batch that the step is part of, if any."""
    cause: Cause
    """The last condition before the start: the ``"admission"`` of the item, an ``"input"``, the
    device's ``"lane"``, ``"memory"`` held by another item, or the ``"order"`` of items."""


def find_critical_path(
    timeline: Timeline,
    workload: Workload,
    steps: Sequence[Sequence[Step]],
    of_rows: Mapping[str, Sequence[Sequence[Step]]],
) -> tuple[CriticalStep, ...]:
    """Return the steps of `workload` that delayed the end of `timeline`, first to last.

    `steps` are given per variant, those of batches (`of_rows`) by queue.
    """
    path: list[CriticalStep] = []
    last = max(range(timeline.items), key=timeline.landed.__getitem__)
    entry = timeline.finished_by[last]
    while entry != NEVER:
        owner, step = timeline.place(entry)
        before = timeline.bound[entry]
        cause = _find_cause(entry, before, timeline, workload)
        times = timeline.started[entry] / 1e9, timeline.ended[entry] / 1e9
        known, item, queue = steps, owner, None
        if owner >= timeline.items:
            queue, item = (
                timeline.batches[owner - timeline.items].queue,
                _find_item(owner, timeline),
            )
            known = of_rows[queue]
        path.append(CriticalStep(item, known[timeline.variant[owner]][step], *times, queue, cause))
        entry = _find_bound(entry, timeline)
    return tuple(reversed(path))


def _find_item(owner: int, timeline: Timeline) -> int:
    while owner >= timeline.items:
        owner, _ = timeline.place(timeline.admitted_by[owner])
    return owner


def _find_bound(entry: int, timeline: Timeline) -> int:
    before = timeline.bound[entry]
    return before if before != NEVER else timeline.admitted_by[timeline.place(entry)[0]]


def _find_cause(entry: int, before: int, timeline: Timeline, workload: Workload) -> Cause:
    if before == NEVER:
        return "admission"
    (owner, step), (other, earlier) = timeline.place(entry), timeline.place(before)
    if owner == other and (owner >= timeline.items or earlier in workload.waits[step]):
        return "input"
    ordered = workload.ordered
    if not {*ordered.claims.get(step, ())}.isdisjoint(ordered.releases.get(earlier, ())):
        return "order"
    return "lane" if timeline.lane[entry] == timeline.lane[before] else "memory"


def compute_slack_s(timeline: Timeline, workload: Workload) -> tuple[float, ...]:
    """Return by how many seconds each step could end later without delaying the last landing.

    It is the minimum over all items of `timeline`, a run of `workload`. Order, durations and the
    gap between the end of a step and the start of one that waited for it last stay as they are, so
    steps on the critical path have no slack; neither do steps that delay a batch of rows.
    """
    n, end = timeline.n_steps, max(timeline.landed[: timeline.items])
    of_items = n * timeline.items
    slack = [end] * of_items + [0] * (len(timeline.started) - of_items)
    before = _collect_causes(timeline, workload)
    # Steps without duration start together with their followers and must come first.
    order = sorted(TopologicalSorter(before).static_order(), key=timeline.started.__getitem__)
    after = _collect_followers(before, order, timeline, workload)
    for entry in reversed(order):
        if entry >= of_items:
            continue
        item = entry // n
        spare = end - timeline.landed[item]
        if entry != timeline.finished_by[item]:
            spare += timeline.ended[timeline.finished_by[item]] - timeline.ended[entry]
        for follower in after[entry]:
            gap = 0
            if entry != _find_bound(follower, timeline):
                lag = _measure_lag(timeline, workload, entry, follower)
                gap = max(timeline.started[follower] - timeline.ended[entry] - lag, 0)
            spare = min(spare, gap + slack[follower])
        slack[entry] = spare
    return tuple(min(slack[step:of_items:n]) / 1e9 for step in range(n))


def _collect_causes(timeline: Timeline, workload: Workload) -> dict[int, set[int]]:
    before: dict[int, set[int]] = {}
    for entry in range(len(timeline.started)):
        owner, step = timeline.place(entry)
        waits = workload.waits[step] if owner < timeline.items else ()
        inputs = (owner * timeline.n_steps + wait for wait in waits)
        before[entry] = {*inputs, _find_bound(entry, timeline)} - {NEVER}
    return before


def _collect_followers(
    before: Mapping[int, Set[int]], order: Sequence[int], timeline: Timeline, workload: Workload
) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in order]
    latest: dict[int, int] = {}
    for entry in order:
        lane = timeline.lane[entry]
        for earlier in before[entry] | {latest.get(lane, NEVER)} - {NEVER}:
            after[earlier].append(entry)
        if not workload.lanes[lane].awaits:
            latest[lane] = entry
    return after


def _measure_lag(timeline: Timeline, workload: Workload, entry: int, follower: int) -> int:
    """Return the least ns between the end of `entry` and the start of `follower` in `timeline`."""
    lane, other = (workload.lanes[timeline.lane[one]] for one in (entry, follower))
    if lane is other:
        return to_ns(lane.gap_s)
    woken = other.woken_by_s(lane.device)
    owner, step = timeline.place(follower)
    if owner < timeline.items and step in workload.inline:
        woken = min(woken, other.here_s)
    return to_ns(lane.report_s) + to_ns(woken)
