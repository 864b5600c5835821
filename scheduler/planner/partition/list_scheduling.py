"""List schedulers: a rule for the next task, and a rule for its machine.

None is best everywhere: each is twice as slow as another on some instance (Coleman and
Krishnamachari, "PISA", arXiv 2403.07120), so all are tried. Some compare all ready tasks at every
step, which is good, but slow on wide graphs. HBMCT is a hybrid of ranks and balanced minimum
completion time (Sakellariou and Zhao, IPDPS 2004): tasks in the order of their ranks are cut into
groups that do not depend on each other; in a group each task goes where it is fastest, and then
tasks leave the machine that ends last as long as that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TypeAlias

from .ranks import Weigh, compute_downward_ranks, compute_upward_ranks, sort_by_rank
from .tasks import TaskGraph, TaskTimes, decode

ListScheduler: TypeAlias = Callable[[TaskGraph], TaskTimes]

MOST_CHOICES = 60_000
"""Limit of comparisons for rules that compare all ready tasks at every step."""


def schedule_heft(graph: TaskGraph, weigh: Weigh | None = None, copies: float = 1.0) -> TaskTimes:
    return decode(
        graph, sort_by_rank(compute_upward_ranks(graph, weigh, copies)), [-1] * graph.n_tasks
    )


def schedule_cpop(graph: TaskGraph) -> TaskTimes:
    """Schedule `graph` as HEFT, with the critical path on the machine that runs it fastest."""
    up, down = graph.upward_s, compute_downward_ranks(graph)
    through = [a + b for a, b in zip(up, down, strict=True)]
    longest = max(through, default=0.0)
    critical = {task for task, way in enumerate(through) if way >= longest * (1 - 1e-9)}
    # Each change of machine on the critical path would cost a copy.
    totals = [
        (sum(graph.seconds[task][m] for task in sorted(critical)), m)
        for m in range(graph.n_machines)
    ]
    seconds, machine = min(totals)
    fixed = [machine if seconds < inf and t in critical else -1 for t in range(graph.n_tasks)]
    return decode(graph, sort_by_rank(through, graph), fixed)


def schedule_peft(graph: TaskGraph) -> TaskTimes:
    """Schedule `graph` by optimistic ways (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014)."""
    table = graph.optimistic_s
    ranks = [
        sum(table[task][m] for m in graph.machines[task]) / len(graph.machines[task])
        for task in range(graph.n_tasks)
    ]
    return _place_by_ways(graph, sort_by_rank(ranks, graph))


def schedule_lookahead_heft(graph: TaskGraph) -> TaskTimes:
    """Schedule `graph` in HEFT's order, on the machine with the shortest optimistic way."""
    return _place_by_ways(graph, sort_by_rank(graph.upward_s))


def schedule_bil(graph: TaskGraph) -> TaskTimes:
    """Schedule `graph` by best imaginary levels, the least time to the end (Oh and Ha, 1996)."""
    table = graph.optimistic_s
    ranks = [
        min(table[task][m] + graph.seconds[task][m] for m in graph.machines[task])
        for task in range(graph.n_tasks)
    ]
    return _place_by_ways(graph, sort_by_rank(ranks, graph))


def _place_by_ways(graph: TaskGraph, order: Sequence[int]) -> TaskTimes:
    timeline = TaskTimes(graph)
    for task in order:
        timeline.place_best(task, graph.optimistic_s[task])
    return timeline


def schedule_rigid(graph: TaskGraph) -> TaskTimes:
    """Run every task of `graph` where it alone is fastest, regardless of copies."""
    # The first of equal machines, here and below, so that plans are reproducible.
    fastest = [min((s, m) for m, s in enumerate(row))[1] for row in graph.seconds]
    return decode(graph, sort_by_rank(graph.upward_s), fastest)


def schedule_clusters(graph: TaskGraph) -> TaskTimes:
    """Schedule paths of `graph` as clusters, the longest first, each where it ends first.

    A variant of linear clustering (Kim and Browne, 1988), with clusters assigned one by one.
    """
    ranks = graph.upward_s
    order = sort_by_rank(ranks)
    machine = [-1] * graph.n_tasks
    taken = [False] * graph.n_tasks
    load = [0.0] * graph.n_machines
    for first in order:
        path: list[int] = []
        task: int | None = first
        while task is not None and not taken[task]:
            path.append(task)
            taken[task] = True
            # Following the longest way to the end yields the longest remaining path.
            free = [(ranks[c], -c) for c, _ in graph.consumers[task] if not taken[c]]
            task = -max(free)[1] if free else None
        if path:
            target = min(
                (load[m] + _estimate_path_s(graph, path, machine, m), m)
                for m in range(graph.n_machines)
            )[1]
            for task in path:
                if graph.seconds[task][target] < inf:
                    machine[task] = target
                    load[target] += graph.seconds[task][target]
    return decode(graph, order, machine)


def _estimate_path_s(
    graph: TaskGraph, path: Sequence[int], machine: Sequence[int], target: int
) -> float:
    total = 0.0
    for task in path:
        # Finite, so that two machines which both lack a task compare by the rest.
        total += min(graph.seconds[task][target], 1e6)
        for other, nbytes in (*graph.producers[task], *graph.consumers[task]):
            # Neighbours without a machine cost nothing yet: their own cluster will count the copy.
            if machine[other] >= 0:
                total += graph.copy_s(machine[other], target, nbytes)
    return total


