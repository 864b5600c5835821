"""The errors of devices.

PlaitError
└── DeviceError                the machine failed
    ├── DeviceUnavailableError it is unknown, missing or closed
    ├── DeviceLostError        it died with all its contents
    ├── DeviceMemoryError      it has too little memory
    └── KernelError            a kernel or Python function raised; its cause is the original
        └── UnsupportedNodeError   a library lacks a kernel for a node, and refuses it late

RemoteError stands for a cause from another process with a class that is unknown in this one.
"""

from __future__ import annotations

from ..graph.values.errors import PlaitError


class DeviceError(PlaitError):
    """A device failed.

    Examples
    --------
    >>> import plait as pl
    >>> pl.device("cpu", threads=0)
    Traceback (most recent call last):
    ...
    plait.devices.errors.DeviceError: option 'threads' of device 'cpu' is 0
      fix: it takes a whole number from 1 to 4096
    """


class DeviceUnavailableError(DeviceError):
    """The device is unknown, missing from this machine, or closed.

    Examples
    --------
    >>> import plait as pl
    >>> pl.device("gpu")
    Traceback (most recent call last):
    ...
    plait.devices.errors.DeviceUnavailableError: there is no device 'gpu'
      fix: did you mean 'cpu'?
    """


class DeviceLostError(DeviceError):
    """The device died with all its contents.

    Attributes
    ----------
    queued : bool
        True for work that had not begun, and so is not the cause.

    Examples
    --------
    >>> import plait as pl
    >>> error = pl.DeviceLostError("the worker was killed", at="worker:0")
    >>> isinstance(error, pl.DeviceError), error.queued
    (True, False)
    """

    queued = False


class DeviceMemoryError(DeviceError):
    """The device has too little memory.

    Examples
    --------
    >>> import plait as pl
    >>> print(pl.DeviceMemoryError("8000000 bytes cannot be allocated", at="cuda:0"))
    8000000 bytes cannot be allocated
      at:  cuda:0
    """


class KernelError(DeviceError):
    """A kernel or Python function raised; ``__cause__`` is the original where there is one.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> @pl.operator(pl.TensorSpec("float32", ()))
    ... def broken(x):
    ...     raise ValueError("not today")
    >>> b = pl.GraphBuilder("broken")
    >>> b.output("y", b.call(broken, b.input("x", "float32", ())))
    >>> try:
    ...     pl.run(b.build(), {"x": np.float32(1)})
    ... except pl.KernelError as error:
    ...     print(repr(error.__cause__))
    ValueError('not today')
    """


class UnsupportedNodeError(KernelError):
    """A device refused nodes as unsupported, when it loaded or ran them.

    Sessions plan these nodes for other devices and run the item again.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import UnsupportedNodeError
    >>> error = UnsupportedNodeError("no float16")
    >>> isinstance(error, pl.KernelError), error.nodes
    (True, ())
    """

    nodes: tuple[str, ...] = ()
    """The names of the nodes, or of all in the subgraph if the library names none."""


class RemoteError(Exception):
    """An exception of another process, of a class that is not recreated in this one.

    Exceptions never travel as code: those that are neither Python's nor plait's arrive as name,
    text and origin.

    Parameters
    ----------
    kind : str
        The name of its class, with the module.
    text : str
        Its message.
    traceback : str, default ""
        Where it was raised, if known.

    Examples
    --------
    >>> import plait as pl
    >>> print(pl.RemoteError("sqlite3.OperationalError", "database is locked"))
    sqlite3.OperationalError: database is locked
    """

    def __init__(self, kind: str, text: str, traceback: str = "") -> None:
        super().__init__(kind, text, traceback)
        self.kind = kind
        self.text = text
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def again(error: DeviceError, *, queued: bool) -> DeviceError:
    made = error.again()
    if isinstance(made, DeviceLostError):
        made.queued = queued
    return made
