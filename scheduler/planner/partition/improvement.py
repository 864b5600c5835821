"""Making a schedule shorter: small changes to the order and the machines, kept when they help.

Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983): a longer schedule is kept
with a chance that falls with its length and with time. Half of the changes go to tasks that hold up
the end. The same seed every time, and a budget of schedules, not of seconds: the result depends on
the problem alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random

from .exact import exact
from .list_scheduling import portfolio
from .tasks import TaskGraph, TaskTimes, decode

HOT, COLD = 0.05, 0.002
"""How much longer a schedule may be, as a share, to be kept at the beginning and at the end."""

MOST_EXACT = 12
"""Up to so many tasks the shortest schedule is searched for."""

EXACT_STATES = 8_000
STARTS = 8


def schedule(graph: TaskGraph, budget: int = 16_000) -> TaskTimes:
    """Return the shortest schedule found: of every list scheduler's, improved.

    About half as many again as `budget` says are tried on the way; none where a search through
    all of them comes to an end.
    """
    ranked = sorted(portfolio(graph).values(), key=lambda timeline: timeline.makespan_s)
    best = ranked[0]
    if graph.n_tasks <= MOST_EXACT:
        best, proven = exact(graph, best, EXACT_STATES)
        if proven:
            return best
    for start in _distinct(ranked)[:STARTS]:
        if best.makespan_s <= graph.bound_s:
            return best
        improved = improve(start, budget // STARTS)
        best = min(best, improved, key=lambda timeline: timeline.makespan_s)
    return improve(best, budget // 2, seed=1)


def improve(start: TaskTimes, budget: int, seed: int = 0) -> TaskTimes:
    """Return a schedule no longer than the one given, after trying `budget` others."""
    graph, random = start.graph, Random(seed)
    order = sorted(range(graph.n_tasks), key=lambda task: (start.start[task], task))
    order = _topological(graph, order)
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


def critical_tasks(timeline: TaskTimes) -> list[int]:
    """Return the tasks of one chain that holds up the end: each waits for the one after it."""
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
            before = _binding(timeline, task)
        task = before
    return found


def _binding(timeline: TaskTimes, task: int) -> int | None:
    """Return the producer whose result comes last."""
    graph, machine = timeline.graph, timeline.machine[task]
    arrivals = [
        (timeline.finish[p] + graph.copy_s(timeline.machine[p], machine, nbytes), p)
        for p, nbytes in graph.producers[task]
    ]
    return max(arrivals)[1] if arrivals else None


def _pick(timeline: TaskTimes, random: Random) -> int:
    if random.random() < 0.5:
        critical = critical_tasks(timeline)
        return critical[random.randrange(len(critical))]
    return random.randrange(timeline.graph.n_tasks)


def _change(
    graph: TaskGraph, order: list[int], machine: list[int], task: int, random: Random
) -> tuple[list[int], list[int]]:
    """Move a task to another machine, elsewhere in the order, or both."""
    what = random.random()
    machines = graph.machines[task]
    if what < 0.6 and len(machines) > 1:
        machine = list(machine)
        other = machines[random.randrange(len(machines) - 1)]
        machine[task] = machines[-1] if other == machine[task] else other
        if what < 0.15:  # with it a neighbour, so that no copy comes between them
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


def _topological(graph: TaskGraph, order: Sequence[int]) -> list[int]:
    """Return the order with every task behind its producers; only tasks of no length move."""
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


def _distinct(ranked: Sequence[TaskTimes]) -> list[TaskTimes]:
    seen: set[tuple[int, ...]] = set()
    found = []
    for timeline in ranked:
        key = tuple(timeline.machine)
        if key not in seen:
            seen.add(key)
            found.append(timeline)
    return found
