"""Timestamps of an item on its way from the source to its release."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Timestamps:
    """Moments in ns, on the clock that items are timed with; 0 for what has not happened.

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
        The last of its steps that ran had ended, and its results were about to be copied out.
    landed_ns : int
        Its results were copied out, or may be read where they are.
    taken_ns : int
        The consumer got it: items wait for their turn, and for the consumer.
    released_ns : int
        The consumer was through with it.
    stream : int
        Which of a session's streams it was in: the order of each is its own. 0 for `run`.
    stamp : float or None
        What the source stamped the item with, a time or key of its own.
    preparing : tuple of (str, int, int)
        When it waited for its partners in a join (``"partners"``), for a plan that was made and
        opened (``"planning"``), or for programs that were bound, to its lengths or in its slot's
        memory (``"binding"``): from when to when.
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
    preparing: tuple[tuple[str, int, int], ...] = field(default=(), init=False)

    def prepare(self, kind: str, begin_ns: int, end_ns: int) -> None:
        """Take note of what the item waited for, and when."""
        self.preparing += ((kind, begin_ns, end_ns),)
