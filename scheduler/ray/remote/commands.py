"""Messages between driver and host about devices: commands, and their outcomes.

They consist of tuples, numbers, text and arrays, which are pickled fastest.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

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
