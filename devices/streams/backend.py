"""The driver's side of queues: streams and events of one kind of device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..errors import DeviceError, DeviceLostError
from .timing import EventClock


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
