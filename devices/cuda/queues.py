"""The streams of an open CUDA device, as `devices.queued` drives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DeviceError, DeviceLostError
from ..streams.queues import LANES, Queues
from .driver import CuPy, device_error, lost_error
from .timing import EventPool, timeline


class CudaBackend:
    """Streams and events of CuPy.

    Attributes
    ----------
    timeline : Timeline
    """

    def __init__(self, cupy: CuPy, index: int, name: str) -> None:
        self._cupy = cupy
        self._index = index
        self._name = name
        self._device = cupy.cuda.Device(index)
        self._pools = {timed: EventPool(cupy, timing=timed) for timed in (False, True)}
        with self._device:
            self.timeline = timeline(cupy)

    def attach(self) -> None:
        """Make the device the calling thread's."""
        self._device.use()

    @contextmanager
    def current(self, stream: Any) -> Iterator[None]:
        """Make the device and a stream current."""
        with self._cupy.cuda.Device(self._index), stream:
            yield

    def wait_event(self, stream: Any, event: Any) -> None:
        """Hold up a stream until an event has happened."""
        stream.wait_event(event)

    def record(self, stream: Any, *, timed: bool) -> Any:
        """Record an event of the stock on a stream."""
        return self._pools[timed].record(stream)

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


def open_queues(cupy: CuPy, index: int, name: str) -> Queues:
    """Make a device's streams and start the threads that wait for them."""
    with cupy.cuda.Device(index):
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in LANES]
    return Queues(name, CudaBackend(cupy, index, name), dict(zip(LANES, streams, strict=True)))
