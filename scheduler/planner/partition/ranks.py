"""Ranks: distances from a task to the end, or from the beginning, and resulting orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .tasks import TaskGraph

Weigh: TypeAlias = Callable[[Sequence[float]], float]
"""Combines the times of a task on the machines that can run it."""


def compute_upward_ranks(
    graph: TaskGraph, weigh: Weigh | None = None, copies: float = 1.0
) -> list[float]:
    latency, per_byte = graph.mean_copy
    ranks = [0.0] * graph.n_tasks
    for task in range(graph.n_tasks - 1, -1, -1):
        after = 0.0
        for consumer, nbytes in graph.consumers[task]:
            way = ranks[consumer] + copies * (latency + nbytes * per_byte)
            after = way if way > after else after
        ranks[task] = after + _weigh(graph, task, weigh)
    return ranks


def compute_downward_ranks(graph: TaskGraph) -> list[float]:
    """Return the longest way from the beginning to each task of `graph`, by mean times."""
    latency, per_byte = graph.mean_copy
    ranks: list[float] = []
    for producers in graph.producers:
        ranks.append(
            max(
                (ranks[p] + graph.mean_s[p] + latency + n * per_byte for p, n in producers),
                default=0.0,
            )
        )
    return ranks


def compute_optimistic_costs(graph: TaskGraph) -> list[list[float]]:
    """Return by task and machine the way to the end of `graph` if followers run at their best."""
    machines, latency, per_byte = range(graph.n_machines), graph.latency_s, graph.s_per_byte
    table = [[0.0] * graph.n_machines for _ in range(graph.n_tasks)]
    for task in range(graph.n_tasks - 1, -1, -1):
        row = table[task]
        if graph.exit_s:
            row[:] = graph.exit_s[task]
        for consumer, nbytes in graph.consumers[task]:
            after, seconds = table[consumer], graph.seconds[consumer]
            ends = [(there, after[there] + seconds[there]) for there in graph.machines[consumer]]
            for here in machines:
                slow, slower = latency[here], per_byte[here]
                best = min([end + (slow[there] + nbytes * slower[there]) for there, end in ends])
                row[here] = max(row[here], best)
    return table


def sort_by_rank(ranks: Sequence[float], graph: TaskGraph | None = None) -> list[int]:
    """Sort tasks by falling rank, and after their producers if `graph` is given.

    Upward ranks fall along every edge, so that sorting alone keeps that order.
    """
    if graph is None:
        return sorted(range(len(ranks)), key=lambda task: (-ranks[task], task))
    return list(_sort_by_priority(graph, lambda task: -ranks[task]))


def _sort_by_priority(graph: TaskGraph, key: Callable[[int], float]) -> Iterator[int]:
    waits = [len(producers) for producers in graph.producers]
    ready = [(key(task), task) for task, count in enumerate(waits) if count == 0]
    heapify(ready)
    while ready:
        _, task = heappop(ready)
        yield task
        for consumer, _ in graph.consumers[task]:
            waits[consumer] -= 1
            if waits[consumer] == 0:
                heappush(ready, (key(consumer), consumer))


def _weigh(graph: TaskGraph, task: int, weigh: Weigh | None) -> float:
    if weigh is None:
        return graph.mean_s[task]
    return weigh([graph.seconds[task][m] for m in graph.machines[task]])
