"""CUDA events: a stock of them, and the times between them."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..streams.timing import Timeline
from .driver import CuPy


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


def timeline(cupy: CuPy) -> Timeline:
    """Return a timeline of the current device.

    Anchors are recorded on a stream of their own, where they never queue behind work.
    """
    stream = cupy.cuda.Stream(non_blocking=True)
    return Timeline(partial(_happen, cupy, stream), partial(_between_ns, cupy))


def _happen(cupy: CuPy, stream: Any) -> Any:
    event = cupy.cuda.Event()  # spins: a thread that sleeps wakes too late
    event.record(stream)
    event.synchronize()
    return event


def _between_ns(cupy: CuPy, earlier: Any, later: Any) -> int:
    elapsed_ms: float = cupy.cuda.get_elapsed_time(earlier, later)
    return round(elapsed_ms * 1e6)
