"""Errors for the exceptions of a driver."""

from __future__ import annotations

from ..errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    KernelError,
)


def get_first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


def get_cause(error: Exception) -> BaseException:
    return (error.__cause__ or error) if isinstance(error, KernelError) else error


def memory_error(error: BaseException, device: str, at: str | None) -> DeviceMemoryError:
    made = DeviceMemoryError(
        f"device {device!r} has too little memory, or does not give as much at once: "
        f"{get_first_line(error)}",
        at=at,
        fix="lower max_in_flight, split the graph, or free memory of other processes",
    )
    made.__cause__ = error
    return made


def refused_call_error(error: Exception, device: str) -> DeviceError:
    if isinstance(error, DeviceError):
        return error
    made = DeviceError(get_first_line(error), at=f"device {device!r}")
    made.__cause__ = error
    return made


def lost_device_error(
    error: BaseException, device: str, at: str | None, checker: str
) -> DeviceLostError:
    """Return the error for work at the place `at` after `error` broke `device`.

    Its fix names `checker`.
    """
    made = DeviceLostError(
        f"device {device!r} is lost: {get_first_line(error)}",
        at=at,
        fix=f"start a new process; {checker}",
    )
    made.__cause__ = error
    return made


def unavailable_error(error: Exception, device: str, fix: str) -> DeviceUnavailableError:
    made = DeviceUnavailableError(
        f"device {device!r} does not start: {get_first_line(error)}", fix=fix
    )
    made.__cause__ = error
    return made
