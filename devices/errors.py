"""The errors a device can cause.

PlaitError
└── DeviceError                the machine failed
    ├── DeviceUnavailableError it is unknown, missing or closed
    ├── DeviceLostError        it died: what it held is gone
    ├── DeviceMemoryError      it has too little memory
    └── KernelError            a kernel or Python function raised; its cause is the original
"""

from __future__ import annotations

from ..graph.errors import PlaitError


class DeviceError(PlaitError):
    """A device failed."""


class DeviceUnavailableError(DeviceError):
    """The device is unknown, missing from this machine, or closed."""


class DeviceLostError(DeviceError):
    """The device died; whatever it held is gone.

    Attributes
    ----------
    queued : bool
        True for work that had not begun: it is not what the device died of.
    """

    queued = False


class DeviceMemoryError(DeviceError):
    """The device has too little memory."""


class KernelError(DeviceError):
    """A kernel or Python function raised; ``__cause__`` is the original where there is one."""


def again(error: DeviceError, *, queued: bool) -> DeviceError:
    """Return the error once more, for other work."""
    made = error.again()
    if isinstance(made, DeviceLostError):
        made.queued = queued
    return made
