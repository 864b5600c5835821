"""The command queues of an open OpenCL device, driven by `devices.streams`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from ..errors import DeviceError, DeviceLostError
from ..streams.backend import EventClock
from ..streams.queues import LANES, Queues
from .driver import PyOpenCl, device_error, lost_error


class PreparedKernel(NamedTuple):
    kernel: Any
    size: tuple[int]
    threads: tuple[int]
    """The number of threads, and of threads in a group."""
    held: tuple[Any, ...]
    """The program and arguments, which the kernel itself does not keep alive."""


class Stream:
    """An in-order command queue, the events its next command waits for, and its last event.

    Waits and events are attached to commands, so that they need no commands of their own.
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
        self._last = self._cl.enqueue_copy(
            self.queue, target, source, wait_for=self._taken(), **options
        )

    def wait_event(self, event: Any) -> None:
        """Delay later commands until `event`, of another queue, has happened."""
        self._waits.append(event)

    def record(self) -> Any:
        """Return the event of the last queued command, and flush the queue."""
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

    `setup` is a queue for work outside of plans; nothing waits in it.
    """

    def __init__(self, cl: PyOpenCl, context: Any, name: str) -> None:
        self._cl = cl
        self._name = name
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.setup = cl.CommandQueue(context, properties=profiling)
        self.timeline = EventClock(partial(_complete_marker, cl, self.setup), _measure_between_ns)

    def attach(self) -> None:
        """Do nothing: a context belongs to all threads."""

    def current(self, stream: Stream) -> AbstractContextManager[None]:
        """Return a context that does nothing to `stream`: each command names its queue."""
        return nullcontext()

    def hold(self, stream: Stream) -> AbstractContextManager[None]:
        """Return a context that does nothing to `stream`: programs do not use it."""
        return nullcontext()

    def wait_event(self, stream: Stream, event: Any) -> None:
        stream.wait_event(event)

    def record(self, stream: Stream, *, timed: bool) -> Any:
        """Return an event after the commands queued on `stream`; it has times, `timed` or not."""
        return stream.record()

    def has_happened(self, event: Any) -> bool:
        happened: bool = (
            event.command_execution_status == self._cl.command_execution_status.COMPLETE
        )
        return happened

    def synchronize(self, event: Any) -> None:
        """Block until `event` has happened; raise if its command failed."""
        event.wait()

    def recycle(self, event: Any, *, timed: bool) -> None:
        """Do nothing to `event`, `timed` or not: each command has its own."""

    def device_error(self, error: Exception) -> DeviceError:
        return device_error(self._cl, error, self._name)

    def lost_error(self, error: Exception) -> DeviceLostError:
        return lost_error(error, self._name)


def open_queues(cl: PyOpenCl, context: Any, backend: OpenClBackend, name: str) -> Queues:
    """Make the queues of device `name` in `context` of `cl`, and start threads that wait.

    They wait for events of `backend`.
    """
    return Queues(name, backend, {lane: Stream(cl, context) for lane in LANES})


def _complete_marker(cl: PyOpenCl, queue: Any) -> Any:
    event = cl.enqueue_marker(queue)
    event.wait()
    return event


def _measure_between_ns(earlier: Any, later: Any) -> int:
    return int(later.profile.end - earlier.profile.end)
