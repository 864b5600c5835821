"""The queues of an open device: its streams, and all that is under way on them."""

from __future__ import annotations

import threading
import time
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
"""In the order in which an item comes by."""


class Queues:
    """Queues work on streams in the order it is put, and keeps the order between streams.

    Streams wait for each other's events on the device; the host never does. Errors of the device
    are sticky: after the first one that broke it, all that is queued and all that is put later
    fails with that one.

    Parameters
    ----------
    name : str
        The device's.
    backend : Backend
    streams : Mapping of str to stream of the backend
        By lane.
    """

    def __init__(self, name: str, backend: Backend, streams: Mapping[str, Any]) -> None:
        self.name = name
        self._backend = backend
        self._lock = threading.RLock()  # guards what follows
        self._rests = threading.Condition(self._lock)
        self._pending = 0
        self._is_closed = False
        self._lost: DeviceLostError | None = None
        self._queued: StreamJob | None = None
        self._attendants: list[tuple[int, Callable[[], bool]]] = []
        self._lanes = {
            lane: StreamLane(f"plait-{name}-{lane}", stream, backend, self.lose, self._ended)
            for lane, stream in streams.items()
        }

    def stream(self, lane: str) -> Any:
        """Return the stream of a lane."""
        return self._lanes[lane].stream

    @contextmanager
    def current(self, lane: str = COMPUTE) -> Iterator[Any]:
        """Make a stream current; translate what is raised meanwhile."""
        stream = self.stream(lane)
        try:
            with self._backend.current(stream):
                yield stream
        except Exception as error:
            failed = self._failed(error)
            if failed is error:
                raise
            raise failed from error

    def submit(self, program: Program, waits: Sequence[Event], on_done: OnDone | None) -> Event:
        """Queue a program, which must be one that is queued, on the compute stream."""
        assert isinstance(program, QueuedProgram)
        job = StreamJob(Event(on_done), tuple(waits), held=program)
        if program.traps is not None:
            job.check = program.traps.take
        if program.measures:
            job.marks = dict.fromkeys(node.name for node in program.graph.nodes)
            job.starts_whole = program.starts_whole and program.has_run
            program.has_run = True
        return self.put(COMPUTE, job, program.run, timed=program.measures)

    def put(self, name: str, job: StreamJob, queue: Callable[[], Any], *, timed: bool) -> Event:
        """Queue work on a lane behind its waits; its event completes in any case, later."""
        # The lock is held while the driver is called. Else two threads could queue on a stream in
        # one order and on its lane in the other; and a native event could be given back, and
        # recorded anew for later work, after it was looked at and before the stream is told to wait
        # for it.
        with self._lock:
            if self._is_closed:
                raise closed_error(self.name)
            job.error = self._lost
            for wait in job.waits:
                job.error = job.error or wait.error
            if job.error is None:
                self._queue(self._lanes[name], job, queue, timed)
            job.event.error = job.error  # for those who will wait for it before it is complete
            # What is not queued is put all the same: its event completes on the lane's thread, in
            # its turn, so that callbacks never run inside of the call that submits.
            self._pending += 1
            self._lanes[name].put(job, polled=self._is_attended())
        return job.event

    def attend(self, attendant: Callable[[], bool]) -> None:
        """Call `attendant` whenever this thread queues work; True if it will poll for that."""
        with self._lock:
            self._attendants.append((threading.get_ident(), attendant))

    def leave(self, attendant: Callable[[], bool]) -> None:
        """Call an attendant no more."""
        with self._lock:
            self._attendants = [each for each in self._attendants if each[1] != attendant]
        self.watch()

    def poll(self) -> bool:
        """Complete what is over, without waiting; say whether something is under way."""
        # All of them, in the order of `LANES`: what waits for a lane ends behind it.
        found = [lane.poll() for lane in self._lanes.values()]
        return any(found)

    def watch(self) -> None:
        """Have the threads wait for what is under way, and was to be polled."""
        for lane in self._lanes.values():
            lane.watch()

    @property
    def failure(self) -> DeviceLostError | None:
        """The error that broke the device, if one did."""
        return self._lost

    def mark(self, node: str) -> None:
        """Record where a node of the program that is being queued ends."""
        assert self._queued is not None
        self._queued.marks[node] = self._backend.record(self.stream(COMPUTE), timed=True)

    def lose(self, error: Exception) -> DeviceLostError:
        """Return what all work fails with from now on: the first error that broke the device."""
        with self._lock:
            if self._lost is None:
                found = self._backend.device_error(error)
                if not isinstance(found, DeviceLostError):
                    found = self._backend.lost_error(error)
                self._lost = found
            return self._lost

    def close(self) -> None:
        """Finish what is queued, and what its callbacks put meanwhile; end the threads."""
        with self._lock:
            self._attendants.clear()
            self.watch()
            # A callback may put more, which is pending before what called it has ended: zero means
            # that all is over.
            self._rests.wait_for(lambda: self._pending == 0)
            self._is_closed = True
        for lane in self._lanes.values():
            lane.close()

    def _is_attended(self) -> bool:
        here = threading.get_ident()
        for thread, attendant in self._attendants:  # noqa: SIM110 - generators take longer to make
            if thread == here and attendant():
                return True
        return False

    def _queue(
        self, lane: StreamLane, job: StreamJob, queue: Callable[[], Any], timed: bool
    ) -> None:
        stream, backend = lane.stream, self._backend
        self._queued = job
        try:
            with backend.current(stream):
                for wait in job.waits:
                    # Read once: its waiter takes the native event away when it completes it, on
                    # another thread.
                    if not wait.done and (native := wait.native) is not None:
                        backend.wait_event(stream, native)
                with backend.held(stream) if job.starts_whole else nullcontext():
                    # Behind the waits: a program's time has nothing of what it waited for.
                    if timed:
                        job.anchor = backend.timeline.anchor
                        job.start = backend.record(stream, timed=True)
                    job.event.started_ns = time.perf_counter_ns()
                    try:
                        queue()
                    except Exception as error:
                        job.error = self._failed(error)
                    # Behind what was queued before something failed, too: it must end first.
                    job.event.native = job.end = backend.record(stream, timed=timed)
        except Exception as error:
            job.error = job.error or self._failed(error)
        finally:
            self._queued = None  # it pins arrays

    def _failed(self, error: Exception) -> DeviceError:
        """Return what an error means; remember it when the device is lost by it."""
        translated = self._backend.device_error(error)
        if isinstance(translated, DeviceLostError):
            return self.lose(error)
        return translated

    def _ended(self, job: StreamJob) -> None:
        for native in (job.start, job.end, *job.marks.values()):
            if native is not None:
                self._backend.give_back(native, timed=job.anchor is not None)
        # After the event's callbacks, not before: see `close`.
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._rests.notify_all()


def closed_error(name: str) -> DeviceUnavailableError:
    """Return the error of using a device that is not open."""
    return DeviceUnavailableError(f"device {name!r} is closed", fix="open it")
