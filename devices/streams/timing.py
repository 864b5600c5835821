"""Times of a device's events on the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

ANCHOR_S = 1.0
"""Maximal age of an anchor: clocks drift, and CUDA gives times as float32 milliseconds."""
ATTEMPTS = 3
"""Events tried for an anchor: the first event of a queue may take milliseconds."""


class Anchor(NamedTuple):
    """An event of the device and its time on the host's clock."""

    event: Any
    host_ns: int


class EventClock:
    """Maps events onto `time.perf_counter_ns`, to within tens of microseconds.

    Work is timed from the anchor that was current at its submission, so always from an earlier
    point. `happen` records a new event on an idle queue, and busy-waits for it. `between_ns`
    returns the time between two completed events with timing.
    """

    def __init__(
        self, reach_event: Callable[[], Any], between_ns: Callable[[Any, Any], int]
    ) -> None:
        self._reach_event = reach_event
        self.between_ns = between_ns
        self.anchor = self._new_anchor()

    def refresh(self) -> None:
        """Replace an old anchor; blocks for the time of an event on an idle device."""
        if time.perf_counter_ns() - self.anchor.host_ns > ANCHOR_S * 1e9:
            self.anchor = self._new_anchor()

    def host_ns(self, anchor: Anchor, event: Any) -> int:
        return anchor.host_ns + self.between_ns(anchor.event, event)

    def _new_anchor(self) -> Anchor:
        """Return the anchor with the shortest wait of several: its time is known best."""
        tried = [self._try() for _ in range(ATTEMPTS)]
        return min(tried, key=lambda attempt: attempt.waited_ns).anchor

    def _try(self) -> _Attempt:
        before_ns = time.perf_counter_ns()
        event = self._reach_event()
        waited_ns = time.perf_counter_ns() - before_ns
        return _Attempt(waited_ns, Anchor(event, before_ns + waited_ns // 2))


class _Attempt(NamedTuple):
    waited_ns: int
    anchor: Anchor
