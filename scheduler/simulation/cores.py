"""Cores that lanes share: all that is under way advances at one rate."""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil

from .workload import Host

ROUNDING_NS = 1e-6
"""What sums of shares may be off by."""


class SharedCores:
    """Work on shared cores, counted in the nanoseconds that each piece of it has had so far."""

    def __init__(self, host: Host, lanes: int) -> None:
        self._rate = [host.rate(active) for active in range(lanes + 1)]
        self._active: list[tuple[float, int, int]] = []  # where it ends, order, lane
        self._order = 0
        self._done = 0.0
        self._now = 0

    def begin(self, lane: int, duration_ns: int, now: int) -> None:
        """Let a lane's work begin that takes so long alone."""
        self._advance(now)
        self._order += 1
        heappush(self._active, (self._done + duration_ns, self._order, lane))

    def next_end(self) -> int | None:
        """Return when the next piece of work ends, if none begins before."""
        if not self._active:
            return None
        left = (self._active[0][0] - self._done) / self._rate[len(self._active)]
        return self._now + max(0, ceil(left - ROUNDING_NS))

    def end(self, now: int) -> int:
        """Take the work that ends now away, and return its lane."""
        self._advance(now)
        return heappop(self._active)[2]

    def _advance(self, now: int) -> None:
        self._done += (now - self._now) * self._rate[len(self._active)]
        self._now = now
