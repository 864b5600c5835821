"""Filling from the bottom and ejection in turns: starting points, and their improvement."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from .best import Best, Budget
from .bottom_up import BottomUp, settle
from .cliques import MAX_BLOCKS
from .ejection import Ejection
from .problem import Problem

TURNS = 14
"""Most turns."""

FILLINGS = 2
"""Packings filled from the bottom in the first turn, and added in each later turn."""

EJECTIONS = 1
"""Placements per block after which an ejection without success ends."""

GAP_SHARE = 0.1
"""Fraction of the excess over the target that ejection tries to remove at once."""

FILLING_WORK, SETTLING_WORK = 8, 3
"""Cost of filling per block, and of settling all blocks, in placements of all."""


def take_turns(problem: Problem, best: Best, budget: Budget) -> None:
    """Improve `best` until it is good enough or `budget` is spent; `problem` has no fixed block."""
    turns = _Turns(problem, best, budget)
    for turn in range(TURNS):
        filled = turns.fill(FILLINGS * (turn + 1))
        turns.lower(filled or best.offsets)
        # The filled packing may be worse than the best, which is improved as well.
        if best.offsets is not filled:
            turns.lower(best.offsets)
        if turns.is_done():
            return


class _Turns:
    def __init__(self, problem: Problem, best: Best, budget: Budget) -> None:
        self._problem, self._best, self._budget = problem, best, budget
        self._ejection = Ejection(problem)
        self._fillings: Iterator[list[int]] = iter(())
        if len(problem) <= MAX_BLOCKS:
            self._fillings = BottomUp(problem, best.target).tries()

    def is_done(self) -> bool:
        return self._best.is_good or self._budget.is_over()

    def fill(self, tries: int) -> list[int] | None:
        """Return the best of the next `tries` packings filled from the bottom, if any are left."""
        problem, found = self._problem, []
        for offsets in islice(self._fillings, tries):
            self._budget.spend(FILLING_WORK * len(problem) + SETTLING_WORK * problem.work)
            self._best.offer("filled from the bottom", offsets)
            found.append(offsets)
            if self.is_done():
                break
        return min(found, key=problem.peak, default=None)

    def lower(self, offsets: list[int]) -> None:
        """Eject the top blocks from `offsets` and settle, while that succeeds."""
        problem, budget = self._problem, self._budget
        floor = -(-self._best.target // problem.unit) * problem.unit
        while not self.is_done():
            height = max(map(int.__add__, offsets, problem.sizes))
            if height <= floor:
                return
            step = max(int((height - floor) * GAP_SHARE), 1)
            capacity = max((height - step) // problem.unit * problem.unit, floor)
            found = self._ejection.below(offsets, capacity, EJECTIONS * len(problem), budget)
            if found is None:
                return
            budget.spend(SETTLING_WORK * problem.work)
            offsets = settle(problem, found, budget)
            self._best.offer("lowered by ejection", offsets)
