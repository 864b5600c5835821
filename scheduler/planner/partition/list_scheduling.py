"""List schedulers: a rule for which task is next, and a rule for where it goes.

None of them is best everywhere: each is twice as slow as another on some instance (Coleman and
Krishnamachari, "PISA", arXiv 2403.07120). So all are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TypeAlias

from .balancing import hbmct
from .ranks import Weigh, by_rank, downward_ranks, upward_ranks
from .ready_tasks import dls, etf, max_min, min_min, sufferage
from .tasks import TaskGraph, TaskTimes, decode

ListScheduler: TypeAlias = Callable[[TaskGraph], TaskTimes]

MOST_CHOICES = 60_000
"""Rules that look at every ready task at every step are left out where that is more looks."""


def heft(graph: TaskGraph, weigh: Weigh | None = None, copies: float = 1.0) -> TaskTimes:
    """Longest way to the end first, to where it ends first (Topcuoglu and others, 2002)."""
    return decode(graph, by_rank(upward_ranks(graph, weigh, copies)), [-1] * graph.n_tasks)


def cpop(graph: TaskGraph) -> TaskTimes:
    """As HEFT, but the critical path goes to the one machine that runs it fastest."""
    up, down = graph.upward_s, downward_ranks(graph)
    through = [a + b for a, b in zip(up, down, strict=True)]
    longest = max(through, default=0.0)
    critical = {task for task, way in enumerate(through) if way >= longest * (1 - 1e-9)}
    totals = [
        (sum(graph.seconds[task][m] for task in sorted(critical)), m)
        for m in range(graph.n_machines)
    ]
    seconds, machine = min(totals)
    fixed = [machine if seconds < inf and t in critical else -1 for t in range(graph.n_tasks)]
    return decode(graph, by_rank(through, graph), fixed)


def peft(graph: TaskGraph) -> TaskTimes:
    """By a table of optimistic ways to the end (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014)."""
    table = graph.optimistic_s
    ranks = [
        sum(table[task][m] for m in graph.machines[task]) / len(graph.machines[task])
        for task in range(graph.n_tasks)
    ]
    timeline = TaskTimes(graph)
    for task in by_rank(ranks, graph):
        timeline.place_best(task, table[task])
    return timeline


def lookahead_heft(graph: TaskGraph) -> TaskTimes:
    """HEFT's order, but each task goes where the optimistic way to the end is shortest."""
    table = graph.optimistic_s
    timeline = TaskTimes(graph)
    for task in by_rank(graph.upward_s):
        timeline.place_best(task, table[task])
    return timeline


def bil(graph: TaskGraph) -> TaskTimes:
    """By best imaginary levels: what the rest takes from here at best (Oh and Ha, 1996)."""
    table = graph.optimistic_s
    ranks = [
        min(table[task][m] + graph.seconds[task][m] for m in graph.machines[task])
        for task in range(graph.n_tasks)
    ]
    timeline = TaskTimes(graph)
    for task in by_rank(ranks, graph):
        timeline.place_best(task, table[task])
    return timeline


def rigid(graph: TaskGraph) -> TaskTimes:
    """Every task where it alone is fastest, whatever that costs in copies."""
    fastest = [min((s, m) for m, s in enumerate(row))[1] for row in graph.seconds]
    return decode(graph, by_rank(graph.upward_s), fastest)


def single(graph: TaskGraph, machine: int) -> TaskTimes:
    """Everything on one machine, but what cannot run there."""
    wanted = [machine if row[machine] < inf else -1 for row in graph.seconds]
    return decode(graph, by_rank(graph.upward_s), wanted)


def clusters(graph: TaskGraph) -> TaskTimes:
    """Paths are peeled off, the longest first; each goes, as one, to where the whole ends first.

    The idea of linear clustering (Kim and Browne, 1988), with clusters assigned one by one.
    """
    ranks = graph.upward_s
    order = by_rank(ranks)
    machine = [-1] * graph.n_tasks
    taken = [False] * graph.n_tasks
    load = [0.0] * graph.n_machines
    for first in order:
        path: list[int] = []
        task: int | None = first
        while task is not None and not taken[task]:
            path.append(task)
            taken[task] = True
            free = [(ranks[c], -c) for c, _ in graph.consumers[task] if not taken[c]]
            task = -max(free)[1] if free else None
        if path:
            target = min(
                (load[m] + _path_s(graph, path, machine, m), m) for m in range(graph.n_machines)
            )[1]
            for task in path:
                if graph.seconds[task][target] < inf:
                    machine[task] = target
                    load[target] += graph.seconds[task][target]
    return decode(graph, order, machine)


def _path_s(graph: TaskGraph, path: Sequence[int], machine: Sequence[int], target: int) -> float:
    total = 0.0
    for task in path:
        total += min(graph.seconds[task][target], 1e6)
        for other, nbytes in (*graph.producers[task], *graph.consumers[task]):
            if machine[other] >= 0:
                total += graph.copy_s(machine[other], target, nbytes)
    return total


def _harmonic(values: Sequence[float]) -> float:
    return len(values) / sum(1 / value if value > 0 else inf for value in values)


STATIC: dict[str, ListScheduler] = {
    "HEFT": heft,
    "HEFT, best times": partial(heft, weigh=min),
    "HEFT, worst times": partial(heft, weigh=max),
    "HEFT, harmonic mean": partial(heft, weigh=_harmonic),
    "HEFT, no copies": partial(heft, copies=0.0),
    "HEFT, dear copies": partial(heft, copies=3.0),
    "CPOP": cpop,
    "PEFT": peft,
    "lookahead HEFT": lookahead_heft,
    "BIL": bil,
    "linear clustering": clusters,
    "each where it is fastest": rigid,
}
DYNAMIC: dict[str, ListScheduler] = {
    "MinMin": min_min,
    "MaxMin": max_min,
    "sufferage": sufferage,
    "ETF": etf,
    "DLS": dls,
    "HBMCT": hbmct,
}


def portfolio(graph: TaskGraph) -> dict[str, TaskTimes]:
    """Return the schedule of every rule, by name; the slow rules only on graphs of some size."""
    found = {name: scheduler(graph) for name, scheduler in STATIC.items()}
    if graph.n_tasks * graph.n_machines * _width(graph) <= MOST_CHOICES:
        found |= {name: scheduler(graph) for name, scheduler in DYNAMIC.items()}
    return found


def _width(graph: TaskGraph) -> int:
    """Return about how many tasks are ready at once: the largest number of one depth."""
    depth: list[int] = []
    count: dict[int, int] = {}
    for producers in graph.producers:
        depth.append(1 + max((depth[p] for p, _ in producers), default=-1))
        count[depth[-1]] = count.get(depth[-1], 0) + 1
    return max(count.values(), default=0)
