"""List schedulers that look at all ready tasks at every step: good, but slow on wide graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TypeAlias

from .ranks import upward_ranks
from .tasks import TaskGraph, TaskTimes

Look: TypeAlias = Callable[[int, Sequence[tuple[float, float, int]]], tuple[float, ...]]
"""Values a ready task, given (end, start, machine) on each machine, the best first; lowest wins."""


def dynamic(graph: TaskGraph, look: Look) -> TaskTimes:
    """At every step look at all ready tasks on all machines, and place the one valued lowest."""
    timeline = TaskTimes(graph)
    waits = [len(producers) for producers in graph.producers]
    arrivals = {t: _arrivals(timeline, t) for t, count in enumerate(waits) if count == 0}
    while arrivals:
        chosen: tuple[tuple[float, ...], int, int, float] | None = None
        for task, arrival in arrivals.items():
            ends = []
            for machine, ready in arrival:
                seconds = graph.seconds[task][machine]
                free = timeline.ends[machine][-1] if timeline.ends[machine] else 0.0
                start = ready if ready > free else free
                ends.append((start + seconds, start, machine))
            ends.sort()
            value = look(task, ends)
            if chosen is None or (value, task) < chosen[:2]:
                chosen = value, task, ends[0][2], ends[0][1]
        assert chosen is not None
        _, task, machine, start = chosen
        timeline.put(task, machine, start)
        del arrivals[task]
        for consumer, _ in graph.consumers[task]:
            waits[consumer] -= 1
            if waits[consumer] == 0:
                arrivals[consumer] = _arrivals(timeline, consumer)
    return timeline


def _arrivals(timeline: TaskTimes, task: int) -> list[tuple[int, float]]:
    return [(m, timeline.ready_s(task, m)) for m in timeline.graph.machines[task]]


def min_min(graph: TaskGraph) -> TaskTimes:
    """The ready task that can end first."""
    return dynamic(graph, lambda task, ends: (ends[0][0],))


def max_min(graph: TaskGraph) -> TaskTimes:
    """The ready task whose first possible end is last."""
    return dynamic(graph, lambda task, ends: (-ends[0][0],))


def sufferage(graph: TaskGraph) -> TaskTimes:
    """The ready task that loses most if it does not get its best machine."""

    def look(task: int, ends: Sequence[tuple[float, float, int]]) -> tuple[float, ...]:
        second = ends[1][0] if len(ends) > 1 else inf
        return -(second - ends[0][0]), ends[0][0]

    return dynamic(graph, look)


def etf(graph: TaskGraph) -> TaskTimes:
    """The ready task that can start first; of equals the longer way (Hwang and others, 1989)."""
    ranks = graph.upward_s
    return dynamic(graph, lambda task, ends: (min(one[1] for one in ends), -ranks[task]))


def dls(graph: TaskGraph) -> TaskTimes:
    """The ready task with the highest level less its start: dynamic levels (Sih and Lee, 1993)."""
    ranks = upward_ranks(graph, copies=0.0)
    mean = graph.mean_s
    return dynamic(graph, lambda task, ends: (ends[0][0] - mean[task] - ranks[task],))
