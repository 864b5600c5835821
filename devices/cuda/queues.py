"""The queues of an open CUDA device: three streams, and all that is under way on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ..event import Event
from .driver import CuPy, lost, translate
from .timing import EventPool, Timeline
from .waiter import Job, Lane

COMPUTE, UPLOAD, DOWNLOAD = "compute", "upload", "download"


class Queues:
    """Queues work on streams in the order it is put, and keeps the order between streams.

    Streams wait for each other's events on the GPU; the host never does. Errors of the GPU are
    sticky: after the first one that broke it, all that is queued and all that is put later fails
    with that one.
    """

    def __init__(self, cupy: CuPy, index: int, name: str) -> None:
        self.name = name
        self._cupy = cupy
        self._index = index
        self._changed = threading.Condition()  # guards what follows
        self._pending = 0
        self._is_closed = False
        self._lost: DeviceLostError | None = None
        self._queued: Job | None = None
        device = cupy.cuda.Device(index)
        with device:
            timeline = Timeline(cupy)
            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        self._timeline = timeline
        self._plain = EventPool(cupy, timing=False)
        self._timed = EventPool(cupy, timing=True)
        self._lanes = {
            lane: Lane(f"plait-{name}-{lane}", device, stream, timeline, self.lose, self._ended)
            for lane, stream in zip((COMPUTE, UPLOAD, DOWNLOAD), streams, strict=True)
        }

    def stream(self, lane: str) -> Any:
        """Return the stream of a lane."""
        return self._lanes[lane].stream

    @contextmanager
    def current(self, lane: str = COMPUTE) -> Iterator[Any]:
        """Make the device and a stream current; translate what CuPy raises meanwhile."""
        stream = self.stream(lane)
        try:
            with self._cupy.cuda.Device(self._index), stream:
                yield stream
        except Exception as error:
            raise self._failed(error) from error

    def put(self, name: str, job: Job, queue: Callable[[], Any], *, timed: bool) -> Event:
        """Queue work on a lane behind its waits; its event completes in any case, later."""
        with self._changed:
            if self._is_closed:
                raise closed(self.name)
            failed = (wait.error for wait in job.waits if wait.error is not None)
            job.error = self._lost or next(failed, None)
            if job.error is None:
                self._queue(self._lanes[name], job, queue, timed)
            job.event.error = job.error  # for those who will wait for it before it is complete
            self._pending += 1
            self._lanes[name].put(job)
        return job.event

    @property
    def loss(self) -> DeviceLostError | None:
        """The error that broke the device, if one did."""
        return self._lost

    def mark(self, node: str) -> None:
        """Record where a node of the program that is being queued ends."""
        assert self._queued is not None
        self._queued.marks[node] = self._timed.record(self.stream(COMPUTE))

    def lose(self, error: Exception) -> DeviceLostError:
        """Return what all work fails with from now on: the first error that broke the device."""
        with self._changed:
            if self._lost is None:
                found = translate(error, self._cupy, self.name)
                self._lost = found if isinstance(found, DeviceLostError) else lost(error, self.name)
            return self._lost

    def close(self) -> None:
        """Finish what is queued, and what its callbacks put meanwhile; end the threads."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0)
            self._is_closed = True
        for lane in self._lanes.values():
            lane.close()

    def _queue(self, lane: Lane, job: Job, queue: Callable[[], Any], timed: bool) -> None:
        stream, pool = lane.stream, self._timed if timed else self._plain
        self._queued = job
        try:
            with self._cupy.cuda.Device(self._index), stream:
                for wait in job.waits:
                    if not wait.done and (native := wait.native) is not None:
                        stream.wait_event(native)
                if timed:
                    job.anchor, job.start = self._timeline.anchor, pool.record(stream)
                job.event.started_ns = time.perf_counter_ns()
                try:
                    queue()
                except Exception as error:
                    job.error = self._failed(error)
                # Behind what was queued before something failed, too: it must end first.
                job.event.native = job.end = pool.record(stream)
        except Exception as error:
            job.error = job.error or self._failed(error)
        finally:
            self._queued = None  # it pins arrays

    def _failed(self, error: Exception) -> DeviceError:
        """Return what an error means; remember it when the device is lost by it."""
        translated = translate(error, self._cupy, self.name)
        if isinstance(translated, DeviceLostError):
            return self.lose(error)
        return translated

    def _ended(self, job: Job) -> None:
        pool = self._plain if job.anchor is None else self._timed
        for native in (job.start, job.end, *job.marks.values()):
            if native is not None:
                pool.give_back(native)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()


def closed(name: str) -> DeviceUnavailableError:
    """Return the error of using a device that is not open."""
    return DeviceUnavailableError(f"device {name!r} is closed", fix="open it")
