"""CuPy and the driver under it: finding them, and what their errors mean.

Nothing here imports CuPy before a CUDA device is asked for.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...graph.extras import how_to_install, import_extra
from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ..kinds import WORKER_ON_GPU
from ..streams import failures
from ..streams.failures import (
    cause_of,
    first_line,
    lost_device_error,
    memory_error,
    refused_call_error,
)
from .names import parsed

CuPy: TypeAlias = Any
"""The module `cupy`, or what stands in for it in tests."""

OUT_OF_MEMORY = 2
STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911})
"""Codes after which each further call returns the same one until the process ends (CUDA Runtime
API, data types, cudaError), and of memory or links that lost bits.

All others are of calls that did nothing: what is given to them is wrong, often by a caller, whose
item fails alone. Codes that a later CUDA may add are told by asking the device (`_is_broken`).
"""


def load_cupy() -> CuPy:
    """Import CuPy.

    Raises
    ------
    DeviceUnavailableError
        If it is missing or does not load.
    """
    fix = f"{how_to_install('cuda')}, on a machine with an NVIDIA GPU"
    return import_extra("cupy", "CuPy is not installed", fix, DeviceUnavailableError)


def count_devices(cupy: CuPy) -> int:
    """Return how many CUDA devices there are.

    Raises
    ------
    DeviceUnavailableError
        If there is no driver, or no device.
    """
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceUnavailableError(
            f"CUDA does not start: {first_line(error)}",
            fix="install or update the NVIDIA driver; nvidia-smi should list the GPU",
        ) from error
    if count == 0:
        raise DeviceUnavailableError(
            "there is no CUDA device", fix="nvidia-smi and CUDA_VISIBLE_DEVICES should list one"
        )
    return count


def cuda_names(cupy: CuPy | None = None) -> tuple[str, ...]:
    """Return the names of the CUDA devices found; ``cuda:0`` where none is, to say why."""
    try:
        count = count_devices(cupy or load_cupy())
    except DeviceUnavailableError:
        return ("cuda:0",)
    return tuple(f"cuda:{index}" for index in range(count))


def worker_names(cupy: CuPy | None = None) -> tuple[str, ...]:
    """Return a worker on each CUDA device found; none where none is, as `cuda:0` says why."""
    try:
        count = count_devices(cupy or load_cupy())
    except DeviceUnavailableError:
        return ()
    return tuple(f"{WORKER_ON_GPU}:{index}" for index in range(count))


def find_device(name: str, index: int, cupy: CuPy | None) -> CuPy:
    """Return CuPy once it is certain that it has that device.

    Raises
    ------
    DeviceUnavailableError
        If CuPy, the driver or the device is missing.
    DeviceLostError
        If it was broken in this process.
    """
    cupy = cupy or load_cupy()
    try:
        count = count_devices(cupy)
    except DeviceUnavailableError as error:
        cause = error.__cause__
        if cause is not None and _code(cause, cupy) in STICKY:
            raise lost_error(cause, name) from cause
        raise
    if index >= count:
        raise DeviceUnavailableError(
            f"there is no device {name!r}: CUDA finds {count}",
            fix=f"use {', '.join(f'cuda:{i}' for i in range(count))}",
        )
    return cupy


def device_error(error: Exception, cupy: CuPy, device: str) -> DeviceError:
    """Return what an exception from CuPy means for an open device; its cause is the exception.

    ==================================  ============================================
    OutOfMemoryError, code 2            DeviceMemoryError: the device lives on
    sticky codes, and others after      DeviceLostError
    which the device answers no more
    anything else                       KernelError, or DeviceError outside a kernel
    ==================================  ============================================
    """
    cause = cause_of(error)
    code, at = _code(cause, cupy), getattr(error, "at", None)
    if isinstance(cause, cupy.cuda.memory.OutOfMemoryError) or code == OUT_OF_MEMORY:
        return memory_error(cause, device, at)
    if code is not None and (code in STICKY or _is_broken(cupy, device)):
        return lost_error(cause, device, at)
    return refused_call_error(error, device)


def lost_error(error: BaseException, device: str, at: str | None = None) -> DeviceLostError:
    """Return the error of all work on a device after one that broke it."""
    return lost_device_error(error, device, at, "compute-sanitizer finds the kernel that broke it")


def start_error(error: Exception, cupy: CuPy, device: str) -> DeviceError:
    """Return the error of a device that was found but does not start.

    Its kernels may have broken it, for all of this process, before anybody opened it again.
    """
    if _code(error, cupy) in STICKY:
        return lost_error(error, device)
    fix = "look at nvidia-smi; the driver must be new enough for the CuPy installed"
    return failures.unavailable_error(error, device, fix)


def _is_broken(cupy: CuPy, device: str) -> bool:
    """Ask a device for something harmless: one that is broken answers with its error again."""
    try:
        with cupy.cuda.Device(parsed(device).index):
            cupy.cuda.runtime.memGetInfo()
    except cupy.cuda.runtime.CUDARuntimeError:
        return True
    return False


def _code(error: BaseException, cupy: CuPy) -> int | None:
    """Return the CUDA error code that an exception carries, if any."""
    kinds = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
    return int(getattr(error, "status", -1)) if isinstance(error, kinds) else None
