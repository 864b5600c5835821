"""The shortest schedule of a few tasks by branch and bound, and of many by annealing.

Partial schedules grow by one task at the end of one machine; in every topological order some
partial schedule leads to the best. Branches are cut off if they cannot beat the best known
schedule, or if an earlier one reached the same tasks with no machine and no result later.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from annealing import improve
from plait.scheduler.planner.partition.list_scheduling import run_portfolio
from plait.scheduler.planner.partition.tasks import TaskGraph, TaskTimes

MOST_EXACT = 12
"""Most tasks for which the shortest schedule is searched."""

EXACT_STATES = 8_000
STARTS = 8


def schedule(graph: TaskGraph, budget: int = 16_000) -> TaskTimes:
    """Return the shortest schedule found: the best of the list schedulers', improved.

    About one and a half times `budget` are tried; none if an exact search completes.
    """
    ranked = sorted(run_portfolio(graph).values(), key=lambda timeline: timeline.makespan_s)
    best = ranked[0]
    if graph.n_tasks <= MOST_EXACT:
        best, proven = search_exact(graph, best, EXACT_STATES)
        if proven:
            return best
    for start in _drop_duplicates(ranked)[:STARTS]:
        if best.makespan_s <= graph.bound_s:
            return best
        improved = improve(start, budget // STARTS)
        best = min(best, improved, key=lambda timeline: timeline.makespan_s)
    return improve(best, budget // 2, seed=1)


def search_exact(graph: TaskGraph, known: TaskTimes, most_states: int) -> tuple[TaskTimes, bool]:
    """Return the shortest schedule, and whether it is proven.

    `known` is a schedule to beat; at most `most_states` partial ones are examined.
    """
    search = _Search(graph, known, most_states)
    search.grow(0, 0.0)
    return search.best, search.states <= most_states


class _Search:
    def __init__(self, graph: TaskGraph, known: TaskTimes, most_states: int) -> None:
        self.graph = graph
        self.best = known
        self.length = known.makespan_s
        self.states = 0
        self._most = most_states
        self._n = graph.n_tasks
        self._machine = [-1] * self._n
        self._start = [0.0] * self._n
        self._finish = [0.0] * self._n
        self._free = [0.0] * graph.n_machines
        self._needs = [sum(1 << p for p, _ in producers) for producers in graph.producers]
        self._tails = self._fastest_tails()
        self._fastest = [min(row) for row in graph.seconds]
        self._seen: dict[int, list[tuple[float, ...]]] = {}

    def _fastest_tails(self) -> list[list[float]]:
        """Return for every task and machine the least time from its end there to the end of all."""
        graph = self.graph
        tails = [[0.0] * graph.n_machines for _ in range(self._n)]
        for task in range(self._n - 1, -1, -1):
            for machine in range(graph.n_machines):
                tails[task][machine] = max(
                    (
                        min(
                            graph.copy_s(machine, m, nbytes) + graph.seconds[c][m] + tails[c][m]
                            for m in graph.machines[c]
                        )
                        for c, nbytes in graph.consumers[task]
                    ),
                    default=0.0,
                )
                if graph.exit_s:
                    tails[task][machine] = max(tails[task][machine], graph.exit_s[task][machine])
        return tails

    def grow(self, done: int, length: float) -> None:
        """Extend the partial schedule of the tasks in the bit set `done`."""
        if done == (1 << self._n) - 1:
            self._keep(length)
            return
        self.states += 1
        if self.states > self._most or self._is_dominated(done):
            return
        choices = sorted(self._choices(done))
        for bound, finish, task, machine, start in choices:
            if bound >= self.length * (1 - 1e-12):
                return
            before = self._free[machine]
            self._machine[task], self._start[task] = machine, start
            self._finish[task] = self._free[machine] = finish
            self.grow(done | 1 << task, max(length, bound))
            self._free[machine] = before
            self._machine[task] = -1

    def _choices(self, done: int) -> list[tuple[float, float, int, int, float]]:
        graph, choices = self.graph, []
        left = sum(self._fastest[t] for t in range(self._n) if not done >> t & 1)
        for task in range(self._n):
            if done >> task & 1 or self._needs[task] & ~done:
                continue
            for machine in graph.machines[task]:
                start = max(self._ready(task, machine), self._free[machine])
                finish = start + graph.seconds[task][machine]
                idle = start - self._free[machine]
                load = (sum(self._free) + idle + left) / graph.n_machines
                extra = graph.seconds[task][machine] - self._fastest[task]
                bound = max(finish + self._tails[task][machine], load + extra / graph.n_machines)
                choices.append((bound, finish, task, machine, start))
        return choices

    def _ready(self, task: int, machine: int) -> float:
        graph = self.graph
        ready = graph.entry_s[task][machine] if graph.entry_s else 0.0
        for producer, nbytes in graph.producers[task]:
            there = self._finish[producer] + graph.copy_s(self._machine[producer], machine, nbytes)
            ready = max(ready, there)
        return ready

    def _is_dominated(self, done: int) -> bool:
        """Return whether these tasks were reached before with everything at least as early."""
        state = [*self._free]
        for task in range(self._n):
            if done >> task & 1 and any(not done >> c & 1 for c, _ in self.graph.consumers[task]):
                state += [
                    self._finish[task] + self.graph.copy_s(self._machine[task], m, nbytes)
                    for m in range(self.graph.n_machines)
                    for c, nbytes in self.graph.consumers[task]
                    if not done >> c & 1
                ]
        state.append(
            max(
                (
                    self._finish[t] + self._tails[t][self._machine[t]]
                    for t in range(self._n)
                    if done >> t & 1
                ),
                default=-inf,
            )
        )
        others = self._seen.setdefault(done, [])
        if any(all(a <= b for a, b in zip(one, state, strict=True)) for one in others):
            return True
        others.append(tuple(state))
        return False

    def _keep(self, length: float) -> None:
        timeline = TaskTimes(self.graph)
        for task in sorted(range(self._n), key=lambda t: (self._start[t], self._finish[t], t)):
            timeline.put(task, self._machine[task], self._start[task])
        if timeline.makespan_s < self.length:
            self.best, self.length = timeline, timeline.makespan_s


def _drop_duplicates(ranked: Sequence[TaskTimes]) -> list[TaskTimes]:
    seen: set[tuple[int, ...]] = set()
    found = []
    for timeline in ranked:
        key = tuple(timeline.machine)
        if key not in seen:
            seen.add(key)
            found.append(timeline)
    return found
