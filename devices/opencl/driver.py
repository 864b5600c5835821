"""pyopencl and its drivers: finding devices, and translating their errors.

pyopencl is imported when an OpenCL device is first used.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...graph.values.extras import get_install_command, import_extra
from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ..streams import failures
from ..streams.failures import (
    get_cause,
    get_first_line,
    lost_device_error,
    memory_error,
    refused_call_error,
)

PyOpenCl: TypeAlias = Any
"""The module `pyopencl`."""
ClDevice: TypeAlias = Any
"""A device of pyopencl's."""

NO_PLATFORM = -1001
CHECKER = "Oclgrind"
"""A platform that checks kernels and is very slow: used only if it is named."""
LOSSES = frozenset({-2, -14})
"""Codes after which a device is broken: it is no longer available, or queued work failed (The
OpenCL Specification, error codes)."""
SHORTAGES = frozenset({-4, -6, -61})
"""Codes of memory shortage: none for a buffer, none on the host, too large a buffer."""


def load_pyopencl() -> PyOpenCl:
    fix = get_install_command("opencl")
    return import_extra("pyopencl", "pyopencl is not installed", fix, DeviceUnavailableError)


def list_devices(cl: PyOpenCl) -> tuple[ClDevice, ...]:
    """Return the devices of all platforms of `cl`, in the order of their numbers.

    Raises DeviceUnavailableError if none is found.
    """
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        if error.code != NO_PLATFORM:
            raise DeviceUnavailableError(
                f"OpenCL does not start: {get_first_line(error)}", fix="look at clinfo"
            ) from error
        platforms = []
    platforms = sorted(platforms, key=lambda platform: bool(platform.name == CHECKER))
    found = tuple(device for platform in platforms for device in _list_platform(cl, platform))
    if not found:
        raise DeviceUnavailableError(
            "there is no OpenCL device",
            fix="install the driver of its maker, or PoCL for processors: "
            "pip install 'pyopencl[pocl]'",
        )
    return found


def list_names() -> tuple[str, ...]:
    """Return the names of the devices; ``opencl:0`` without any, so that its use explains why."""
    try:
        count = len(list_devices(load_pyopencl()))
    except DeviceUnavailableError:
        return ("opencl:0",)
    return tuple(f"opencl:{index}" for index in range(count))


def find_device(cl: PyOpenCl, name: str) -> ClDevice:
    _, _, index = name.partition(":")
    if index and not (index.isascii() and index.isdigit()):
        raise DeviceUnavailableError(
            f"{name!r} is not an OpenCL device", fix="name one by its number: 'opencl:0'"
        )
    devices = list_devices(cl)
    number = int(index or 0)
    if number >= len(devices):
        raise DeviceUnavailableError(
            f"there is no device {name!r}: OpenCL finds {len(devices)}",
            fix=f"use {', '.join(f'opencl:{i}' for i in range(len(devices)))}",
        )
    return devices[number]


def device_error(cl: PyOpenCl, error: Exception, device: str) -> DeviceError:
    """Translate `error` of pyopencl (`cl`) on the open `device`; `error` is the cause.

    ========================  ============================================
    codes of `SHORTAGES`      DeviceMemoryError: the device stays usable
    codes of `LOSSES`         DeviceLostError
    anything else             KernelError, or DeviceError outside a kernel
    ========================  ============================================
    """
    cause = get_cause(error)
    code = cause.code if isinstance(cause, cl.Error) else None
    at = getattr(error, "at", None)
    if code in LOSSES:
        return lost_error(cause, device, at)
    return (
        memory_error(cause, device, at) if code in SHORTAGES else refused_call_error(error, device)
    )


def lost_error(error: BaseException, device: str, at: str | None = None) -> DeviceLostError:
    """Return the error for any work on `device` after `error`, in the kernel `at`, broke it."""
    return lost_device_error(
        error, device, at, "Oclgrind finds kernels that write where they should not"
    )


def unavailable_error(error: Exception, device: str) -> DeviceUnavailableError:
    return failures.unavailable_error(error, device, "look at clinfo")


def _list_platform(cl: PyOpenCl, platform: Any) -> list[ClDevice]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without devices
        return []
