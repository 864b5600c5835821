"""The streams of an open CUDA device, as `devices.streams` drives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import DeviceError, DeviceLostError
from ..streams.queues import LANES, Queues
from ..streams.timing import EventClock
from .driver import CuPy, device_error, lost_error
from .shares import MakeStream

HELD_S = 0.05
"""A stream is held up no longer, which is time to queue some thousand kernels."""


class CudaBackend:
    """Streams and events of CuPy.

    Attributes
    ----------
    timeline : EventClock
    """

    def __init__(self, cupy: CuPy, index: int, name: str, make_stream: MakeStream) -> None:
        self._cupy = cupy
        self._index = index
        self._name = name
        self._device = cupy.cuda.Device(index)
        self._pools = {timed: EventPool(cupy, timing=timed) for timed in (False, True)}
        with self._device:
            self.timeline = timeline(cupy, make_stream())
            self._gate = make_stream()
        self._holds = True

    def attach(self) -> None:
        """Make the device the calling thread's."""
        self._device.use()

    def current(self, stream: Any) -> Current:
        """Make the device and a stream current."""
        return Current(self._cupy.cuda.Device(self._index), stream)

    @contextmanager
    def held(self, stream: Any) -> Iterator[None]:
        """Have a stream, which is current, do nothing of what is queued until the block ends."""
        if not self._holds:
            yield
            return
        over = threading.Event()
        self._gate.launch_host_func(self._wait, over)
        closed = self.record(self._gate, timed=False)
        try:
            stream.wait_event(closed)
            self.give_back(closed, timed=False)  # what waits for it does so for this recording
            yield
        finally:
            over.set()

    def _wait(self, over: threading.Event) -> None:
        """Wait for the end of a block, but not for ever: what is queued there may wait for the GPU.

        A kernel that has to be loaded does, and whoever finds the queue full. Then it is never
        tried again.
        """
        self._holds = over.wait(HELD_S)

    def wait_event(self, stream: Any, event: Any) -> None:
        """Hold up a stream until an event has happened."""
        stream.wait_event(event)

    def record(self, stream: Any, *, timed: bool) -> Any:
        """Record an event of the stock on a stream."""
        return self._pools[timed].record(stream)

    def has_happened(self, event: Any) -> bool:
        """Say whether an event has happened; False also where it never will."""
        happened: bool = event.done
        return happened

    def synchronize(self, event: Any) -> None:
        """Block until an event has happened."""
        event.synchronize()

    def give_back(self, event: Any, *, timed: bool) -> None:
        """Put an event back into the stock."""
        self._pools[timed].give_back(event)

    def device_error(self, error: Exception) -> DeviceError:
        """Return what an exception from CuPy means."""
        return device_error(error, self._cupy, self._name)

    def lost_error(self, error: Exception) -> DeviceLostError:
        """Return the error of all work after one that broke the device."""
        return lost_error(error, self._name)


class Current:
    """A device and a stream that are current inside of a block.

    A class, since every submission has such a block, and generators take longer to make.
    """

    __slots__ = ("_device", "_stream")

    def __init__(self, device: Any, stream: Any) -> None:
        self._device, self._stream = device, stream

    def __enter__(self) -> None:
        self._device.__enter__()
        try:
            # Entering a device that is the thread's already does nothing, and device 0 is every
            # thread's at first: the driver, which launches kernels, would find no context there.
            self._device.use()
            self._stream.__enter__()
        except BaseException:
            self._device.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)
        self._device.__exit__(*error)


def open_queues(cupy: CuPy, index: int, name: str, make_stream: MakeStream) -> Queues:
    """Make a device's streams and start the threads that wait for them; it must be current."""
    streams = {lane: make_stream() for lane in LANES}
    return Queues(name, CudaBackend(cupy, index, name, make_stream), streams)


class EventPool:
    """CUDA events to use again: making them costs, destroying them may block.

    Waiting for one puts the waiting thread to sleep; it does not spin.
    """

    def __init__(self, cupy: CuPy, *, timing: bool) -> None:
        self._cupy = cupy
        self._disable_timing = not timing
        self._free: list[Any] = []

    def record(self, stream: Any) -> Any:
        """Record an event on a stream and return it; the stream's device must be current."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cupy.cuda.Event(block=True, disable_timing=self._disable_timing)
        event.record(stream)
        return event

    def give_back(self, event: Any) -> None:
        """Take an event whose work is done."""
        self._free.append(event)


def timeline(cupy: CuPy, stream: Any) -> EventClock:
    """Return a timeline of the current device.

    Anchors are recorded on a stream of its own, where they never queue behind work.
    """
    return EventClock(partial(_happen, cupy, stream), partial(_between_ns, cupy))


def _happen(cupy: CuPy, stream: Any) -> Any:
    event = cupy.cuda.Event()  # spins: a thread that sleeps wakes too late
    event.record(stream)
    event.synchronize()
    return event


def _between_ns(cupy: CuPy, earlier: Any, later: Any) -> int:
    elapsed_ms: float = cupy.cuda.get_elapsed_time(earlier, later)
    return round(elapsed_ms * 1e6)
