"""The base of devices that queue work on streams; subclasses add memory and programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ..device import OnDone, Program
from ..errors import DeviceLostError
from ..event import Event
from .queues import Queues, closed_error


class Opened(Protocol):
    @property
    def queues(self) -> Queues: ...


OpenedT = TypeVar("OpenedT", bound=Opened)


class QueuedDevice(Generic[OpenedT]):
    """Life cycle, failures and submission of a device with queues.

    Subclasses set and clear `_open` while they hold `_life`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.on_failure: list[Callable[[], object]] = []
        self._life = threading.Lock()  # one open or close at a time
        self._open: OpenedT | None = None

    @property
    def failure(self) -> DeviceLostError | None:
        opened = self._open
        return None if opened is None else opened.queues.failure

    @property
    def can_restart(self) -> bool:
        """False: the process cannot use the device again after such an error."""
        return False

    def kill(self, event: Event, reason: str) -> bool:
        return False

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        return self._get_open().queues.submit(program, waits, on_done)

    def _get_open(self) -> OpenedT:
        if self._open is None:
            raise closed_error(self.name)
        return self._open
