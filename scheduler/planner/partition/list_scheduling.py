"""List schedulers: a rule for which task is next, and a rule for where it goes.

None of them is best everywhere: each is twice as slow as another on some instance (Coleman and
Krishnamachari, "PISA", arXiv 2403.07120). So all are tried. Some look at all ready tasks at every
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

from .ranks import Weigh, by_rank, downward_ranks, upward_ranks
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
    # A critical path that changes machines pays for a copy at each change; on one it pays for none.
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
    # Of equals the first machine, here and below: the same graph is to get the same plan.
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
            # Along the longest way to the end: a path so found is the longest of those that are
            # left.
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
        # Large, not infinite: of two machines that both lack a task, the one that runs the rest
        # better is to win.
        total += min(graph.seconds[task][target], 1e6)
        for other, nbytes in (*graph.producers[task], *graph.consumers[task]):
            # Neighbours that have no machine yet cost nothing: they are peeled off later, and see
            # this one.
            if machine[other] >= 0:
                total += graph.copy_s(machine[other], target, nbytes)
    return total


def _harmonic(values: Sequence[float]) -> float:
    return len(values) / sum(1 / value if value > 0 else inf for value in values)


Look: TypeAlias = Callable[[int, Sequence[tuple[float, float, int]]], tuple[float, ...]]
"""Values a ready task, given (end, start, machine) on each machine, the best first; lowest wins."""


def dynamic(graph: TaskGraph, look: Look) -> TaskTimes:
    """At every step look at all ready tasks on all machines, and place the one valued lowest."""
    timeline = TaskTimes(graph)
    waits = [len(producers) for producers in graph.producers]
    # When data is there does not change once all producers are placed: it is asked for once, though
    # every ready task is looked at in every step.
    arrivals = {t: _arrivals(timeline, t) for t, count in enumerate(waits) if count == 0}
    while arrivals:
        chosen: tuple[tuple[float, ...], int, int, float] | None = None
        for task, arrival in arrivals.items():
            ends = []
            for machine, ready in arrival:
                seconds = graph.seconds[task][machine]
                # Behind all that the machine has; gaps are for the rules that go by rank.
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
        # By falling rank: what depends on a group comes behind all of it, so a task that needs none
        # of the group belongs to it.
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
        # Only moves away from the machine that ends last can shorten the whole.
        last = max(range(len(ends)), key=lambda machine: (ends[machine], -machine))
        for task in queues[last]:
            left = [one for one in queues[last] if one != task]
            choices = [
                (max(end(last, left), end(m, [*queues[m], task])), m)
                for m in graph.machines[task]
                if m != last
            ]
            # By more than rounding, or two machines would hand a task back and forth for ever.
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
