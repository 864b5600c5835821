"""Memory of a CUDA device: its arenas, and host memory prepared for its copies.

Two processes may use an arena: one allocates it, the other opens it by CUDA's handle
(cudaIpcGetMemHandle), and nothing is copied. The allocating process frees the memory after the
other has closed it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.values.tensor import Array, TensorSpec
from ..errors import DeviceMemoryError, DeviceUnavailableError
from ..memory import Arena, View, check_fits, host_view
from ..streams.failures import get_first_line
from .driver import OUT_OF_MEMORY, CuPy
from .names import parse_name

logger = logging.getLogger(__name__)

HANDLE_NBYTES = 64
"""sizeof(cudaIpcMemHandle_t); the arena's size follows it in a description."""

ALIGNMENT = 512
"""Bytes; CuPy's own rounding, and enough for cuBLAS and vector loads."""
PORTABLE = 1
"""cudaHostRegisterPortable: page-locked for all devices."""


class CudaArena(Arena):
    """A cudaMalloc, or another process's `buffer`, with its arrays."""

    def __init__(self, memory: str, nbytes: int, cupy: CuPy, buffer: Any = None) -> None:
        self.index = parse_name(memory).index
        super().__init__(memory, nbytes, buffer or _allocate(cupy, max(nbytes, 1)))
        self._cupy = cupy
        # Weak: a session that is fed many shapes has many views, of which it keeps the last ones.
        self._arrays: weakref.WeakValueDictionary[tuple[int, TensorSpec], Array]
        self._arrays = weakref.WeakValueDictionary()

    def view(self, offset: int, spec: TensorSpec) -> View:
        """Return a view of `spec` at `offset`; live views of one place and spec share an array.

        A ufunc in place must get the same object for both: CuPy first copies an input that shares
        bytes with the output but is another object.
        """
        check_fits(self, offset, spec, ALIGNMENT)
        array = self._arrays.get((offset, spec))
        if array is None:
            pointer = self._cupy.cuda.MemoryPointer(self.buffer, offset)
            array = self._cupy.ndarray(spec.static_shape, spec.dtype, memptr=pointer)
            self._arrays[offset, spec] = array
        return View(self, offset, spec, array)

    def close(self) -> None:
        """Drop the arrays; the memory is freed with the last program that uses it."""
        self._arrays.clear()
        super().close()


def _allocate(cupy: CuPy, nbytes: int) -> Any:
    """Allocate `nbytes` on the current device of `cupy`, freeing its cache if necessary."""
    try:
        return cupy.cuda.Memory(nbytes)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status != OUT_OF_MEMORY:
            raise
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.Memory(nbytes)


@dataclass(frozen=True, slots=True)
class HostView(View):
    address: int = 0
    """The address for copies: the tensor, or `staging`."""
    staging: Array | None = None
    """Page-locked memory that replaces the tensor's if that cannot be page-locked."""

    def lies_in(self, other: View) -> bool:
        end, others_end = self.offset + self.spec.nbytes, other.offset + other.spec.nbytes
        return self.arena is other.arena and other.offset <= self.offset and end <= others_end


class _Pin:
    """Page-locks a buffer while this object lives."""

    def __init__(self, runtime: Any, buffer: Array) -> None:
        address = buffer.ctypes.data
        runtime.hostRegister(address, buffer.nbytes, PORTABLE)
        # The finalizer holds the buffer: page-locked memory must not be freed.
        weakref.finalize(self, _unlock, runtime, address, buffer).atexit = False


_pins: weakref.WeakValueDictionary[tuple[int, int], _Pin] = weakref.WeakValueDictionary()
"""Live pins of all devices by runtime and address: no range can be page-locked twice."""
_pins_lock = threading.RLock()  # freeing a pin may interrupt its holder


