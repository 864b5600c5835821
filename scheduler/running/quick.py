"""Which steps are over sooner than another thread would be awake.

A step on a device of this process may run on any of its threads. Where that takes less time than to
wake the thread of the device's lane, whoever made the step ready runs it at once. How long a step
takes is what it took lately; a prediction only says how often it has to be seen to be quick.
"""

from __future__ import annotations

from collections.abc import Sequence

QUICK_NS = 20_000
"""Waking a thread takes about as long."""

MOST_NS = 2_000_000
"""A run counts for no more than that: one that was held up by others should be forgotten again."""

MEMORY = 8
"""About so many runs are remembered."""


class Estimates:
    """How long each step of an open plan takes lately; used by any thread.

    A run that is noted by two threads at once may be lost, which does no harm.

    Parameters
    ----------
    seconds : sequence of float
        What is predicted. Every step has to be quick at least once before it is taken for quick.
    """

    __slots__ = ("_ns",)

    def __init__(self, seconds: Sequence[float]) -> None:
        least = QUICK_NS + QUICK_NS // MEMORY
        self._ns = [min(max(round(one * 1e9), least), MOST_NS) for one in seconds]

    def note(self, step: int, ns: int) -> None:
        """Take note of how long a run took."""
        self._ns[step] += (min(ns, MOST_NS) - self._ns[step]) // MEMORY

    def is_quick(self, step: int) -> bool:
        """True when a step is likely to be over sooner than another thread would be awake."""
        return self._ns[step] < QUICK_NS
