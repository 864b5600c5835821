"""Schedules of tasks on unlike machines: valid, short, and the same every time."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf
from random import Random

import pytest
from annealing import find_critical_tasks, improve
from plait.scheduler.planner.partition.list_scheduling import (
    DYNAMIC,
    STATIC,
    run_portfolio,
    schedule_heft,
)
from plait.scheduler.planner.partition.tasks import Busy, TaskGraph, TaskTimes
from shortest_schedules import schedule, search_exact

RULES = {**STATIC, **DYNAMIC}


def drawn(seed: int, n_tasks: int, count: int, *, lacks: bool = True) -> TaskGraph:
    random = Random(seed)
    dense = random.uniform(0.05, 0.5)
    copies = 10 ** random.uniform(-1, 1)
    speeds = [random.uniform(0.2, 2) for _ in range(count)]
    seconds = [
        [random.choice((0.0, *[random.uniform(0.1, 1)] * 9)) / speed for speed in speeds]
        for _ in range(n_tasks)
    ]
    if lacks:
        seconds = [
            [value if not m or random.random() < 0.8 else inf for m, value in enumerate(row)]
            for row in seconds
        ]
    producers = [
        [(p, random.uniform(0, 1)) for p in range(task) if random.random() < dense]
        for task in range(n_tasks)
    ]
    other = range(count)
    return TaskGraph(
        seconds,
        producers,
        [[0.0 if a == b else 0.1 * copies for b in other] for a in other],
        [[0.0 if a == b else copies * random.uniform(0.5, 2) for b in other] for a in other],
        [[random.choice((0.0, 0.3)) for _ in other] for _ in range(n_tasks)],
        [[random.choice((0.0, 0.3)) for _ in other] for _ in range(n_tasks)],
    )


def check(timeline: TaskTimes) -> None:
    """Assert that a schedule has every task once, where and when it can run."""
    graph = timeline.graph
    for task, machine in enumerate(timeline.machine):
        assert graph.seconds[task][machine] < inf
        assert timeline.start[task] >= timeline.ready_s(task, machine) - 1e-9
        length = timeline.finish[task] - timeline.start[task]
        assert length == pytest.approx(graph.seconds[task][machine])
    for machine in range(graph.n_machines):
        ran = [task for task, on in enumerate(timeline.machine) if on == machine]
        spans = sorted((timeline.start[task], timeline.finish[task]) for task in ran)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))
    assert timeline.makespan_s >= graph.bound_s - 1e-9


@pytest.mark.parametrize("name", RULES)
def test_every_rule_makes_valid_schedules(name: str) -> None:
    for seed in range(30):
        check(RULES[name](drawn(seed, 1 + seed, 1 + seed % 4)))


def test_local_search_never_makes_a_schedule_longer() -> None:
    for seed in range(10):
        start = schedule_heft(drawn(seed, 25, 3))
        improved = improve(start, 100)
        check(improved)
        assert improved.makespan_s <= start.makespan_s


def test_the_search_is_never_worse_than_any_rule_nor_than_one_machine() -> None:
    for seed in range(10):
        graph = drawn(seed, 20, 3, lacks=False)
        found = schedule(graph, 200)
        check(found)
        rules = [one.makespan_s for one in run_portfolio(graph).values()]
        single = [sum(row[machine] for row in graph.seconds) for machine in range(3)]
        assert found.makespan_s <= min(*rules, *single) + 1e-9


def first_gap(timeline: TaskTimes, machine: int, ready: float, seconds: float) -> float:
    """Return the earliest start, by a look at every task."""
    start = ready
    for began, ended in zip(timeline.starts[machine], timeline.ends[machine], strict=True):
        if ended >= ready:
            if start + seconds <= began:
                return start
            start = max(start, ended)
    return start


@pytest.mark.parametrize("seed", range(40))
def test_tasks_go_into_the_first_gap_that_is_long_enough(seed: int) -> None:
    random = Random(seed)
    tasks = TaskGraph(
        [[random.choice((0.0, 1.0, 2.0, 3.0))] for _ in range(80)], [()] * 80, [[0]], [[0]]
    )
    timeline = TaskTimes(tasks)
    for task, (seconds,) in enumerate(tasks.seconds):
        ready = float(random.randrange(100))
        start = timeline.slot(0, ready, seconds)
        assert start == first_gap(timeline, 0, ready, seconds)
        timeline.put(task, 0, start)
    check(timeline)


def test_tasks_without_gaps_between_them_are_one_period() -> None:
    busy = Busy()
    for start in (4, 0, 2, 8, 6):
        busy.add(start, start + 2)
        busy.add(start, start)
    assert (busy.begins, busy.ends) == ([0], [10])


def test_the_same_problem_has_the_same_schedule() -> None:
    first, second = (schedule(drawn(3, 18, 3), 300) for _ in range(2))
    assert (first.machine, first.start) == (second.machine, second.start)


def by_trying_everything(graph: TaskGraph) -> float:
    """Return the length of the shortest of all schedules."""

    def orders(left: frozenset[int], before: tuple[int, ...]) -> list[tuple[int, ...]]:
        if not left:
            return [before]
        free = [t for t in left if not any(p in left for p, _ in graph.producers[t])]
        return [one for t in free for one in orders(left - {t}, (*before, t))]

    best = inf
    for order in orders(frozenset(range(graph.n_tasks)), ()):
        for machines in product(*graph.machines):
            timeline = TaskTimes(graph)
            for task in order:
                machine = machines[task]
                free = timeline.ends[machine][-1] if timeline.ends[machine] else 0.0
                timeline.put(task, machine, max(free, timeline.ready_s(task, machine)))
            best = min(best, timeline.makespan_s)
    return best


@pytest.mark.parametrize("seed", range(15))
def test_the_exact_search_finds_the_shortest_of_all_schedules(seed: int) -> None:
    graph = drawn(seed, 4, 2 + seed % 2)
    found, proven = search_exact(graph, schedule_heft(graph), 100_000)
    check(found)
    assert proven
    assert found.makespan_s == pytest.approx(by_trying_everything(graph))


def test_the_gap_to_the_shortest_schedule_is_small() -> None:
    gaps = []
    for seed in range(20):
        graph = drawn(seed, 8, 2)
        listed = min(run_portfolio(graph).values(), key=lambda one: one.makespan_s)
        shortest, proven = search_exact(graph, listed, 20_000)
        assert proven
        gaps.append(improve(listed, 300).makespan_s / shortest.makespan_s - 1)
    assert sorted(gaps)[10] <= 0.01
    assert max(gaps) <= 0.1


def test_a_search_that_is_cut_short_says_so() -> None:
    graph = drawn(1, 12, 3)
    found, proven = search_exact(graph, schedule_heft(graph), 5)
    assert not proven
    assert found.makespan_s <= schedule_heft(graph).makespan_s


def test_critical_tasks_lead_without_a_gap_to_the_end() -> None:
    graph = TaskGraph(
        [[1.0, 9.0], [2.0, 9.0], [9.0, 1.0]],
        [[], [(0, 1.0)], []],
        [[0, 0], [0, 0]],
        [[0, 1], [1, 0]],
    )
    assert find_critical_tasks(schedule_heft(graph)) == [1, 0]


def test_tasks_go_into_gaps() -> None:
    graph = TaskGraph([[1.0], [1.0], [2.0]], [[], [], []], [[0.0]], [[0.0]])
    timeline = TaskTimes(graph)
    timeline.put(0, 0, 0.0)
    timeline.put(1, 0, 3.0)
    timeline.place(2, 0)
    assert timeline.start[2] == 1.0
