"""Tasks on unlike machines: the abstract problem of a partition, and its schedules.

A task takes a different time on every machine, infinity where it cannot run. Its result reaches a
task on another machine after a copy that costs a latency and its bytes; copies are concurrent. A
machine runs one task at a time. This is the model of the list-scheduling literature (Topcuoglu,
Hariri and Wu, IEEE TPDS 13(3), 2002).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from .ranks import compute_optimistic_costs, compute_upward_ranks

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class TaskGraph:
    seconds: Matrix
    """For every task its time on every machine."""
    producers: Sequence[Sequence[tuple[int, float]]]
    """For every task its producers, and the bytes of each result."""
    latency_s: Matrix
    """For copies from machine to machine; zero on the diagonal."""
    s_per_byte: Matrix
    entry_s: Matrix | None = None
    """For every task and machine the arrival of its other inputs."""
    exit_s: Matrix | None = None
    """For every task and machine the time to copy its results out."""

    @property
    def n_tasks(self) -> int:
        return len(self.seconds)

    @property
    def n_machines(self) -> int:
        return len(self.latency_s)

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """For every task its readers, and the bytes."""
        found: list[list[tuple[int, float]]] = [[] for _ in self.seconds]
        for task, producers in enumerate(self.producers):
            for producer, nbytes in producers:
                found[producer].append((task, nbytes))
        return tuple(map(tuple, found))

    @cached_property
    def machines(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(machine for machine, seconds in enumerate(row) if seconds < inf)
            for row in self.seconds
        )

    @cached_property
    def mean_s(self) -> tuple[float, ...]:
        """For every task its mean time over the machines that can run it."""
        return tuple(
            sum(row[m] for m in machines) / len(machines)
            for row, machines in zip(self.seconds, self.machines, strict=True)
        )

    @cached_property
    def mean_copy(self) -> tuple[float, float]:
        """The mean latency and seconds per byte over all pairs of different machines."""
        pairs = [(a, b) for a in range(self.n_machines) for b in range(self.n_machines) if a != b]
        if not pairs:
            return 0.0, 0.0
        return (
            sum(self.latency_s[a][b] for a, b in pairs) / len(pairs),
            sum(self.s_per_byte[a][b] for a, b in pairs) / len(pairs),
        )

    @cached_property
    def upward_s(self) -> Sequence[float]:
        """For every task the longest way from its start to the end, by mean times."""
        return compute_upward_ranks(self)

    @cached_property
    def optimistic_s(self) -> Matrix:
        """For every task and machine the way to the end if all followers run at their best."""
        return compute_optimistic_costs(self)

    def copy_s(self, source: int, target: int, nbytes: float) -> float:
        if source == target:
            return 0.0
        return self.latency_s[source][target] + nbytes * self.s_per_byte[source][target]

    @cached_property
    def bound_s(self) -> float:
        """A lower bound of any schedule: the longest path of tasks at their fastest."""
        longest: list[float] = []
        for row, producers in zip(self.seconds, self.producers, strict=True):
            # Without copies, on unlimited machines: valid for each assignment.
            longest.append(min(row) + max((longest[p] for p, _ in producers), default=0.0))
        return max(longest, default=0.0)


class Busy:
    """Busy periods of a machine; tasks without a gap between them are one period.

    Thousands of tasks are few periods, so searching for a gap is fast.
    """

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.ends: list[float] = []

    def add(self, start: float, finish: float) -> None:
        begins, ends = self.begins, self.ends
        index = bisect_right(begins, start)
        # Without overlap, at most one period on either side touches it.
        follows = index > 0 and ends[index - 1] >= start
        precedes = index < len(begins) and begins[index] == finish
        if follows and precedes:
            ends[index - 1] = ends.pop(index)
            begins.pop(index)
        elif follows:  # a task of no length may lie within a period
            ends[index - 1] = max(ends[index - 1], finish)
        elif precedes:
            begins[index] = start
        else:
            begins.insert(index, start)
            ends.insert(index, finish)


class TaskTimes:
    """A growing schedule of each machine. Tasks may go into earlier gaps."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.machine = [-1] * graph.n_tasks
        self.start = [0.0] * graph.n_tasks
        self.finish = [0.0] * graph.n_tasks
        self.starts: list[list[float]] = [[] for _ in range(graph.n_machines)]
        self.ends: list[list[float]] = [[] for _ in range(graph.n_machines)]
        self._busy = [Busy() for _ in range(graph.n_machines)]
        self._entry, self._exit = graph.entry_s, graph.exit_s

    def ready_s(self, task: int, machine: int) -> float:
        """Return when all inputs of `task` are on `machine`; its producers are placed."""
        graph, ready = self.graph, self._entry[task][machine] if self._entry else 0.0
        latency, per_byte = graph.latency_s, graph.s_per_byte
        for producer, nbytes in graph.producers[task]:
            source, there = self.machine[producer], self.finish[producer]
            if source != machine:
                there += latency[source][machine] + nbytes * per_byte[source][machine]
            if there > ready:
                ready = there
        return ready

    def slot(self, machine: int, ready: float, seconds: float) -> float:
        ends = self.ends[machine]
        # The most common case: no gap to search.
        if not ends or ready >= ends[-1]:
            return ready
        starts = self.starts[machine]
        if seconds:  # only zero-length tasks fit between two tasks without a gap
            starts, ends = self._busy[machine].begins, self._busy[machine].ends
        start = ready
        for index in range(bisect_left(ends, ready), len(starts)):  # those before end too early
            if start + seconds <= starts[index]:
                return start
            if ends[index] > start:
                start = ends[index]
        return start

    def put(self, task: int, machine: int, start: float) -> None:
        finish = start + self.graph.seconds[task][machine]
        self.machine[task], self.start[task], self.finish[task] = machine, start, finish
        self._busy[machine].add(start, finish)
        ends = self.ends[machine]
        if not ends or start >= ends[-1]:
            self.starts[machine].append(start)
            ends.append(finish)
        else:
            index = bisect_left(self.starts[machine], start)
            while index < len(ends) and ends[index] <= start:  # tasks of no length
                index += 1
            self.starts[machine].insert(index, start)
            ends.insert(index, finish)

    def place(self, task: int, machine: int) -> None:
        ready = self.ready_s(task, machine)
        self.put(task, machine, self.slot(machine, ready, self.graph.seconds[task][machine]))

    def place_best(self, task: int, bias: Sequence[float] | None = None) -> None:
        """Place `task` where it ends first; `bias` is added to its end on each machine."""
        # Ties go to the first end without bias, then to the first machine.
        best, chosen = (inf, inf), (-1, 0.0)
        for machine in self.graph.machines[task]:
            seconds = self.graph.seconds[task][machine]
            start = self.slot(machine, self.ready_s(task, machine), seconds)
            finish = start + seconds
            key = finish + (bias[machine] if bias else 0.0), finish
            if key < best:
                best, chosen = key, (machine, start)
        self.put(task, *chosen)

    @property
    def makespan_s(self) -> float:
        """The time at which the last result is copied out."""
        if self._exit is None:
            return max(self.finish, default=0.0)
        return max(
            (
                finish + out[machine]
                for finish, out, machine in zip(self.finish, self._exit, self.machine, strict=True)
            ),
            default=0.0,
        )


def decode(graph: TaskGraph, order: Sequence[int], machine: Sequence[int]) -> TaskTimes:
    timeline = TaskTimes(graph)
    for task in order:
        if machine[task] < 0:
            timeline.place_best(task)
        else:
            timeline.place(task, machine[task])
    return timeline
