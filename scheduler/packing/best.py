"""The best packing so far, and the budget that is left to find a better one.

Budgets are of counted work, the same on every machine, or of seconds.
"""

from __future__ import annotations

import math
from time import perf_counter

from .problem import Problem


class Best:
    """The best packing so far, and the target.

    `bound` is a lower bound of all packings; any of at most `capacity`, unless None, is good
    enough. `offsets` is empty until the first packing; `peak` and `height` are the end of its last
    block, with exact and with rounded sizes.
    """

    def __init__(self, problem: Problem, bound: int, capacity: int | None) -> None:
        self._problem, self.bound, self.capacity = problem, bound, capacity
        self.offsets: list[int] = []
        self.peak = self.height = (
            sum(problem.sizes)
            + sum(problem.alignments)
            + max([0, *map(int.__add__, problem.fixed, problem.sizes)])
        )
        self.algorithm = ""

    @property
    def target(self) -> int:
        return self.bound if self.capacity is None else max(self.bound, self.capacity)

    @property
    def is_good(self) -> bool:
        """True when the search can end."""
        return bool(self.offsets) and self.peak <= self.target

    def offer(self, algorithm: str, offsets: list[int] | None) -> None:
        if offsets is None:
            return
        peak = self._problem.peak(offsets)
        if peak < self.peak or not self.offsets:
            self.offsets, self.peak, self.algorithm = offsets, peak, algorithm
            self.height = max(map(int.__add__, offsets, self._problem.sizes), default=0)


class Budget:
    """Work and time for a part of the packing, also charged to the `whole`, if that is given.

    The time limit is `seconds`. A unit of `effort`, the limit of work, is the placement of a block
    between a few others, about five microseconds; with it, time is not shared, and decides nothing.
    """

    def __init__(
        self, seconds: float, effort: float | None = None, whole: Budget | None = None
    ) -> None:
        self.deadline = perf_counter() + seconds
        self.is_counted = effort is not None
        self._left = math.inf if effort is None else effort
        self._whole = whole

    def spend(self, work: float) -> None:
        self._left -= work
        if self._whole is not None:
            self._whole.spend(work)

    def is_over(self) -> bool:
        """True when no new work may start."""
        return self._left <= 0 or perf_counter() >= self.deadline

    def left_s(self) -> float:
        return max(self.deadline - perf_counter(), 0.0)

    def part(self, share: float) -> Budget:
        if self.is_counted:
            return Budget(self.left_s(), max(self._left, 0) * share, self)
        return Budget(self.left_s() * share, None, self)
