"""Timestamps of an item on its way from the source to its release."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timestamps:
    """Moments in ns on the clock of items; 0 for events that have not happened.

    Attributes
    ----------
    asked_ns : int
        There was room for the item, and its source was asked for it; or `run` was called.
    given_ns : int
        The source gave it.
    admitted_ns : int
        It got a slot.
    fed_ns : int
        Its inputs were written there.
    finished_ns : int
        Its last step had ended; copying the results out began.
    landed_ns : int
        Its results were copied out, or may be read where they are.
    taken_ns : int
        The consumer got it, after its turn had come.
    released_ns : int
        The consumer released it.
    stream : int
        The number of its stream in the session; 0 for `run`.
    stamp : float or None
        Time or key from the source.
    key : Hashable
        The key of its state; None for items that use the session's.
    preparing : tuple of (str, int, int)
        Kind, start and end of waits: for partners in a join (``"partners"``), for a plan to be
        made and opened (``"planning"``), for programs to be bound to its lengths or to the memory
        of its slot (``"binding"``).
    """

    asked_ns: int = 0
    given_ns: int = 0
    admitted_ns: int = 0
    fed_ns: int = 0
    finished_ns: int = 0
    landed_ns: int = 0
    taken_ns: int = 0
    released_ns: int = 0
    stream: int = 0
    stamp: float | None = None
    key: Hashable = None
    preparing: tuple[tuple[str, int, int], ...] = field(default=(), init=False)

    def prepare(self, kind: str, begin_ns: int, end_ns: int) -> None:
        self.preparing += ((kind, begin_ns, end_ns),)

    def copy_run(self, batch: Timestamps) -> None:
        self.admitted_ns, self.fed_ns = batch.admitted_ns, batch.fed_ns
        self.finished_ns, self.landed_ns = batch.finished_ns, batch.landed_ns
        self.preparing += batch.preparing
