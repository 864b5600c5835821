"""Arrays of other libraries on a GPU, in the order of the callers' streams.

Plait's streams wait for the caller's by an event on the GPU. The caller's stream is the current one
of the array's library on the calling thread. The readers of results are unknown, so for these it is
the current streams of CuPy and, if loaded, PyTorch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...graph.values.tensor import Array, TensorSpec
from ..errors import DeviceError, DeviceLostError
from ..exchange import Loan
from ..memory import HOST, Arena, View
from ..streams.queues import DOWNLOAD, LANES, UPLOAD, Queues
from .driver import CuPy, device_error
from .memory import HostView

CUDA, MANAGED = 2, 13
"""DLPack's kinds of memory that a GPU reads (dlpack.h, DLDeviceType)."""


class ArrayArena(Arena):
    """The memory of one array outside any plan, borrowed from or made for a caller."""

    def __init__(self, memory: str, nbytes: int, buffer: Any, original: Any = None) -> None:
        super().__init__(memory, nbytes, buffer)
        self.original = original  # of a contiguous copy, whose queued kernel does not hold it


class CudaExchange:
    """Borrows and creates arrays on an open device, which must be current at creation."""

    def __init__(self, cupy: CuPy, queues: Queues, index: int, memory: str) -> None:
        self._cupy = cupy
        self._queues = queues
        self._index = index
        self._memory = memory
        self._marking = threading.Lock()
        self._event = cupy.cuda.Event(disable_timing=True)  # waits refer to its latest recording

    def borrow(self, value: Any) -> Loan:
        """Return `value` as an array; copies of it wait for its producer's queued work."""
        if hasattr(value, "__dlpack__"):
            # Not with a stream of plait's current: CuPy's arrays would wait for nothing.
            capsule = value.__dlpack__(stream=self._queues.stream(UPLOAD).ptr)
            with self._queues.current(UPLOAD):
                array = self._cupy.from_dlpack(capsule)
        else:
            described = value.__cuda_array_interface__
            self._check_place(described["data"][0])
            if (stream := described.get("stream")) is not None:
                self._wait_for_producer(stream)
            with self._queues.current(UPLOAD):
                array = self._cupy.asarray(_Ordered(value, described))
        original = array
        if not array.flags.c_contiguous:
            with self._queues.current(UPLOAD):
                array = self._cupy.ascontiguousarray(array)
        return Loan(self._view(array, TensorSpec(array.dtype, array.shape), original))

    def stage(self, array: Array) -> HostView:
        spec = TensorSpec(array.dtype, array.shape)
        with self._queues.current(UPLOAD):
            pinned = self._cupy.cuda.alloc_pinned_memory(max(spec.nbytes, 1))
        copy = np.frombuffer(pinned, spec.dtype, spec.size).reshape(spec.static_shape)
        np.copyto(copy, array)
        arena = Arena(HOST, spec.nbytes, copy)
        return HostView(arena, 0, spec, copy, copy.ctypes.data)

    def room(self, spec: TensorSpec) -> View:
        """Return an array of `spec` in CuPy's memory pool.

        The pool may return memory that the caller freed while its stream still used it, which is
        safe for the caller's later work. Results that are copied to it must wait as well.
        """
        try:
            with self._cupy.cuda.Device(self._index):
                array = self._cupy.empty(spec.static_shape, spec.dtype)
        except Exception as error:
            raise device_error(error, self._cupy, self._queues.name) from error
        self.follow([DOWNLOAD])
        return self._view(array, spec)

    def follow(self, lanes: Iterable[str] = LANES) -> None:
        """Make `lanes` (default: all) wait for the work on the caller's current streams."""
        self._wait_for({*self._current()}, lanes)

    def _current(self) -> Iterable[int]:
        yield int(self._cupy.cuda.get_current_stream(self._index).ptr)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            yield int(torch.cuda.current_stream(self._index).cuda_stream)

    def _wait_for(self, streams: Iterable[int], lanes: Iterable[str]) -> None:
        record, event = self._cupy.cuda.runtime.eventRecord, self._event
        with self._marking, self._queues.current():
            for stream in streams:
                record(event.ptr, stream)
                for lane in lanes:
                    self._queues.stream(lane).wait_event(event)

    def _wait_for_producer(self, stream: int) -> None:
        """Make uploads wait for `stream`, which an array names.

        It may be deleted: an array does not keep alive the stream that wrote it.
        """
        try:
            self._wait_for([stream], [UPLOAD])
        except DeviceLostError:
            raise
        except DeviceError as error:
            raise DeviceError(
                f"the array names a stream that cannot be waited for: {error.what}",
                fix="keep the stream that it was written on until it was handed over",
            ) from error

    def _check_place(self, address: int) -> None:
        """Raise DeviceError for `address` on another device; empty arrays have none.

        Its stream could not record an event of this device.
        """
        there = self._cupy.cuda.runtime.pointerGetAttributes(address).device if address else None
        if there not in (None, self._index):
            raise DeviceError(
                f"the array is on CUDA device {there}, not {self._index}",
                fix="copy it there, or plan with inputs_on= for where it is",
            )

    def _view(self, array: Any, spec: TensorSpec, original: Any = None) -> View:
        return View(ArrayArena(self._memory, spec.nbytes, array, original), 0, spec, array)


def is_on_device(value: object, index: int) -> bool:
    if hasattr(value, "__dlpack_device__"):
        kind, number = value.__dlpack_device__()
        return bool(kind == MANAGED or (kind == CUDA and number == index))
    return hasattr(value, "__cuda_array_interface__")


class _Ordered:
    """An array's description without the stream, which has been waited for."""

    def __init__(self, array: Any, described: dict[str, Any]) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**described, "stream": None}
