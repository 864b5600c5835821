"""The errors a device can cause.

PlaitError
└── DeviceError                the machine failed
    ├── DeviceUnavailableError it is unknown, missing or closed
    ├── DeviceLostError        it died: what it held is gone
    ├── DeviceMemoryError      it has too little memory
    └── KernelError            a kernel or Python function raised; its cause is the original

RemoteError stands for a cause from another process, whose class is unknown in this one.
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


class RemoteError(Exception):
    """An exception of another process, of a class that is not made again in this one.

    Exceptions never travel as code: of those that are neither Python's own nor plait's there is
    their name, their text and where they were raised.

    Parameters
    ----------
    kind : str
        The name of its class, with that of its module.
    text : str
        What it said.
    traceback : str, default ""
        Where it was raised, if it is known.
    """

    def __init__(self, kind: str, text: str, traceback: str = "") -> None:
        super().__init__(kind, text, traceback)
        self.kind = kind
        self.text = text
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def again(error: DeviceError, *, queued: bool) -> DeviceError:
    """Return the error once more, for other work."""
    made = error.again()
    if isinstance(made, DeviceLostError):
        made.queued = queued
    return made
