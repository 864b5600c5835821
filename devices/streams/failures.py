"""Errors for the exceptions of a driver, whichever driver it is."""

from __future__ import annotations

from ..errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    KernelError,
)


def first_line(error: BaseException) -> str:
    """Return the first line of a message that says something."""
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


def cause_of(error: Exception) -> BaseException:
    """Return what the driver raised, where a kernel's error stands in front of it."""
    return (error.__cause__ or error) if isinstance(error, KernelError) else error


def memory_error(error: BaseException, device: str, at: str | None) -> DeviceMemoryError:
    """Return the error of work that found too little memory."""
    made = DeviceMemoryError(
        f"device {device!r} has too little memory, or does not give as much at once: "
        f"{first_line(error)}",
        at=at,
        fix="lower max_in_flight, split the graph, or free memory of other processes",
    )
    made.__cause__ = error
    return made


def refused_call_error(error: Exception, device: str) -> DeviceError:
    """Return the error of a call that the driver refused, and lives on."""
    if isinstance(error, DeviceError):
        return error
    made = DeviceError(first_line(error), at=f"device {device!r}")
    made.__cause__ = error
    return made


def lost_device_error(
    error: BaseException, device: str, at: str | None, checker: str
) -> DeviceLostError:
    """Return the error of all work on a device after one that broke it."""
    made = DeviceLostError(
        f"device {device!r} is lost: {first_line(error)}",
        at=at,
        fix=f"start a new process; {checker}",
    )
    made.__cause__ = error
    return made


def unavailable_error(error: Exception, device: str, fix: str) -> DeviceUnavailableError:
    """Return the error of a device that was found but does not start."""
    made = DeviceUnavailableError(f"device {device!r} does not start: {first_line(error)}", fix=fix)
    made.__cause__ = error
    return made
