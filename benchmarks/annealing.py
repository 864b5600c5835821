"""Simulated annealing of schedules: changes to the order and the machines.

A longer schedule is kept with a probability that falls with its length and with time (Kirkpatrick,
Gelatt and Vecchi, Science 220, 1983). Half of the changes go to critical tasks. The seed is fixed
and the budget counts schedules, not seconds, so the result depends on the problem alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random

from plait.scheduler.planner.partition.tasks import TaskGraph, TaskTimes, decode

HOT, COLD = 0.05, 0.002
"""Acceptable excess of a schedule's length, as a share, at the beginning and at the end."""


def improve(start: TaskTimes, budget: int, seed: int = 0) -> TaskTimes:
    graph, random = start.graph, Random(seed)
    order = sorted(range(graph.n_tasks), key=lambda task: (start.start[task], task))
    order = _sort_topologically(graph, order)
    machine = list(start.machine)
    current = decode(graph, order, machine)
    if start.makespan_s < current.makespan_s:
        current = start
    best = current
    length = current.makespan_s
    for step in range(budget):
        if best.makespan_s <= graph.bound_s:
            break
        task = _pick(current, random)
        changed_order, changed = _change(graph, order, machine, task, random)
        candidate = decode(graph, changed_order, changed)
        warmth = best.makespan_s * HOT * (COLD / HOT) ** (step / budget)
        if candidate.makespan_s <= length - warmth * log(1.0 - random.random()):
            current, order, machine = candidate, changed_order, list(candidate.machine)
            length = candidate.makespan_s
            if length < best.makespan_s:
                best = candidate
    return best


def find_critical_tasks(timeline: TaskTimes) -> list[int]:
    """Return the tasks of one chain that determines the end of `timeline`, last to first."""
    graph = timeline.graph
    if not graph.n_tasks:
        return []
    task: int | None = max(range(graph.n_tasks), key=lambda t: (timeline.finish[t], t))
    ended = {
        (timeline.machine[t], timeline.finish[t]): t
        for t in range(graph.n_tasks)
        if timeline.finish[t] > timeline.start[t]
    }
    found: list[int] = []
    while task is not None:
        found.append(task)
        machine, start = timeline.machine[task], timeline.start[task]
        before = ended.get((machine, start))
        if before is None or before in found:
            before = _find_binding(timeline, task)
        task = before
    return found


def _find_binding(timeline: TaskTimes, task: int) -> int | None:
    graph, machine = timeline.graph, timeline.machine[task]
    arrivals = [
        (timeline.finish[p] + graph.copy_s(timeline.machine[p], machine, nbytes), p)
        for p, nbytes in graph.producers[task]
    ]
    return max(arrivals)[1] if arrivals else None


def _pick(timeline: TaskTimes, random: Random) -> int:
    if random.random() < 0.5:
        critical = find_critical_tasks(timeline)
        return critical[random.randrange(len(critical))]
    return random.randrange(timeline.graph.n_tasks)


def _change(
    graph: TaskGraph, order: list[int], machine: list[int], task: int, random: Random
) -> tuple[list[int], list[int]]:
    what = random.random()
    machines = graph.machines[task]
    if what < 0.6 and len(machines) > 1:
        machine = list(machine)
        other = machines[random.randrange(len(machines) - 1)]
        machine[task] = machines[-1] if other == machine[task] else other
        if what < 0.15:  # with a neighbour, to avoid a copy between them
            neighbours = (*graph.producers[task], *graph.consumers[task])
            if neighbours:
                near = neighbours[random.randrange(len(neighbours))][0]
                if machine[task] in graph.machines[near]:
                    machine[near] = machine[task]
        if what > 0.3:
            return order, machine
    place = {one: index for index, one in enumerate(order)}
    low = 1 + max((place[p] for p, _ in graph.producers[task]), default=-1)
    high = min((place[c] for c, _ in graph.consumers[task]), default=len(order)) - 1
    target = random.randint(low, high)
    order = [one for one in order if one != task]
    order.insert(target, task)
    return order, machine


def _sort_topologically(graph: TaskGraph, order: Sequence[int]) -> list[int]:
    """Sort tasks of `graph` in `order` after their producers; only those of no length move."""
    placed = [False] * graph.n_tasks
    result: list[int] = []

    def visit(first: int) -> None:
        stack = [first]
        while stack:
            task = stack[-1]
            missing = [p for p, _ in graph.producers[task] if not placed[p]]
            if placed[task] or not missing:
                stack.pop()
                if not placed[task]:
                    placed[task] = True
                    result.append(task)
            else:
                stack += missing

    for task in order:
        visit(task)
    return result
