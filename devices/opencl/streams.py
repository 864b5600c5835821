"""The command queues of an open OpenCL device, as `devices.streams` drives them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from ..errors import DeviceError, DeviceLostError
from ..streams.queues import LANES, Queues
from ..streams.timing import EventClock
from .driver import PyOpenCl, device_error, lost_error


class PreparedKernel(NamedTuple):
    """A kernel whose arguments are set.

    Attributes
    ----------
    size, threads : tuple of int
        How many threads there are, and how many of them are a group.
    held : tuple
        Its program and its arguments: the kernel itself does not keep them alive.
    """

    kernel: Any
    size: tuple[int]
    threads: tuple[int]
    held: tuple[Any, ...]


class Stream:
    """An in-order command queue, with what the next command waits for and the last one's event.

    So neither waiting nor recording takes a command of its own, where there is one to take part.
    """

    def __init__(self, cl: PyOpenCl, context: Any) -> None:
        self._cl = cl
        self._waits: list[Any] = []
        self._last: Any = None
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(context, properties=profiling)

    def launch(self, prepared: PreparedKernel) -> None:
        kernel, size, threads, _ = prepared
        self._last = self._cl.enqueue_nd_range_kernel(
            self.queue, kernel, size, threads, wait_for=self._taken()
        )

    def copy(self, target: Any, source: Any, **options: Any) -> None:
        """Queue a copy between buffers, or between a buffer and an array of the host's."""
        self._last = self._cl.enqueue_copy(
            self.queue, target, source, wait_for=self._taken(), **options
        )

    def wait_event(self, event: Any) -> None:
        """Hold up what is queued from now on until an event of another queue has happened."""
        self._waits.append(event)

    def record(self) -> Any:
        """Return an event that happens when all that is queued is done, and have it begin."""
        event, self._last = self._last, None
        if event is None or self._waits:
            event = self._cl.enqueue_marker(self.queue, wait_for=self._taken())
        self.queue.flush()  # other queues may wait for it
        return event

    def _taken(self) -> Sequence[Any] | None:
        if not self._waits:
            return None
        waits, self._waits = self._waits, []
        return waits


class OpenClBackend:
    """Streams, and events of pyopencl.

    Attributes
    ----------
    setup : pyopencl.CommandQueue
        For what is not part of a plan's work; nothing waits in it.
    """

    def __init__(self, cl: PyOpenCl, context: Any, name: str) -> None:
        self._cl = cl
        self._name = name
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.setup = cl.CommandQueue(context, properties=profiling)
        self.timeline = EventClock(partial(_happen, cl, self.setup), _between_ns)

    def attach(self) -> None:
        """Do nothing: all threads are alike."""

    def current(self, stream: Stream) -> AbstractContextManager[None]:
        """Do nothing: queues are named with each command."""
        return nullcontext()

    def hold(self, stream: Stream) -> AbstractContextManager[None]:
        """Do nothing: programs do not ask for it."""
        return nullcontext()

    def wait_event(self, stream: Stream, event: Any) -> None:
        """Hold up a stream until an event has happened."""
        stream.wait_event(event)

    def record(self, stream: Stream, *, timed: bool) -> Any:
        """Return an event behind what is queued on a stream."""
        return stream.record()

    def has_happened(self, event: Any) -> bool:
        """Say whether an event has happened; False also where it never will."""
        happened: bool = (
            event.command_execution_status == self._cl.command_execution_status.COMPLETE
        )
        return happened

    def synchronize(self, event: Any) -> None:
        """Block until an event has happened; raise if what it stands for failed."""
        event.wait()

    def recycle(self, event: Any, *, timed: bool) -> None:
        """Do nothing: each command has an event of its own."""

    def device_error(self, error: Exception) -> DeviceError:
        """Return what an exception from pyopencl means."""
        return device_error(self._cl, error, self._name)

    def lost_error(self, error: Exception) -> DeviceLostError:
        """Return the error of all work after one that broke the device."""
        return lost_error(error, self._name)


def open_queues(cl: PyOpenCl, context: Any, backend: OpenClBackend, name: str) -> Queues:
    """Make a device's queues and start the threads that wait for them."""
    return Queues(name, backend, {lane: Stream(cl, context) for lane in LANES})


def _happen(cl: PyOpenCl, queue: Any) -> Any:
    event = cl.enqueue_marker(queue)
    event.wait()
    return event


def _between_ns(earlier: Any, later: Any) -> int:
    return int(later.profile.end - earlier.profile.end)
