"""The driver's side of queues: what each kind of device does for them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..errors import DeviceError, DeviceLostError
from .timing import EventClock


class Backend(Protocol):
    """Streams, and native events in them; only the backend knows what they are."""

    @property
    def timeline(self) -> EventClock:
        """What the times of events mean."""
        ...

    def attach(self) -> None:
        """Prepare the calling thread to wait for events."""
        ...

    def current(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which work is queued on a stream."""
        ...

    def held(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which a stream does nothing of what is queued, until it ends."""
        ...

    def wait_event(self, stream: Any, event: Any) -> None:
        """Hold up what is queued on a current stream from now on until an event has happened."""
        ...

    def record(self, stream: Any, *, timed: bool) -> Any:
        """Return an event that happens when a current stream has done what is queued so far."""
        ...

    def has_happened(self, event: Any) -> bool:
        """Say whether an event has happened; False also where it never will."""
        ...

    def synchronize(self, event: Any) -> None:
        """Block the calling thread until an event has happened."""
        ...

    def give_back(self, event: Any, *, timed: bool) -> None:
        """Take an event that has happened and is not used any more."""
        ...

    def device_error(self, error: Exception) -> DeviceError:
        """Return what an exception means; DeviceLostError where it broke the device."""
        ...

    def lost_error(self, error: Exception) -> DeviceLostError:
        """Return the error of all work on a device after one that broke it."""
        ...
