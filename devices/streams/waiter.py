"""Waiters: one thread per stream completes events in the order in which the stream reaches them.

One thread for all streams would notice a download only after the longer kernels that were
submitted before it. Host callbacks are not an alternative: they run Python on the driver's thread
and block the stream.

Waking a thread, which then wakes the event loop, takes longer than many kernels. A caller that
expects short work may therefore `poll`. The thread completes the rest, and all failed work: polling
cannot distinguish a failed event from one that is pending.
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
from .backend import Anchor, Backend


@dataclass(slots=True)
class StreamJob:
    """Work on a stream, and the host's part of it after the device's."""

    event: Event
    waits: tuple[Event, ...]
    """Complete before `event` is: callbacks see causes before effects."""
    held: Any
    """Kept alive until then."""
    land: Callable[[], Any] | None = None
    """The host's part of the work, run after the device's."""
    check: Callable[[], BaseException | None] | None = None
    """Returns the error of work that the device completed."""
    error: BaseException | None = None
    """The reason for which it was queued in part or not at all."""
    end: Any = None
    """Recorded after the work; None if nothing was queued."""
    starts_whole: bool = False
    """Whether the device begins only when all is queued."""
    start: Any = None
    anchor: Anchor | None = None
    marks: dict[str, Any] = field(default_factory=dict)
    """Native events before the work and after each node, if times are measured."""


class StreamLane:
    """A stream, and the thread that waits for it.

    `lose` is called with the error of a failed wait, and returns the error for all later work;
    `ended` with each job after its event is complete.
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
        self._on_finish = ended
        self._jobs: deque[StreamJob] = deque()
        self._completing = threading.Lock()  # guards the head of the jobs
        self._awaited: StreamJob | None = None
        """The job that the thread waits for: its native event must not be recycled."""
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: StreamJob, *, polled: bool = False) -> None:
        """Append `job`; the thread waits for it unless it is `polled`."""
        self._jobs.append(job)
        if not polled or job.land is not None:
            self._calls.put(True)

    def watch(self) -> None:
        """Make the thread wait for jobs in flight."""
        if self._jobs:
            self._calls.put(True)

    def poll(self) -> bool:
        """Complete finished jobs without waiting; return whether any is in flight."""
        if self._jobs and self._completing.acquire(blocking=False):
            try:
                while self._jobs and self._is_done(self._jobs[0]):
                    self._complete_first()
            finally:
                self._completing.release()
        return bool(self._jobs)

    def close(self) -> None:
        self._calls.put(False)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._backend.attach()
        except Exception as error:  # jobs must complete nevertheless
            self._lose(error)
        is_open = True
        while is_open:
            is_open = self._calls.get()
            while self._wait_for_first():
                pass

    def _wait_for_first(self) -> bool:
        """Complete the first job when the stream reaches it; return False without jobs."""
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
            # The stream waited for it on the device, but the thread of its own stream may be late.
            if not wait.done:
                _wait_for(wait)
        with self._completing:
            self._awaited = None
            if self._jobs and self._jobs[0] is job:
                self._complete_first(failure)
            else:  # it was polled meanwhile
                self._on_finish(job)
        return True

    def _is_done(self, job: StreamJob) -> bool:
        """Return whether `job` can be completed at once; long work is left to the thread."""
        if job.land is not None:
            return False
        for wait in job.waits:
            if not wait.done:
                return False
        return job.end is None or self._backend.has_happened(job.end)

    def _complete_first(self, failure: BaseException | None = None) -> None:
        # In the order of the stream, also after failures: no job ends before an earlier one.
        job = self._jobs[0]
        error = failure or job.error
        # Also after a partial failure: the work queued before it uses memory that the next item
        # gets.
        if job.end is not None and failure is None:
            error = self._run_host_part(job) or error
        for wait in job.waits:  # those of other devices may have failed
            error = error or wait.error
        self._jobs.popleft()
        # From now on readers look at `done`; the native event may be recycled for other work.
        job.event.native = None
        job.event.complete(error)
        if job is not self._awaited:
            self._on_finish(job)

    def _run_host_part(self, job: StreamJob) -> BaseException | None:
        """Run the host's part of `job` after the device's; return the error, if any."""
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


def _wait_for(event: Event) -> None:
    reached = threading.Event()
    event.on_done(lambda _: reached.set())
    reached.wait()
