"""HBMCT: groups of tasks that do not depend on each other, balanced over the machines.

A hybrid of ranks and balanced minimum completion time (Sakellariou and Zhao, IPDPS 2004): tasks in
the order of their ranks are cut into groups; in a group each task goes where it is fastest, and
then tasks leave the machine that ends last as long as that helps.
"""

from __future__ import annotations

from collections.abc import Sequence

from .ranks import by_rank
from .tasks import TaskGraph, TaskTimes


def hbmct(graph: TaskGraph) -> TaskTimes:
    """Return the schedule of balanced groups."""
    timeline = TaskTimes(graph)
    for group in _groups(graph, by_rank(graph.upward_s)):
        _balance(timeline, group)
    return timeline


def _groups(graph: TaskGraph, order: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    inside: set[int] = set()
    for task in order:
        if not groups or any(producer in inside for producer, _ in graph.producers[task]):
            groups.append([])
            inside = set()
        groups[-1].append(task)
        inside.add(task)
    return groups


def _balance(timeline: TaskTimes, group: Sequence[int]) -> None:
    graph = timeline.graph
    arrival = {task: {m: timeline.ready_s(task, m) for m in graph.machines[task]} for task in group}
    free = [ends[-1] if ends else 0.0 for ends in timeline.ends]
    queues: list[list[int]] = [[] for _ in free]
    for task in group:
        queues[min((graph.seconds[task][m], m) for m in graph.machines[task])[1]].append(task)

    def end(machine: int, tasks: Sequence[int]) -> float:
        now = free[machine]
        for task in sorted(tasks, key=lambda task: (arrival[task][machine], task)):
            now = max(now, arrival[task][machine]) + graph.seconds[task][machine]
        return now

    ends = [end(machine, tasks) for machine, tasks in enumerate(queues)]
    moving = True
    while moving:
        moving = False
        last = max(range(len(ends)), key=lambda machine: (ends[machine], -machine))
        for task in queues[last]:
            left = [one for one in queues[last] if one != task]
            choices = [
                (max(end(last, left), end(m, [*queues[m], task])), m)
                for m in graph.machines[task]
                if m != last
            ]
            if choices and min(choices)[0] < ends[last] * (1 - 1e-12):
                target = min(choices)[1]
                queues[last] = left
                queues[target].append(task)
                ends[last], ends[target] = end(last, left), end(target, queues[target])
                moving = True
                break
    for machine, tasks in enumerate(queues):
        for task in sorted(tasks, key=lambda task: (arrival[task][machine], task)):
            timeline.place(task, machine)
