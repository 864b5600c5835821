"""The best packing so far."""

from __future__ import annotations

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
