"""Critical steps of a simulation, and the slack of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

from ..plans.placement import Step
from .workload import NEVER, Timeline, Workload, ns_of

Cause = Literal["admission", "input", "lane", "memory", "order"]


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """A step on the path that decides the makespan.

    Attributes
    ----------
    item : int
        Where the step is of a batch of rows: whose rows were the last to come.
    step : Step
    started_s, ended_s : float
    rows_of : str or None
        The queue that the rows were in, where it is a step of a batch.
    cause : str
        What it waited for last, which is the one before it on the path: the ``"admission"`` of its
        item, an ``"input"``, its device's ``"lane"``, ``"memory"`` that another item held, or the
        ``"order"`` of items: the same step of an earlier one.
    """

    item: int
    step: Step
    started_s: float
    ended_s: float
    rows_of: str | None
    cause: Cause


def critical_path(
    timeline: Timeline,
    workload: Workload,
    steps: Sequence[Sequence[Step]],
    of_rows: Mapping[str, Sequence[Sequence[Step]]],
) -> tuple[CriticalStep, ...]:
    """Return the steps that the end waited for, the first one first.

    The steps are given for each variant, those of batches by their queue.
    """
    path: list[CriticalStep] = []
    last = max(range(timeline.items), key=timeline.landed.__getitem__)
    entry = timeline.finished_by[last]
    while entry != NEVER:
        owner, step = timeline.place(entry)
        before = timeline.bound[entry]
        cause = _cause(entry, before, timeline, workload)
        times = timeline.started[entry] / 1e9, timeline.ended[entry] / 1e9
        known, item, queue = steps, owner, None
        if owner >= timeline.items:
            queue, item = timeline.batches[owner - timeline.items].queue, _item_of(owner, timeline)
            known = of_rows[queue]
        path.append(CriticalStep(item, known[timeline.variant[owner]][step], *times, queue, cause))
        entry = _bound(entry, timeline)
    return tuple(reversed(path))


def _item_of(owner: int, timeline: Timeline) -> int:
    """Return the item whose rows completed a batch, which may be a batch of such itself."""
    while owner >= timeline.items:
        owner, _ = timeline.place(timeline.admitted_by[owner])
    return owner


def _bound(entry: int, timeline: Timeline) -> int:
    """Return what an entry waited for last: one before it, or what admitted its item."""
    before = timeline.bound[entry]
    return before if before != NEVER else timeline.admitted_by[timeline.place(entry)[0]]


def _cause(entry: int, before: int, timeline: Timeline, workload: Workload) -> Cause:
    if before == NEVER:
        return "admission"
    (owner, step), (other, earlier) = timeline.place(entry), timeline.place(before)
    if owner == other and (owner >= timeline.items or earlier in workload.waits[step]):
        return "input"
    ordered = workload.ordered
    if not {*ordered.claims.get(step, ())}.isdisjoint(ordered.releases.get(earlier, ())):
        return "order"
    return "lane" if timeline.lane[entry] == timeline.lane[before] else "memory"


def slack_s(timeline: Timeline, workload: Workload) -> tuple[float, ...]:
    """Return by how many seconds each step could end later without delaying the last landing.

    Of all items the one that has least counts. Everything else keeps its order and its duration,
    and so does what passes between the end of a step and the start of one that waited for it last,
    be it that threads wake up or that the host is busy: no step on the critical path has slack.
    What stands in the way of a batch of rows has none, either.
    """
    n, end = timeline.n_steps, max(timeline.landed[: timeline.items])
    of_items = n * timeline.items
    slack = [end] * of_items + [0] * (len(timeline.started) - of_items)
    before = _causes(timeline, workload)
    # Steps that take no time start together with those that wait for them: these come first here.
    order = sorted(TopologicalSorter(before).static_order(), key=timeline.started.__getitem__)
    after = _followers(before, order, timeline, workload)
    for entry in reversed(order):
        if entry >= of_items:
            continue
        item = entry // n
        spare = end - timeline.landed[item]
        if entry != timeline.finished_by[item]:
            spare += timeline.ended[timeline.finished_by[item]] - timeline.ended[entry]
        for follower in after[entry]:
            gap = 0
            if entry != _bound(follower, timeline):
                lag = _lag(timeline, workload, entry, follower)
                gap = max(timeline.started[follower] - timeline.ended[entry] - lag, 0)
            spare = min(spare, gap + slack[follower])
        slack[entry] = spare
    return tuple(min(slack[step:of_items:n]) / 1e9 for step in range(n))


def _causes(timeline: Timeline, workload: Workload) -> dict[int, set[int]]:
    """Return for every entry its inputs, and what it waited for last."""
    before: dict[int, set[int]] = {}
    for entry in range(len(timeline.started)):
        owner, step = timeline.place(entry)
        waits = workload.waits[step] if owner < timeline.items else ()
        inputs = (owner * timeline.n_steps + wait for wait in waits)
        before[entry] = {*inputs, _bound(entry, timeline)} - {NEVER}
    return before


def _followers(
    before: Mapping[int, Set[int]], order: Sequence[int], timeline: Timeline, workload: Workload
) -> list[list[int]]:
    """Return for every entry those that cannot start before it has ended."""
    after: list[list[int]] = [[] for _ in order]
    latest: dict[int, int] = {}
    for entry in order:
        lane = timeline.lane[entry]
        for earlier in before[entry] | {latest.get(lane, NEVER)} - {NEVER}:
            after[earlier].append(entry)
        if not workload.lanes[lane].awaits:
            latest[lane] = entry
    return after


def _lag(timeline: Timeline, workload: Workload, entry: int, follower: int) -> int:
    """Return the ns that pass at least between an entry and one that starts after it."""
    lane, other = (workload.lanes[timeline.lane[one]] for one in (entry, follower))
    if lane is other:
        return ns_of(lane.gap_s)
    woken = other.woken_by_s(lane.device)
    owner, step = timeline.place(follower)
    if owner < timeline.items and step in workload.inline:
        woken = min(woken, other.here_s)
    return ns_of(lane.report_s) + ns_of(woken)
