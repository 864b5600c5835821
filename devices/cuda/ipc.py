"""Memory of a GPU that two processes use: one allocates it, the other opens it by a handle.

The handle is CUDA's (cudaIpcGetMemHandle), and nothing is copied. The allocating process frees the
memory after the other has closed it.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..errors import DeviceMemoryError, DeviceUnavailableError
from ..streams.failures import get_first_line
from .driver import CuPy
from .memory import CudaArena

HANDLE_NBYTES = 64
"""sizeof(cudaIpcMemHandle_t); the arena's size follows it in a description."""


def describe(arena: CudaArena, cupy: CuPy) -> bytes:
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
