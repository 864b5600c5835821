"""The errors for work on hosts that are lost, or closed."""

from __future__ import annotations

from ....devices.errors import DeviceUnavailableError
from ....graph.errors import PlaitError, named_text


def closed_host_error(name: str) -> DeviceUnavailableError:
    """Return the error for using a host, or a device there, that is closed."""
    return DeviceUnavailableError(f"{name!r} is closed", fix="open the device")


def summary(error: BaseException) -> str:
    """Return what is wrong, in one line."""
    return error.what if isinstance(error, PlaitError) else named_text(error)
