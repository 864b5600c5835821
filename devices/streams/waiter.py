"""Waiters: one thread per stream that completes events in the order the stream reaches them.

One thread for all streams would see a download end only after the longer kernels that were
submitted before it. Host callbacks and polling are no way out: callbacks run Python on the driver's
thread and hold up the stream, and a poll cannot tell a failed event from one that is under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from ..event import Event
from .backend import Backend
from .timing import Anchor


@dataclass(slots=True)
class StreamJob:
    """What was queued on a stream, and what is to be done when the stream gets there.

    Attributes
    ----------
    event : Event
    waits : tuple of Event
        Complete before `event` is: a callback must never see effects before causes.
    held : object
        What must live until then.
    land : callable, optional
        The host's part of the work, done after the device's.
    check : callable, optional
        Returns what went wrong in the work although the device did all of it.
    error : Exception or None
        Why it was not queued, or not all of it.
    end : native event or None
        Recorded behind the work; None when nothing was queued.
    start, anchor, marks
        Native events before the work and behind each node, where times were asked for.
    """

    event: Event
    waits: tuple[Event, ...]
    held: Any
    land: Callable[[], Any] | None = None
    check: Callable[[], BaseException | None] | None = None
    error: BaseException | None = None
    end: Any = None
    start: Any = None
    anchor: Anchor | None = None
    marks: dict[str, Any] = field(default_factory=dict)


class StreamLane:
    """A stream, and the thread that waits for it.

    Parameters
    ----------
    name : str
    stream : stream of the backend
    backend : Backend
    lose : callable
        Called when waiting failed, with what it raised; returns what work fails with from now on.
    ended : callable
        Called with each job after its event is complete.
    """

    def __init__(
        self,
        name: str,
        stream: Any,
        backend: Backend,
        lose: Callable[[Exception], BaseException],
        ended: Callable[[StreamJob], None],
    ) -> None:
        self.stream = stream
        self._backend = backend
        self._lose = lose
        self._ended = ended
        self._queue: SimpleQueue[StreamJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: StreamJob) -> None:
        """Wait for a job behind those that were put before."""
        self._queue.put(job)

    def close(self) -> None:
        """Complete what was put and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._backend.attach()
        except Exception as error:  # what is put is still to be completed
            self._lose(error)
        while (job := self._queue.get()) is not None:
            # In the order of the stream, whatever became of each: no job ends before one that was
            # put earlier.
            self._complete(job)
            self._ended(job)
            del job  # it pins arrays and results until the next one comes

    def _complete(self, job: StreamJob) -> None:
        event, error = job.event, job.error
        # Also where it failed half-way: what was queued before uses memory that the next item is
        # given.
        if job.end is not None:
            error = self._reach(job) or error
        for wait in job.waits:
            # The stream waited for it on the device, but the thread of its own stream may be a
            # moment behind.
            if not wait.done:
                _await(wait)
            error = error or wait.error  # of another device, which this one does not know of
        # From now on whoever waits for it looks at `done`; the native event may soon stand for
        # other work.
        event.native = None
        event.complete(error)

    def _reach(self, job: StreamJob) -> BaseException | None:
        """Wait for the device's part, then do the host's; return what went wrong."""
        try:
            self._backend.synchronize(job.end)
            if job.land is not None and job.error is None:
                job.land()
            if job.anchor is not None:
                self._note_times(job, job.anchor)
            else:
                job.event.ended_ns = time.perf_counter_ns()
            return None if job.check is None else job.check()
        except Exception as raised:
            return self._lose(raised)

    def _note_times(self, job: StreamJob, anchor: Anchor) -> None:
        event, timeline = job.event, self._backend.timeline
        event.started_ns = timeline.host_ns(anchor, job.start)
        event.ended_ns = timeline.host_ns(anchor, job.end)
        if job.marks:
            before, times = job.start, []
            for mark in job.marks.values():
                times.append(0 if mark is None else timeline.between_ns(before, mark))
                before = before if mark is None else mark
            event.node_ns = tuple(times)
        timeline.refresh()


def _await(event: Event) -> None:
    """Wait until another lane, which is about to, has completed an event."""
    reached = threading.Event()
    event.on_done(lambda _: reached.set())
    reached.wait()
