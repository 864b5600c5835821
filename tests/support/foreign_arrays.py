"""Another library's arrays on the fake GPU: written and read on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from cupy_double import Capsule, CupyDouble, Memory
from fake_gpu import Recording


class Foreign:
    """An array as far as all ways to share it go."""

    def __init__(self, library: Library, memory: Memory, cells: np.ndarray[Any, Any]) -> None:
        self.library = library
        self.mem = memory
        self.cells = cells
        self.shape, self.dtype = cells.shape, cells.dtype
        self.ptr = memory.ptr + cells.ctypes.data - memory.cells.ctypes.data


class Shared(Foreign):
    """An array that is shared by DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.mem.device

    def __dlpack__(self, *, stream: int) -> Capsule:
        self.library.wait_on(stream)
        return Capsule(self)


class Described(Foreign):
    """An array that says where it lies, and which stream it is written on."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, False),
            "version": 3,
            "stream": self.library.stream,
        }


class Library:
    """Queues its work on a stream that nobody else knows.

    Parameters
    ----------
    double : CupyDouble
    device : int, default 0
    """

    def __init__(self, double: CupyDouble, device: int = 0) -> None:
        self._double = double
        self._gpu = double.gpu
        self._device = device
        self.stream = self._gpu.new_stream(device)

    def array(self, values: Any, kind: type[Foreign] = Shared, *, transposed: bool = False) -> Any:
        """Return an array whose values are there when its stream gets that far, not before."""
        values = np.asarray(values)
        with self._double.cuda.Device(self._device):
            memory = Memory(self._double, max(values.nbytes, 1))
        flat = memory.cells[: values.nbytes].view(values.dtype)
        cells = flat.reshape(values.shape[::-1]).T if transposed else flat.reshape(values.shape)
        self._gpu.queue(self.stream, lambda: np.copyto(cells, values))
        return kind(self, memory, cells)

    def destroy_stream(self) -> None:
        """End the stream; arrays go on naming it."""
        self._gpu.drain(self.stream)
        self._gpu.destroy_stream(self.stream)

    def overwrite(self, array: Foreign, value: float) -> None:
        self._gpu.queue(self.stream, lambda: array.cells.fill(value))

    def wait_on(self, stream: int) -> None:
        """Have another stream wait for what is queued here so far."""
        recording = Recording(timing=False)
        self._gpu.record(self.stream, recording)
        self._gpu.wait(stream, recording)

    def wait_for(self, stream: int) -> None:
        """Have this stream wait for what is queued on another so far."""
        recording = Recording(timing=False)
        self._gpu.record(stream, recording)
        self._gpu.wait(self.stream, recording)


def read_later(double: CupyDouble, stream: int, array: Any) -> Callable[[], np.ndarray[Any, Any]]:
    """Queue the reading of an array on a stream; return what tells its values, once all has run."""
    cells, box = array._cells, SimpleNamespace()
    double.gpu.queue(stream, lambda: setattr(box, "values", cells.copy()))

    def values() -> np.ndarray[Any, Any]:
        double.gpu.drain(stream)
        found: np.ndarray[Any, Any] = box.values
        return found

    return values
