"""The best packing so far, and the budget that is left to find a better one.

A budget is of work that is counted, the same on every machine, or of seconds.
"""

from __future__ import annotations

import math
from time import perf_counter

from .problem import Problem


class Best:
    """The best packing so far, and what would be good enough.

    Parameters
    ----------
    problem : Problem
    bound : int
        No packing takes fewer bytes.
    capacity : int or None
        Any packing of so many bytes is good enough.

    Attributes
    ----------
    offsets : list of int
        Empty until there is a packing.
    peak, height : int
        Where its last block ends; the same with sizes rounded up.
    algorithm : str
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
        """How small is small enough."""
        return self.bound if self.capacity is None else max(self.bound, self.capacity)

    @property
    def is_good(self) -> bool:
        """True when there is no need to go on."""
        return bool(self.offsets) and self.peak <= self.target

    def offer(self, algorithm: str, offsets: list[int] | None) -> None:
        """Take a packing if it is better; None is none."""
        if offsets is None:
            return
        peak = self._problem.peak(offsets)
        if peak < self.peak or not self.offsets:
            self.offsets, self.peak, self.algorithm = offsets, peak, algorithm
            self.height = max(map(int.__add__, offsets, self._problem.sizes), default=0)


class Budget:
    """Work and time for a part of the packing, which are also taken from the whole.

    Parameters
    ----------
    seconds : float
        After these it is over.
    effort : float, optional
        So much work too. A unit is the placement of a block between a few others, some five
        microseconds. Where work is counted, time is not shared out: it decides nothing.
    whole : Budget, optional
        What this is a part of.
    """

    def __init__(
        self, seconds: float, effort: float | None = None, whole: Budget | None = None
    ) -> None:
        self.deadline = perf_counter() + seconds
        self.is_counted = effort is not None
        self._left = math.inf if effort is None else effort
        self._whole = whole

    def spend(self, work: float) -> None:
        """Take note of work."""
        self._left -= work
        if self._whole is not None:
            self._whole.spend(work)

    def is_over(self) -> bool:
        """True when nothing more should be begun."""
        return self._left <= 0 or perf_counter() >= self.deadline

    def left_s(self) -> float:
        """Return the seconds left."""
        return max(self.deadline - perf_counter(), 0.0)

    def part(self, share: float) -> Budget:
        """Return a part of what is left."""
        if self.is_counted:
            return Budget(self.left_s(), max(self._left, 0) * share, self)
        return Budget(self.left_s() * share, None, self)
