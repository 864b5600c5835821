"""Waiters: one thread per stream that completes events in the order the stream reaches them.

One thread for all streams would see a download end only after the longer kernels that were
submitted before it. Host callbacks are no way out: they run Python on the driver's thread and hold
up the stream.

Waking a thread, which then wakes the event loop, takes longer than many kernels. So whoever expects
work to be over soon may `poll` instead; the thread has what is over the latest then, and all that
failed: a poll cannot tell a failed event from one that is under way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
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
    starts_whole : bool
        Whether the device begins once all of it is queued.
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
    starts_whole: bool = False
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
        self._jobs: deque[StreamJob] = deque()
        self._completing = threading.Lock()  # guards the head of the jobs
        self._awaited: StreamJob | None = None
        """What the thread sleeps for: its native event must stand for nothing else."""
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: StreamJob, *, polled: bool = False) -> None:
        """Take a job behind those that were put before; the thread waits for it unless `polled`."""
        self._jobs.append(job)
        if not polled or job.land is not None:
            self._calls.put(True)

    def watch(self) -> None:
        """Have the thread wait for what is under way."""
        if self._jobs:
            self._calls.put(True)

    def poll(self) -> bool:
        """Complete what is over, without waiting; say whether something is under way."""
        if self._jobs and self._completing.acquire(blocking=False):
            try:
                while self._jobs and self._is_over(self._jobs[0]):
                    self._complete_first()
            finally:
                self._completing.release()
        return bool(self._jobs)

    def close(self) -> None:
        """Complete what was put and end the thread."""
        self._calls.put(False)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._backend.attach()
        except Exception as error:  # what is put is still to be completed
            self._lose(error)
        goes_on = True
        while goes_on:
            goes_on = self._calls.get()
            while self._wait_for_first():
                pass

    def _wait_for_first(self) -> bool:
        """Complete the first job once the stream gets there; False if there is none."""
        with self._completing:
            if not self._jobs:
                return False
            job = self._awaited = self._jobs[0]
        failure: BaseException | None = None
        if job.end is not None:
            try:
                self._backend.synchronize(job.end)
            except Exception as raised:
                failure = self._lose(raised)
        for wait in job.waits:
            # The stream waited for it on the device, but the thread of its own stream may be a
            # moment behind.
            if not wait.done:
                _await(wait)
        with self._completing:
            self._awaited = None
            if self._jobs and self._jobs[0] is job:
                self._complete_first(failure)
            else:  # it was polled meanwhile
                self._ended(job)
        return True

    def _is_over(self, job: StreamJob) -> bool:
        """Say whether a job can be completed at once; what takes time is left to the thread."""
        if job.land is not None:
            return False
        for wait in job.waits:
            if not wait.done:
                return False
        return job.end is None or self._backend.has_happened(job.end)

    def _complete_first(self, failure: BaseException | None = None) -> None:
        # In the order of the stream, whatever became of each: no job ends before one that was put
        # earlier.
        job = self._jobs[0]
        error = failure or job.error
        # Also where it failed half-way: what was queued before uses memory that the next item is
        # given.
        if job.end is not None and failure is None:
            error = self._finish(job) or error
        for wait in job.waits:  # of another device, which this one does not know of
            error = error or wait.error
        self._jobs.popleft()
        # From now on whoever waits for it looks at `done`; the native event may soon stand for
        # other work.
        job.event.native = None
        job.event.complete(error)
        if job is not self._awaited:
            self._ended(job)

    def _finish(self, job: StreamJob) -> BaseException | None:
        """Do the host's part, after the device's; return what went wrong."""
        try:
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
