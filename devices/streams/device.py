"""The base of devices that queue work on streams; memory and programs are left to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ..device import OnDone, Program
from ..errors import DeviceLostError
from ..event import Event
from .queues import Queues, closed_error


class Opened(Protocol):
    """What there is only while a device is open."""

    @property
    def queues(self) -> Queues:
        """Its queues."""
        ...


OpenedT = TypeVar("OpenedT", bound=Opened)


class QueuedDevice(Generic[OpenedT]):
    """The part of a device that is its life, and what its queues do.

    Subclasses set and clear `_open`, holding `_life`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.on_failure: list[Callable[[], object]] = []
        self._life = threading.Lock()  # one open or close at a time
        self._open: OpenedT | None = None

    @property
    def failure(self) -> DeviceLostError | None:
        """The error that broke the device."""
        opened = self._open
        return None if opened is None else opened.queues.failure

    @property
    def can_restart(self) -> bool:
        """False: after such an error the device works again for other processes, if at all."""
        return False

    def kill(self, event: Event, reason: str) -> bool:
        """Do nothing, and say so: what is queued cannot be ended."""
        return False

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue on the compute stream."""
        return self._opened().queues.submit(program, waits, on_done)

    def _opened(self) -> OpenedT:
        if self._open is None:
            raise closed_error(self.name)
        return self._open