class HostPins:
    """Page-locks host arenas at their first view, so that copies are asynchronous.

    An arena is released by garbage collection or `close`. The first one that cannot be page-locked
    is logged: copies of it go through staging.
    """

    def __init__(self, cupy: CuPy) -> None:
        self._cupy = cupy
        self._held: weakref.WeakKeyDictionary[Arena, _Pin | None] = weakref.WeakKeyDictionary()
        self._has_reported = False

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> HostView:
        """Return a view of `spec` at `offset` of a host `arena`, with staging if not pinned."""
        array = host_view(arena, offset, spec).array
        if self._pin(arena) is not None:
            return HostView(arena, offset, spec, array, array.ctypes.data)
        pinned = self._cupy.cuda.alloc_pinned_memory(max(spec.nbytes, 1))
        staging = np.frombuffer(pinned, spec.dtype, spec.size).reshape(spec.static_shape)
        return HostView(arena, offset, spec, array, staging.ctypes.data, staging)

    def close(self) -> None:
        self._held.clear()

    def _pin(self, arena: Arena) -> _Pin | None:
        with _pins_lock:
            if arena not in self._held:
                self._held[arena] = self._find_or_make(arena.pages)
            return self._held[arena]

    def _find_or_make(self, buffer: Array) -> _Pin | None:
        runtime = self._cupy.cuda.runtime
        key = id(runtime), buffer.ctypes.data
        pin = _pins.get(key)
        if pin is None and buffer.nbytes:
            try:
                pin = _pins[key] = _Pin(runtime, buffer)
            except runtime.CUDARuntimeError as error:
                # Its text, since records of logs would keep its frames alive.
                if not self._has_reported:
                    logger.warning("host memory cannot be page-locked: %s", get_first_line(error))
                self._has_reported = True
        return pin


def _unlock(runtime: Any, address: int, _: Array) -> None:
    with suppress(runtime.CUDARuntimeError):  # a lost device has released everything already
        runtime.hostUnregister(address)


def describe_arena(arena: CudaArena, cupy: CuPy) -> bytes:
    """Return a description by which another process opens `arena`; `cupy` makes it.

    Raises DeviceUnavailableError if processes cannot share memory of GPUs on this system.
    """
    try:
        handle: bytes = cupy.cuda.runtime.ipcGetMemHandle(arena.buffer.ptr)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise unshared_error(error, arena.memory) from error
    return handle + arena.nbytes.to_bytes(8, "little")


def open_arena(description: bytes, memory: str, cupy: CuPy) -> CudaArena:
    """Open an arena of another process by `description`; it closes with the last array on it.

    `cupy` opens it, and it counts as `memory`. Raises DeviceMemoryError if it cannot be opened.
    """
    nbytes = int.from_bytes(description[HANDLE_NBYTES:], "little")
    try:
        opened = _Opened(cupy, description[:HANDLE_NBYTES])
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceMemoryError(
            f"memory of {memory!r} cannot be opened in another process: {get_first_line(error)}",
            fix="use a system on which CUDA shares memory between processes (CUDA IPC)",
        ) from error
    buffer = cupy.cuda.UnownedMemory(opened.address, max(nbytes, 1), opened)
    return CudaArena(memory, nbytes, cupy, buffer)


def unshared_error(error: Exception, memory: str) -> DeviceUnavailableError:
    """Return the error, caused by `error`, for a system where processes cannot share `memory`."""
    return DeviceUnavailableError(
        f"memory of {memory!r} cannot be shared with another process: {get_first_line(error)}",
        fix="use a system with CUDA IPC, such as Linux without WSL; or let functions take numpy's "
        "arrays, on 'worker:0' or 'cpu'",
    )


class _Opened:
    """Memory of another process, open while this object lives."""

    def __init__(self, cupy: CuPy, handle: bytes) -> None:
        runtime: Any = cupy.cuda.runtime
        self.address: int = runtime.ipcOpenMemHandle(handle)
        weakref.finalize(self, runtime.ipcCloseMemHandle, self.address).atexit = False
