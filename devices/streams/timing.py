"""Times of a device's events on the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

ANCHOR_S = 1.0
"""How old an anchor grows: clocks drift, and CUDA gives times as float32 milliseconds."""
ATTEMPTS = 3
"""Events that an anchor is chosen from: the first one of a queue may take milliseconds."""


class Anchor(NamedTuple):
    """An event of the device and when it happened on the host's clock."""

    event: Any
    host_ns: int


class EventClock:
    """Maps events onto `time.perf_counter_ns`, to within tens of microseconds.

    Work is timed from the anchor that was current when it was submitted, so from an earlier point
    always.

    Parameters
    ----------
    happen : callable
        Has the device reach a new event, with nothing queued before it; waits for it, awake.
    between_ns : callable
        Returns the time between two completed events with timing.
    """

    def __init__(self, happen: Callable[[], Any], between_ns: Callable[[Any, Any], int]) -> None:
        self._happen = happen
        self.between_ns = between_ns
        self.anchor = self._new_anchor()

    def refresh(self) -> None:
        """Replace the anchor when it is old; blocks for as long as an idle device takes."""
        if time.perf_counter_ns() - self.anchor.host_ns > ANCHOR_S * 1e9:
            self.anchor = self._new_anchor()

    def host_ns(self, anchor: Anchor, event: Any) -> int:
        """Return when a completed event with timing happened on the host's clock."""
        return anchor.host_ns + self.between_ns(anchor.event, event)

    def _new_anchor(self) -> Anchor:
        """Return the event of those tried that was waited for least: it is known best when."""
        tried = [self._try() for _ in range(ATTEMPTS)]
        return min(tried, key=lambda attempt: attempt.waited_ns).anchor

    def _try(self) -> _Attempt:
        before_ns = time.perf_counter_ns()
        event = self._happen()
        waited_ns = time.perf_counter_ns() - before_ns
        return _Attempt(waited_ns, Anchor(event, before_ns + waited_ns // 2))


class _Attempt(NamedTuple):
    waited_ns: int
    anchor: Anchor
