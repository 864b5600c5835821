"""Engines: in-order queues of work with modelled durations."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..device import OnDone
from ..errors import DeviceLostError
from ..event import CancelledWorkError, Event
from .clock import Clock


class SimEvent(Event):
    """An event that moves a virtual clock while a thread waits for it."""

    def __init__(self, clock: Clock, on_done: OnDone | None) -> None:
        super().__init__(on_done)
        self._clock = clock

    def wait(self, timeout_s: float | None = None) -> None:
        self._clock.hasten(lambda: self.done)
        super().wait(timeout_s)


@dataclass(slots=True)
class SimulatedJob:
    """A piece of work, its waits and its duration."""

    event: Event
    work: Callable[[], Any]
    duration_ns: int
    waits: tuple[Event, ...]
    submitted_ns: int = 0


class SimulatedEngine:
    """Starts each job when the previous one has ended and its waits are complete.

    The work itself runs when the modelled time is over. `lost` returns the error of a lost device,
    or None; jobs that are incomplete by then fail.
    """

    def __init__(self, clock: Clock, lost: Callable[[], DeviceLostError | None]) -> None:
        self._clock = clock
        self._lost = lost
        self._lock = threading.Lock()
        self._jobs: deque[SimulatedJob] = deque()
        self._is_running = False
        self._free_ns = 0
        self._last: Event | None = None

    @property
    def is_drained(self) -> bool:
        return self._last is None or self._last.done

    def drain(self) -> None:
        """Wait for the last queued job; its errors belong to the caller that queued it."""
        if self._last is not None:
            with suppress(Exception):
                self._last.wait()

    def put(self, job: SimulatedJob) -> None:
        with self._lock:
            self._jobs.append(job)
            self._last = job.event
        for wait in job.waits:
            if not wait.done:
                wait.on_done(self._start)
        self._start()

    def _start(self, _: Event | None = None) -> None:
        with self._lock:
            if self._is_running or not self._jobs:
                return
            if not all(wait.done for wait in self._jobs[0].waits):
                return
            job = self._jobs.popleft()
            self._is_running = True
        waited_ns = max((wait.ended_ns for wait in job.waits), default=0)
        job.event.started_ns = max(self._free_ns, job.submitted_ns, waited_ns)
        refusal = self._refusal(job)
        ended_ns = job.event.started_ns + (job.duration_ns if refusal is None else 0)
        self._clock.call_at(ended_ns, partial(self._finish, job, ended_ns, refusal))

    def _refusal(self, job: SimulatedJob) -> BaseException | None:
        failed = next((wait.error for wait in job.waits if wait.error is not None), None)
        if failed is not None:
            return failed
        if job.event.cancelled:
            return CancelledWorkError("the work was cancelled before it started")
        return self._lost()

    def _finish(self, job: SimulatedJob, ended_ns: int, refusal: BaseException | None) -> None:
        error = refusal or self._lost() or _try(job.work)
        self._free_ns = job.event.ended_ns = ended_ns
        with self._lock:
            self._is_running = False
        job.event.complete(error)
        self._start()


def _try(work: Callable[[], Any]) -> Exception | None:
    try:
        with np.errstate(all="ignore"):
            work()
    except Exception as error:
        return error
    return None
