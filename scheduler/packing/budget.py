"""A budget of work that is counted, the same on every machine, or of seconds."""

from __future__ import annotations

import math
from time import perf_counter


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
