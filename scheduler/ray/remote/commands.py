"""Messages between driver and host about devices: commands, and their outcomes.

They consist of tuples, numbers, text and arrays, which are pickled fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from ....devices.device import OnDone
from ....devices.event import Event
from ....graph.values.tensor import Array, TensorSpec

Described: TypeAlias = list[Any]
"""An exception, as `remote_errors.describe` returns it."""

Kind = Literal["run", "write", "read", "copy"]


class RemoteTensor(NamedTuple):
    """The place of a tensor on a host: an arena's number, and an offset."""

    arena: int
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.dtype, self.shape)


class Command(NamedTuple):
    """Work for a device.

    Attributes
    ----------
    number : int
        Commands are numbered in the order of sending.
    waits : tuple of int
        Commands that must succeed first. Those of one kind for one device begin in order.
    program : int
        The program to run.
    target, source : RemoteTensor or None
        The tensor to write; the tensor to read.
    array : Array or None
        The values to write.
    """

    number: int
    device: int
    kind: Kind
    waits: tuple[int, ...] = ()
    program: int = 0
    target: RemoteTensor | None = None
    source: RemoteTensor | None = None
    array: Array | None = None


class CommandOutcome(NamedTuple):
    number: int
    started_ns: int
    ended_ns: int
    """On the host's clock."""
    node_ns: tuple[int, ...] | None = None
    error: Described | None = None
    cause: int = 0
    """The failed command it waited for, if that kept it from running; 0 otherwise."""
    array: Array | None = None
    """The values that were read."""

    @property
    def is_failure(self) -> bool:
        return self.error is not None or self.cause > 0


class RemoteCall(NamedTuple):
    """One message of a driver."""

    number: int
    """Calls are numbered from 0, since they may arrive in another order."""
    commands: tuple[Command, ...] = ()
    cancelled: tuple[int, ...] = ()
    """Commands to cancel."""
    forgotten: tuple[int, ...] = ()
    """Objects to free."""
    noted: tuple[int, ...] = ()
    """Failed commands that the driver knows of: no later command waits for them."""


def to_plain_tuples(value: Any) -> Any:
    return tuple(map(to_plain_tuples, value)) if isinstance(value, tuple) else value


class RemoteEvent(Event):
    """A command to a host, and its completion.

    Parameters
    ----------
    command : Command
        Its number and waits are filled in when it is sent.
    label : str
        Describes it in errors.
    into : Array, optional
        Receives the values that are read.
    keeps : object, optional
        Objects that must not be freed on the host before the command ends.
    """

    def __init__(
        self,
        command: Command,
        waits: tuple[Event, ...] = (),
        on_done: OnDone | None = None,
        *,
        label: str = "",
        into: Array | None = None,
        keeps: object = None,
    ) -> None:
        super().__init__(on_done)
        self.command = command
        self.waits = waits
        self.label = label
        self.into = into
        self.keeps = keeps
        self._on_cancel: Callable[[RemoteEvent], object] | None = None

    def cancel_by(self, on_cancel: Callable[[RemoteEvent], object]) -> None:
        self._on_cancel = on_cancel

    @property
    def is_sent(self) -> bool:
        """True if the host may have begun it."""
        return self.command.number > 0

    def cancel(self) -> None:
        """Ask the host not to begin it, or to stop it; it completes in any case."""
        self.cancelled = True
        on_cancel = self._on_cancel
        if on_cancel is not None:
            on_cancel(self)

    def complete(self, error: BaseException | None = None) -> None:
        """Complete the event, with `error` if any, and run callbacks; later calls do nothing."""
        self._on_cancel = None
        self.waits = ()
        super().complete(error)
