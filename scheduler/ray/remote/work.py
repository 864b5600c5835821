"""A command to a host, and its completion."""

from __future__ import annotations

from collections.abc import Callable

from ....devices.device import OnDone
from ....devices.event import Event
from ....graph.values.tensor import Array
from .commands import Command


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
