"""The driver's side of queues: streams and events of one kind of device, and their times."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from ..errors import DeviceError, DeviceLostError

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


class Backend(Protocol):
    """Operations on a driver's streams and events, both opaque to the queues."""

    @property
    def timeline(self) -> EventClock:
        """The clock that dates events."""

    @property
    def setup(self) -> Any:
        """The stream for work outside of items."""

    def attach(self) -> None:
        """Prepare the calling thread to wait for events."""

    def current(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which `stream` is current."""

    def hold(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which `stream` executes nothing that is queued on it."""

    def wait_event(self, stream: Any, event: Any) -> None:
        """Make later work on `stream`, which is current, wait for `event`."""

    def record(self, stream: Any, *, timed: bool) -> Any:
        """Record an event, with times if `timed`, after the work queued on `stream` so far."""

    def has_happened(self, event: Any) -> bool:
        """Return whether `event` has happened; False also if it cannot happen any more."""

    def synchronize(self, event: Any) -> None: ...

    def recycle(self, event: Any, *, timed: bool) -> None:
        """Recycle `event`, `timed` or not, which has happened and is not used any more."""

    def device_error(self, error: Exception) -> DeviceError:
        """Translate `error`, to a DeviceLostError if it broke the device."""

    def lost_error(self, error: Exception) -> DeviceLostError:
        """Return the error for all work after `error` broke the device."""
