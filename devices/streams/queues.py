"""The queues of an open device: its streams, and the work in flight on them."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from ..device import OnDone, Program
from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ..event import Event
from .backend import Backend
from .program import QueuedProgram
from .waiter import StreamJob, StreamLane

COMPUTE, UPLOAD, DOWNLOAD = "compute", "upload", "download"
LANES = (UPLOAD, COMPUTE, DOWNLOAD)
"""In the order in which an item passes them."""
SETUP = "setup"
"""The backend's stream for work outside of items, which never waits for theirs."""


class Queues:
    """Queues work on streams in the order of calls, and keeps the order between streams.

    Streams wait for each other's events on the device; the host never does. Errors of the device
    are sticky: after the first one that broke it, all work in flight and all later work fails with
    that error.
    """

    def __init__(self, name: str, backend: Backend, streams: Mapping[str, Any]) -> None:
        self.name = name
        self._backend = backend
        self._lock = threading.RLock()  # guards the following
        self._idle = threading.Condition(self._lock)
        self._pending = 0
        self._is_closed = False
        self._lost: DeviceLostError | None = None
        self._queued: StreamJob | None = None
        self._measuring: weakref.WeakSet[QueuedProgram] = weakref.WeakSet()
        self._attendants: list[tuple[int, Callable[[], bool]]] = []
        self._streams = {**streams, SETUP: backend.setup}
        self._lanes = {
            lane: StreamLane(f"plait-{name}-{lane}", stream, backend, self.lose, self._finish)
            for lane, stream in streams.items()
        }

    def stream(self, lane: str) -> Any:
        return self._streams[lane]

    @contextmanager
    def current(self, lane: str = COMPUTE) -> Iterator[Any]:
        """Make the stream of `lane` current, and translate exceptions meanwhile."""
        stream = self.stream(lane)
        try:
            with self._backend.current(stream):
                yield stream
        except Exception as error:
            failed = self._translate(error)
            if failed is error:
                raise
            raise failed from error

    def submit(self, program: Program, waits: Sequence[Event], on_done: OnDone | None) -> Event:
        assert isinstance(program, QueuedProgram)
        job = StreamJob(Event(on_done), tuple(waits), held=program)
        if program.traps is not None:
            job.check = program.traps.take
        if program.measures:
            job.marks = dict.fromkeys(node.name for node in program.graph.nodes)
            job.starts_whole = program.starts_whole and program.has_run
            program.has_run = True
        return self.put(COMPUTE, job, program.run)

    def add(self, program: QueuedProgram) -> QueuedProgram:
        """Return `program`; as long as a program that measures lives, the device times all work.

        Times of the host would not fit beside those of the device.
        """
        if program.measures:
            self._measuring.add(program)
        return program

    def put(self, name: str, job: StreamJob, queue: Callable[[], Any]) -> Event:
        """Call `queue` to queue the work of `job` on lane `name` after its waits; return its event.

        The event completes in any case.
        """
        # The lock is held while the driver is called. Otherwise two threads could queue on a stream
        # in one order and on its lane in the other, and a native event could be recycled and
        # recorded for later work between reading it and making the stream wait for it.
        with self._lock:
            if self._is_closed:
                raise closed_error(self.name)
            job.error = self._lost
            for wait in job.waits:
                job.error = job.error or wait.error
            if job.error is None:
                self._queue(self._lanes[name], job, queue)
            job.event.error = job.error  # readers may need it before the event is complete
            # Work that was not queued is put nevertheless: its event completes on the lane's
            # thread, in turn, so that callbacks never run inside of the call that submits.
            self._pending += 1
            self._lanes[name].put(job, polled=self._is_attended())
        return job.event

    def attend(self, attendant: Callable[[], bool]) -> None:
        """Call `attendant` whenever this thread queues work; it returns whether it will poll."""
        with self._lock:
            self._attendants.append((threading.get_ident(), attendant))

    def leave(self, attendant: Callable[[], bool]) -> None:
        with self._lock:
            self._attendants = [each for each in self._attendants if each[1] != attendant]
        self.watch()

    def poll(self) -> bool:
        """Complete all finished work without waiting; return whether any is in flight."""
        # All lanes, in the order of `LANES`: work that waits for another lane ends after it.
        found = [lane.poll() for lane in self._lanes.values()]
        return any(found)

    def watch(self) -> None:
        """Make the threads wait for work in flight that was to be polled."""
        for lane in self._lanes.values():
            lane.watch()

    @property
    def failure(self) -> DeviceLostError | None:
        return self._lost

    def mark(self, node: str) -> None:
        """Record the end of `node` of the program that is being queued."""
        assert self._queued is not None
        self._queued.marks[node] = self._backend.record(self.stream(COMPUTE), timed=True)

    def lose(self, error: Exception) -> DeviceLostError:
        """Note that `error` broke the device; return the first such error."""
        with self._lock:
            if self._lost is None:
                found = self._backend.device_error(error)
                if not isinstance(found, DeviceLostError):
                    found = self._backend.lost_error(error)
                self._lost = found
            return self._lost

    def close(self) -> None:
        """Finish the queued work and the work that its callbacks put; end the threads."""
        with self._lock:
            self._attendants.clear()
            self.watch()
            # A callback puts more work before its own work stops being pending: zero means the end.
            self._idle.wait_for(lambda: self._pending == 0)
            self._is_closed = True
        for lane in self._lanes.values():
            lane.close()

    def _is_attended(self) -> bool:
        here = threading.get_ident()
        for thread, attendant in self._attendants:  # noqa: SIM110 - generators take longer to make
            if thread == here and attendant():
                return True
        return False

    def _queue(self, lane: StreamLane, job: StreamJob, queue: Callable[[], Any]) -> None:
        stream, backend, timed = lane.stream, self._backend, len(self._measuring) > 0
        self._queued = job
        try:
            with backend.current(stream):
                for wait in job.waits:
                    # Read once: its waiter clears the native event on another thread when it
                    # completes it.
                    if not wait.done and (native := wait.native) is not None:
                        backend.wait_event(stream, native)
                with backend.hold(stream) if job.starts_whole else nullcontext():
                    # After the waits, which are not part of a program's time.
                    if timed:
                        job.anchor = backend.timeline.anchor
                        job.start = backend.record(stream, timed=True)
                    job.event.started_ns = time.perf_counter_ns()
                    try:
                        queue()
                    except Exception as error:
                        job.error = self._translate(error)
                    # Also after a failure: the work that was queued before it must end first.
                    job.event.native = job.end = backend.record(stream, timed=timed)
        except Exception as error:
            job.error = job.error or self._translate(error)
        finally:
            self._queued = None  # it pins arrays

    def _translate(self, error: Exception) -> DeviceError:
        translated = self._backend.device_error(error)
        if isinstance(translated, DeviceLostError):
            return self.lose(error)
        return translated

    def _finish(self, job: StreamJob) -> None:
        for native in (job.start, job.end, *job.marks.values()):
            if native is not None:
                self._backend.recycle(native, timed=job.anchor is not None)
        # After the event's callbacks, not before: see `close`.
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._idle.notify_all()


def closed_error(name: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(f"device {name!r} is closed", fix="open it")
