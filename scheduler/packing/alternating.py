"""Filling from the bottom and ejection in turns: one finds new beginnings, the other goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from .best import Best, Budget
from .bottom_up import BottomUp
from .cliques import MAX_BLOCKS
from .ejection import Ejection
from .justify import settled
from .problem import Problem

TURNS = 14
"""So many at most, if there is time."""

FILLINGS = 2
"""So many packings are filled from the bottom in the first turn, then as many more in each."""

EJECTIONS = 1
"""So many times as many placements as there are blocks end an ejection that leads to nothing."""

GAP_SHARE = 0.1
"""The part of what is above the target that ejection tries to take off at once."""

FILLING_WORK, SETTLING_WORK = 8, 3
"""What filling costs per block, and what letting all rise and sink does, in placements of all."""


def take_turns(problem: Problem, best: Best, budget: Budget) -> None:
    """Improve the best until it is good enough, or the budget spent; no block may be fixed."""
    turns = _Turns(problem, best, budget)
    for turn in range(TURNS):
        filled = turns.fill(FILLINGS * (turn + 1))
        turns.lower(filled or best.offsets)
        # What was filled is not always as good: the best so far gets its turn too.
        if best.offsets is not filled:
            turns.lower(best.offsets)
        if turns.is_over():
            return


class _Turns:
    def __init__(self, problem: Problem, best: Best, budget: Budget) -> None:
        self._problem, self._best, self._budget = problem, best, budget
        self._ejection = Ejection(problem)
        self._fillings: Iterator[list[int]] = iter(())
        if len(problem) <= MAX_BLOCKS:
            self._fillings = BottomUp(problem, best.target).tries()

    def is_over(self) -> bool:
        return self._best.is_good or self._budget.is_over()

    def fill(self, tries: int) -> list[int] | None:
        """Return the best of some packings filled from the bottom."""
        problem, found = self._problem, []
        for offsets in islice(self._fillings, tries):
            self._budget.spend(FILLING_WORK * len(problem) + SETTLING_WORK * problem.work)
            self._best.offer("filled from the bottom", offsets)
            found.append(offsets)
            if self.is_over():
                break
        return min(found, key=problem.peak, default=None)

    def lower(self, offsets: list[int]) -> None:
        """Push out what is on top, and settle, for as long as that succeeds."""
        problem, budget = self._problem, self._budget
        floor = -(-self._best.target // problem.unit) * problem.unit
        while not self.is_over():
            height = max(map(int.__add__, offsets, problem.sizes))
            if height <= floor:
                return
            step = max(int((height - floor) * GAP_SHARE), 1)
            capacity = max((height - step) // problem.unit * problem.unit, floor)
            found = self._ejection.below(offsets, capacity, EJECTIONS * len(problem), budget)
            if found is None:
                return
            budget.spend(SETTLING_WORK * problem.work)
            offsets = settled(problem, found, budget)
            self._best.offer("lowered by ejection", offsets)
