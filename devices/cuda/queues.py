"""The streams of an open CUDA device, for `devices.streams`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..errors import DeviceError, DeviceLostError
from ..streams.backend import EventClock
from ..streams.queues import LANES, Queues
from .driver import CuPy, device_error, lost_error
from .shares import MakeStream

HELD_S = 0.05
"""Limit of holding a stream, enough to queue some thousand kernels."""


class CudaBackend:
    """Streams and events of CuPy."""

    def __init__(self, cupy: CuPy, index: int, name: str, make_stream: MakeStream) -> None:
        self._cupy = cupy
        self._index = index
        self._name = name
        self._device = cupy.cuda.Device(index)
        self._pools = {timed: EventPool(cupy, timing=timed) for timed in (False, True)}
        with self._device:
            self.timeline = create_timeline(cupy, make_stream())
            self._gate = make_stream()
            self.setup = make_stream()
        self._holds = True

    def attach(self) -> None:
        self._device.use()

    def current(self, stream: Any) -> Current:
        return Current(self._cupy.cuda.Device(self._index), stream)

    @contextmanager
    def hold(self, stream: Any) -> Iterator[None]:
        """Hold `stream`, a current one, until the block ends."""
        if not self._holds:
            yield
            return
        over = threading.Event()
        self._gate.launch_host_func(self._wait, over)
        closed = self.record(self._gate, timed=False)
        try:
            stream.wait_event(closed)
            self.recycle(closed, timed=False)  # the wait refers to this recording
            yield
        finally:
            over.set()

    def _wait(self, over: threading.Event) -> None:
        """Wait for the end of a block, `over`, up to a limit: queueing may wait for the GPU.

        Loading a kernel does, and so does a full queue. After a timeout, streams are not held
        again.
        """
        self._holds = over.wait(HELD_S)

    def wait_event(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def record(self, stream: Any, *, timed: bool) -> Any:
        return self._pools[timed].record(stream)

    def has_happened(self, event: Any) -> bool:
        """Return whether `event` has happened; False also if it cannot happen any more."""
        happened: bool = event.done
        return happened

    def synchronize(self, event: Any) -> None:
        event.synchronize()

    def recycle(self, event: Any, *, timed: bool) -> None:
        self._pools[timed].recycle(event)

    def device_error(self, error: Exception) -> DeviceError:
        return device_error(error, self._cupy, self._name)

    def lost_error(self, error: Exception) -> DeviceLostError:
        return lost_error(error, self._name)


class Current:
    """A context in which a device and a stream are current.

    A class, since every submission uses it, and generators are slower to make.
    """

    def __init__(self, device: Any, stream: Any) -> None:
        self._device, self._stream = device, stream

    def __enter__(self) -> None:
        self._device.__enter__()
        try:
            # Entering the thread's current device does nothing, and device 0 is every thread's at
            # first: the driver, which launches kernels, would find no context there.
            self._device.use()
            self._stream.__enter__()
        except BaseException:
            self._device.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)
        self._device.__exit__(*error)


def open_queues(cupy: CuPy, index: int, name: str, make_stream: MakeStream) -> Queues:
    """Create the streams of device `name`, by `make_stream`, and threads that wait for them.

    The device, number `index` of `cupy`, must be current.
    """
    streams = {lane: make_stream() for lane in LANES}
    return Queues(name, CudaBackend(cupy, index, name, make_stream), streams)


class EventPool:
    """Reusable CUDA events: creating them is slow, destroying them may block.

    Waiting for one lets the thread sleep.
    """

    def __init__(self, cupy: CuPy, *, timing: bool) -> None:
        self._cupy = cupy
        self._disable_timing = not timing
        self._free: list[Any] = []

    def record(self, stream: Any) -> Any:
        """Record an event on `stream`; the stream's device must be current."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self._cupy.cuda.Event(block=True, disable_timing=self._disable_timing)
        event.record(stream)
        return event

    def recycle(self, event: Any) -> None:
        self._free.append(event)


def create_timeline(cupy: CuPy, stream: Any) -> EventClock:
    """Create the clock of the current device of `cupy`.

    Anchors have their own `stream`, where they never queue behind work.
    """
    return EventClock(partial(_reach_event, cupy, stream), partial(_measure_ns, cupy))


def _reach_event(cupy: CuPy, stream: Any) -> Any:
    event = cupy.cuda.Event()  # busy-waits: a sleeping thread wakes too late
    event.record(stream)
    event.synchronize()
    return event


def _measure_ns(cupy: CuPy, earlier: Any, later: Any) -> int:
    elapsed_ms: float = cupy.cuda.get_elapsed_time(earlier, later)
    return round(elapsed_ms * 1e6)
