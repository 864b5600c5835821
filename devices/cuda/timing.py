"""CUDA events: a stock of them, and what their times are on the host's clock."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from .driver import CuPy

ANCHOR_S = 1.0
"""How old an anchor grows: CUDA gives times as float32 milliseconds, so far ones are coarse."""


class EventPool:
    """CUDA events to use again: making them costs, destroying them may block.

    Waiting for one puts the waiting thread to sleep; it does not spin.
    """

    def __init__(self, cupy: CuPy, *, timing: bool) -> None:
        self._cupy = cupy
        self._disable_timing = not timing
        self._free: list[Any] = []

    def record(self, stream: Any) -> Any:
        """Record an event on a stream and return it; the stream's device must be current."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cupy.cuda.Event(block=True, disable_timing=self._disable_timing)
        event.record(stream)
        return event

    def give_back(self, event: Any) -> None:
        """Take an event whose work is done."""
        self._free.append(event)


class Anchor(NamedTuple):
    """A CUDA event and when it happened on the host's clock."""

    event: Any
    host_ns: int


class Timeline:
    """Maps CUDA events onto `time.perf_counter_ns`, to within tens of microseconds.

    Anchors are recorded on a stream of their own, where they never queue behind work. Work is
    timed from the anchor that was current when it was submitted, so from an earlier point always.
    """

    def __init__(self, cupy: CuPy) -> None:
        self._cupy = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.anchor = self._new_anchor()

    def refresh(self) -> None:
        """Replace the anchor when it is old; blocks for as long as an idle device takes."""
        if time.perf_counter_ns() - self.anchor.host_ns > ANCHOR_S * 1e9:
            self.anchor = self._new_anchor()

    def host_ns(self, anchor: Anchor, event: Any) -> int:
        """Return when a completed event with timing happened on the host's clock."""
        return anchor.host_ns + self.between_ns(anchor.event, event)

    def between_ns(self, earlier: Any, later: Any) -> int:
        """Return the time between two completed events with timing."""
        elapsed_ms: float = self._cupy.cuda.get_elapsed_time(earlier, later)
        return round(elapsed_ms * 1e6)

    def _new_anchor(self) -> Anchor:
        event = self._cupy.cuda.Event()  # spins: a thread that sleeps wakes too late
        before_ns = time.perf_counter_ns()
        event.record(self._stream)
        event.synchronize()
        return Anchor(event, (before_ns + time.perf_counter_ns()) // 2)
