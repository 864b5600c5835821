"""The rule for binding items to replicas late: if their times on a lane differ enough, or are long.

An item that is bound when it is admitted may queue after a long one while another lane idles. An
item that is bound when a lane is idle does not, but the lane idles until the loop has fed it: for
some hand-overs. In streams of 96 items on 2 to 8 replicas, late binding saves a tenth to a fifth of
the mean deviation from the mean time, for each item. Between these, one item waits for each lane:
it never idles, and a single longer item holds up only one other.
"""

from __future__ import annotations

from .hand_over import LONG, get_hand_over_ns

WORTH = 100
"""Mean deviation, in hand-overs, from which late binding saves more than it costs."""

MEMORY = 16
"""About this number of items is remembered."""


class Unevenness:
    """The mean deviation of a time from its mean, over the last items."""

    def __init__(self) -> None:
        self._mean_ns = self._deviation_ns = 0.0

    def note(self, ns: int) -> None:
        if not self._mean_ns:
            self._mean_ns = ns
        deviation_ns = abs(ns - self._mean_ns)
        self._mean_ns += (ns - self._mean_ns) / MEMORY
        self._deviation_ns += (deviation_ns - self._deviation_ns) / MEMORY

    @property
    def are_unequal(self) -> bool:
        """True if an item is to be bound to an idle lane only."""
        return self._deviation_ns > WORTH * get_hand_over_ns()

    @property
    def is_worth_waiting(self) -> bool:
        """True if at most one item is to wait for a lane, also before any has ended."""
        hand_over_ns = get_hand_over_ns()
        is_short = 0 < self._mean_ns <= LONG * hand_over_ns
        return not is_short or self._deviation_ns > WORTH * hand_over_ns
