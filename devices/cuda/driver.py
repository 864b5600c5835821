"""CuPy and the driver: finding them, and translating their errors.

CuPy, the module `cupy`, is imported only when a CUDA device is used.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...graph.values.extras import get_install_command, import_extra
from ...graph.values.tensor import Array
from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ..kinds import WORKER_ON_GPU
from ..streams import failures
from ..streams.failures import (
    get_cause,
    get_first_line,
    lost_device_error,
    memory_error,
    refused_call_error,
)
from .names import parse_name

CuPy: TypeAlias = Any
"""The module `cupy`, or its double in tests."""

OUT_OF_MEMORY = 2
STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 911})
"""Codes after which each further call returns the same one until the process ends (CUDA Runtime
API, data types, cudaError), or which mean that memory or links lost bits.

Other codes are of calls without effect, with wrong arguments, often a caller's, so that only the
item fails. For codes of a later CUDA the device is asked (`_is_broken`).
"""


def load_cupy() -> CuPy:
    fix = f"{get_install_command('cuda')}, on a machine with an NVIDIA GPU"
    return import_extra("cupy", "CuPy is not installed", fix, DeviceUnavailableError)


def count_devices(cupy: CuPy) -> int:
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceUnavailableError(
            f"CUDA does not start: {get_first_line(error)}",
            fix="install or update the NVIDIA driver; nvidia-smi should list the GPU",
        ) from error
    if count == 0:
        raise DeviceUnavailableError(
            "there is no CUDA device", fix="nvidia-smi and CUDA_VISIBLE_DEVICES should list one"
        )
    return count


def list_gpus(cupy: CuPy | None = None) -> tuple[str, ...]:
    """Return the names of CUDA devices of `cupy`; ``cuda:0`` if none, to report the reason."""
    return list_workers(cupy, "cuda") or ("cuda:0",)


def list_workers(cupy: CuPy | None = None, kind: str = WORKER_ON_GPU) -> tuple[str, ...]:
    """Return a name that begins with `kind` for each CUDA device that `cupy` finds, if any."""
    try:
        count = count_devices(cupy or load_cupy())
    except DeviceUnavailableError:
        return ()
    return tuple(f"{kind}:{index}" for index in range(count))


def find_device(name: str, index: int, cupy: CuPy | None) -> CuPy:
    """Return `cupy`, loaded if None, after checking that it finds device `name` with `index`.

    Raises DeviceUnavailableError if CuPy, the driver or the device is missing; DeviceLostError if
    it was broken in this process.
    """
    cupy = cupy or load_cupy()
    try:
        count = count_devices(cupy)
    except DeviceUnavailableError as error:
        cause = error.__cause__
        if cause is not None and get_code(cause, cupy) in STICKY:
            raise lost_error(cause, name) from cause
        raise
    if index >= count:
        raise DeviceUnavailableError(
            f"there is no device {name!r}: CUDA finds {count}",
            fix=f"use {', '.join(f'cuda:{i}' for i in range(count))}",
        )
    return cupy


def device_error(error: Exception, cupy: CuPy, device: str) -> DeviceError:
    """Translate `error` of `cupy` for the open `device`; it becomes the cause.

    ==================================  ============================================
    OutOfMemoryError, code 2            DeviceMemoryError: the device still works
    sticky codes, and others after      DeviceLostError
    which the device fails
    anything else                       KernelError, or DeviceError outside a kernel
    ==================================  ============================================
    """
    cause = get_cause(error)
    code, at = get_code(cause, cupy), getattr(error, "at", None)
    if isinstance(cause, cupy.cuda.memory.OutOfMemoryError) or code == OUT_OF_MEMORY:
        return memory_error(cause, device, at)
    if code is not None and (code in STICKY or _is_broken(cupy, device)):
        return lost_error(cause, device, at)
    return refused_call_error(error, device)


def lost_error(error: BaseException, device: str, at: str | None = None) -> DeviceLostError:
    return lost_device_error(error, device, at, "compute-sanitizer finds the kernel that broke it")


def start_error(error: Exception, cupy: CuPy, device: str) -> DeviceError:
    """Return the DeviceError for `device`, which does not start because of `error` of `cupy`.

    Its kernels may have broken it for this process before it was opened again.
    """
    if get_code(error, cupy) in STICKY:
        return lost_error(error, device)
    fix = "look at nvidia-smi; the driver must be new enough for the CuPy installed"
    return failures.unavailable_error(error, device, fix)


def _is_broken(cupy: CuPy, device: str) -> bool:
    """Return whether a harmless call of `cupy` fails, as all calls on a broken `device` do."""
    try:
        with cupy.cuda.Device(parse_name(device).index):
            cupy.cuda.runtime.memGetInfo()
    except cupy.cuda.runtime.CUDARuntimeError:
        return True
    return False


def get_code(error: BaseException, cupy: CuPy) -> int | None:
    kinds = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
    return int(getattr(error, "status", -1)) if isinstance(error, kinds) else None


class CupyArrays:
    """The array module of kernels on CUDA devices; other attributes are CuPy's."""

    def __init__(self, cupy: CuPy) -> None:
        self._cupy = cupy

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        setattr(self, name, found)  # avoids later look-ups
        return found

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return `a` · `b`, in `out` if given; CuPy's `out` is keyword-only."""
        return self._cupy.matmul(a, b, out=out)

    def vecdot(self, a: Array, b: Array, out: Array) -> Array:
        """Return Σ aᵢbᵢ of `a` and `b` along the last axis, real numbers, in `out`; CuPy lacks it.

        A batch of products of a row and a column in cuBLAS, without a temporary for all products.
        """
        self._cupy.matmul(a[..., None, :], b[..., None], out=out[..., None, None])
        return out
