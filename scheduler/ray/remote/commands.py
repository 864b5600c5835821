"""Messages between driver and host about devices: commands, and their outcomes.

All of it is tuples of numbers, text and arrays, as they are pickled fastest.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from ....graph.tensor import Array, TensorSpec

Described: TypeAlias = list[Any]
"""An exception, as `remote_errors.describe` returns it."""

Kind = Literal["run", "write", "read", "copy"]


class RemoteTensor(NamedTuple):
    """Where a tensor lies on a host: in an arena, known by its number."""

    arena: int
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def spec(self) -> TensorSpec:
        """The tensor's spec."""
        return TensorSpec(self.dtype, self.shape)


class Command(NamedTuple):
    """Work for a device.

    Attributes
    ----------
    number : int
        Commands are numbered in the order in which they are given.
    device : int
    kind : str
    waits : tuple of int
        Commands that have to end before, and well. Those of one kind for one device begin in order.
    program : int
        What to run.
    target, source : RemoteTensor or None
        What to write, read or copy.
    array : Array or None
        What to write there.
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
    """What became of a command.

    Attributes
    ----------
    number : int
    started_ns, ended_ns : int
        On the host's clock.
    node_ns : tuple of int or None
    error : Described or None
    cause : int
        The command that it waited for and that failed, where it did not run because of that.
    array : Array or None
        What was read.
    """

    number: int
    started_ns: int
    ended_ns: int
    node_ns: tuple[int, ...] | None = None
    error: Described | None = None
    cause: int = 0
    array: Array | None = None

    @property
    def is_failure(self) -> bool:
        """True when it has not ended well."""
        return self.error is not None or self.cause > 0


class RemoteCall(NamedTuple):
    """What a driver sends at a time.

    Attributes
    ----------
    number : int
        Calls are numbered from 0, for they may arrive in another order.
    commands : tuple of Command
    cancelled : tuple of int
        Commands that nobody wants any more.
    forgotten : tuple of int
        Objects that nobody uses any more.
    noted : tuple of int
        Commands whose failure the driver knows: it sends nothing more that waits for them.
    """

    number: int
    commands: tuple[Command, ...] = ()
    cancelled: tuple[int, ...] = ()
    forgotten: tuple[int, ...] = ()
    noted: tuple[int, ...] = ()


def plain(value: Any) -> Any:
    """Return a tuple of plain tuples in place of named ones, which take longer to pickle."""
    return tuple(map(plain, value)) if isinstance(value, tuple) else value