def _average_harmonic(values: Sequence[float]) -> float:
    return len(values) / sum(1 / value if value > 0 else inf for value in values)


Look: TypeAlias = Callable[[int, Sequence[tuple[float, float, int]]], tuple[float, ...]]
"""Rates a ready task, given (end, start, machine) sorted by end; the lowest wins."""


def schedule_dynamic(graph: TaskGraph, look: Look) -> TaskTimes:
    timeline = TaskTimes(graph)
    waits = [len(producers) for producers in graph.producers]
    # Arrivals are constant once all producers are placed: compute them once.
    arrivals = {t: _list_arrivals(timeline, t) for t, count in enumerate(waits) if count == 0}
    while arrivals:
        chosen: tuple[tuple[float, ...], int, int, float] | None = None
        for task, arrival in arrivals.items():
            ends = []
            for machine, ready in arrival:
                seconds = graph.seconds[task][machine]
                # After the machine's last task; only rules by rank use gaps.
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
                arrivals[consumer] = _list_arrivals(timeline, consumer)
    return timeline


def _list_arrivals(timeline: TaskTimes, task: int) -> list[tuple[int, float]]:
    return [(m, timeline.ready_s(task, m)) for m in timeline.graph.machines[task]]


def schedule_min_min(graph: TaskGraph) -> TaskTimes:
    """Schedule first the ready task of `graph` that can end first."""
    return schedule_dynamic(graph, lambda task, ends: (ends[0][0],))


def schedule_max_min(graph: TaskGraph) -> TaskTimes:
    """Schedule first the ready task of `graph` with the latest earliest end."""
    return schedule_dynamic(graph, lambda task, ends: (-ends[0][0],))


def schedule_sufferage(graph: TaskGraph) -> TaskTimes:
    """Schedule first the ready task of `graph` that loses most without its best machine."""

    def look(task: int, ends: Sequence[tuple[float, float, int]]) -> tuple[float, ...]:
        second = ends[1][0] if len(ends) > 1 else inf
        return -(second - ends[0][0]), ends[0][0]

    return schedule_dynamic(graph, look)


def schedule_etf(graph: TaskGraph) -> TaskTimes:
    """Schedule the ready task of `graph` that can start first; longer way first (Hwang, 1989)."""
    ranks = graph.upward_s
    return schedule_dynamic(graph, lambda task, ends: (min(one[1] for one in ends), -ranks[task]))


def schedule_dls(graph: TaskGraph) -> TaskTimes:
    """Schedule `graph` by dynamic levels: highest level less start (Sih and Lee, 1993)."""
    ranks = compute_upward_ranks(graph, copies=0.0)
    mean = graph.mean_s
    return schedule_dynamic(graph, lambda task, ends: (ends[0][0] - mean[task] - ranks[task],))


def schedule_hbmct(graph: TaskGraph) -> TaskTimes:
    """Schedule balanced groups of `graph`, see the module."""
    timeline = TaskTimes(graph)
    for group in _make_groups(graph, sort_by_rank(graph.upward_s)):
        _balance(timeline, group)
    return timeline


def _make_groups(graph: TaskGraph, order: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    inside: set[int] = set()
    for task in order:
        # By falling rank: a task that depends on none of the group belongs to it.
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
        # Only moves away from the machine that ends last shorten the whole.
        last = max(range(len(ends)), key=lambda machine: (ends[machine], -machine))
        for task in queues[last]:
            left = [one for one in queues[last] if one != task]
            choices = [
                (max(end(last, left), end(m, [*queues[m], task])), m)
                for m in graph.machines[task]
                if m != last
            ]
            # By more than rounding, or two machines would exchange a task forever.
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


STATIC: dict[str, ListScheduler] = {
    "HEFT": schedule_heft,
    "HEFT, best times": partial(schedule_heft, weigh=min),
    "HEFT, worst times": partial(schedule_heft, weigh=max),
    "HEFT, harmonic mean": partial(schedule_heft, weigh=_average_harmonic),
    "HEFT, no copies": partial(schedule_heft, copies=0.0),
    "HEFT, dear copies": partial(schedule_heft, copies=3.0),
    "CPOP": schedule_cpop,
    "PEFT": schedule_peft,
    "lookahead HEFT": schedule_lookahead_heft,
    "BIL": schedule_bil,
    "linear clustering": schedule_clusters,
    "each where it is fastest": schedule_rigid,
}
DYNAMIC: dict[str, ListScheduler] = {
    "MinMin": schedule_min_min,
    "MaxMin": schedule_max_min,
    "sufferage": schedule_sufferage,
    "ETF": schedule_etf,
    "DLS": schedule_dls,
    "HBMCT": schedule_hbmct,
}


def run_portfolio(graph: TaskGraph) -> dict[str, TaskTimes]:
    """Return the schedule of `graph` by each rule, by name; slow rules only on small graphs."""
    found = {name: scheduler(graph) for name, scheduler in STATIC.items()}
    if graph.n_tasks * graph.n_machines * _estimate_width(graph) <= MOST_CHOICES:
        found |= {name: scheduler(graph) for name, scheduler in DYNAMIC.items()}
    return found


def _estimate_width(graph: TaskGraph) -> int:
    depth: list[int] = []
    count: dict[int, int] = {}
    for producers in graph.producers:
        depth.append(1 + max((depth[p] for p, _ in producers), default=-1))
        count[depth[-1]] = count.get(depth[-1], 0) + 1
    return max(count.values(), default=0)
