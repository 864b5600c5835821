"""One item: what was fed, the way it takes, and what came out of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import trio

from ..graph.tensor import Array
from .marks import Marks

if TYPE_CHECKING:
    from .executor import Execution
    from .profile import Part


LATEST_PARTS = 10_000
"""Of an item that loops for long, the profile knows the latest parts."""


class Flight:
    """An item on its way through a session; used on the trio thread only.

    Attributes
    ----------
    done : trio.Event
        Set when `results` or `error` stand and the item's slot is free again.
    part : Flight or None
        Where the item goes through several plans: the one that is under way.
    parts : deque of Part
        What ran of it, the latest last.
    is_part : bool
        True when it is only one of the plans that an item goes through.
    marks : Marks
        When it was where.
    cancelled : bool
        True when no further one may be started.
    """

    __slots__ = (
        "cancelled",
        "done",
        "error",
        "execution",
        "is_part",
        "marks",
        "part",
        "parts",
        "results",
    )

    def __init__(self, *, is_part: bool = False) -> None:
        self.is_part = is_part
        self.marks = Marks()
        self.done = trio.Event()
        self.results: Mapping[str, Array] = {}
        self.error: BaseException | None = None
        self.execution: Execution | None = None
        self.part: Flight | None = None
        self.parts: deque[Part] = deque(maxlen=LATEST_PARTS)
        self.cancelled = False

    def finish(
        self, results: Mapping[str, Array] | None = None, error: BaseException | None = None
    ) -> None:
        """Record how it ended."""
        self.results, self.error = results or {}, error
        self.execution = None
        self.done.set()

    @trio.lowlevel.enable_ki_protection  # or Ctrl-C might strike between two counts
    def cancel(self) -> None:
        """Skip what has not started; `done` is set when what runs has ended."""
        self.cancelled = True
        if self.part is not None:
            self.part.cancel()
        if self.execution is not None:
            self.execution.cancel()


class Item:
    """One result of a stream.

    Attributes
    ----------
    index : int
        Its place in the source, from 0.
    error : BaseException or None
        Why it failed; the stream goes on.
    """

    __slots__ = ("_results", "error", "index")

    def __init__(
        self, index: int, results: Mapping[str, Array], error: BaseException | None
    ) -> None:
        self.index = index
        self.error = error
        self._results = results

    def __getitem__(self, name: str) -> Array:
        """Return an output, by name; raise the item's error if it failed."""
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    @property
    def outputs(self) -> Mapping[str, Array]:
        """All outputs by name; raises the item's error if it failed."""
        if self.error is not None:
            raise self.error
        return self._results

    def __repr__(self) -> str:
        state = f"error={self.error!r}" if self.error is not None else f"outputs={[*self._results]}"
        return f"Item({self.index}, {state})"
