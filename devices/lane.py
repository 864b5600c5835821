"""A lane on a thread: an in-order queue of work, one piece at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np

from .errors import DeviceUnavailableError
from .event import Event


class ThreadLane:
    """Runs submitted work in order on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Event, Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread; a daemon, so that a killed program ends."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def put(self, event: Event, work: Callable[[], Any]) -> None:
        """Queue work; its event completes on the lane's thread."""
        if self._thread is None:
            raise DeviceUnavailableError(f"lane {self._name!r} is closed", fix="open its device")
        self._queue.put((event, work))

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        # Infinities and NaNs are values here, as in ONNX; numpy's setting is per thread.
        with np.errstate(all="ignore"):
            while (item := self._queue.get()) is not None:
                event, work = item
                event.run(work)
                # Drop the references before the next wait: they pin arrays and results.
                del item, event, work
