"""Which steps decide how long everything takes, and how much time the others have to spare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..steps import Step
from .workload import NEVER, Timeline, Workload, ns_of

Cause = Literal["admission", "input", "lane", "memory"]


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """A step on the path that decides the makespan.

    Attributes
    ----------
    item : int
    step : Step
    started_s, ended_s : float
    cause : str
        What it waited for last, which is the one before it on the path: the ``"admission"`` of its
        item, an ``"input"``, its device's ``"lane"``, or ``"memory"`` that another item held.
    """

    item: int
    step: Step
    started_s: float
    ended_s: float
    cause: Cause


def critical_path(
    timeline: Timeline, workload: Workload, steps: Sequence[Sequence[Step]]
) -> tuple[CriticalStep, ...]:
    """Return the steps that the end waited for, the first one first.

    The steps are given for each variant.
    """
    path: list[CriticalStep] = []
    last = max(range(timeline.items), key=timeline.landed.__getitem__)
    entry = timeline.finished_by[last]
    while entry != NEVER:
        item, step = divmod(entry, timeline.n_steps)
        before = timeline.bound[entry]
        cause = _cause(entry, before, timeline, workload)
        times = timeline.started[entry] / 1e9, timeline.ended[entry] / 1e9
        path.append(CriticalStep(item, steps[timeline.variant[item]][step], *times, cause))
        entry = before if before != NEVER else timeline.admitted_by[item]
    return tuple(reversed(path))


def _cause(entry: int, before: int, timeline: Timeline, workload: Workload) -> Cause:
    if before == NEVER:
        return "admission"
    n = timeline.n_steps
    if entry // n == before // n and before % n in workload.waits[entry % n]:
        return "input"
    return "lane" if timeline.lane[entry] == timeline.lane[before] else "memory"


def slack_s(timeline: Timeline, workload: Workload) -> tuple[float, ...]:
    """Return by how many seconds each step could end later without delaying the last landing.

    Of all items the one that has least counts. Everything else keeps its order and its duration.
    """
    n, end = timeline.n_steps, max(timeline.landed)
    slack = [end] * (n * timeline.items)
    after = _followers(timeline, workload)
    for entry in sorted(range(len(slack)), key=timeline.started.__getitem__, reverse=True):
        item = entry // n
        spare = end - timeline.landed[item]
        if entry != timeline.finished_by[item]:
            spare += timeline.ended[timeline.finished_by[item]] - timeline.ended[entry]
        for follower in after[entry]:
            lag = _lag(timeline.lane[entry], timeline.lane[follower], workload)
            gap = timeline.started[follower] - timeline.ended[entry] - lag
            spare = min(spare, max(gap, 0) + slack[follower])
        slack[entry] = spare
    return tuple(min(slack[step::n]) / 1e9 for step in range(n))


def _followers(timeline: Timeline, workload: Workload) -> list[list[int]]:
    """Return for every entry those that cannot start before it has ended."""
    n = timeline.n_steps
    after: list[list[int]] = [[] for _ in timeline.started]
    latest: dict[int, int] = {}
    for entry in sorted(range(len(after)), key=timeline.started.__getitem__):
        item, step = divmod(entry, n)
        before = {item * n + wait for wait in workload.waits[step]}
        before.add(latest.get(timeline.lane[entry], NEVER))
        bound = timeline.bound[entry]
        before.add(bound if bound != NEVER else timeline.admitted_by[item])
        for earlier in before - {NEVER}:
            after[earlier].append(entry)
        latest[timeline.lane[entry]] = entry
    return after


def _lag(before: int, after: int, workload: Workload) -> int:
    """Return the ns that pass at least between a step on one lane and the next on another."""
    lane, other = workload.lanes[before], workload.lanes[after]
    if lane is other:
        return ns_of(lane.gap_s)
    woken = min(other.woken_by_s(lane.device), math.inf if other.here_s is None else other.here_s)
    return ns_of(lane.report_s) + ns_of(woken)
