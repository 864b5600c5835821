"""A queue that items pass in the order in which they came, however late their tasks begin."""

from __future__ import annotations

from collections import OrderedDict

import trio


class Queue:
    """Any thread may come; who waits and leaves does so on the trio thread."""

    def __init__(self) -> None:
        self._places: OrderedDict[QueuePlace, None] = OrderedDict()

    def enter(self) -> QueuePlace:
        """Return a place behind all others."""
        place = QueuePlace(self._places)
        self._places[place] = None
        return place


class QueuePlace:
    """A place in a queue; whoever has it leaves it in the end, whatever happens."""

    def __init__(self, places: OrderedDict[QueuePlace, None]) -> None:
        self._places = places
        self._is_first = trio.Event()

    async def wait_first(self) -> None:
        """Wait until all who came before have left; who was cancelled meanwhile gets no further."""
        if next(iter(self._places)) is not self:
            await self._is_first.wait()
        # What follows may not wait at all, and would then run although it was cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()

    def leave(self) -> None:
        """Let the next one go on; leaving twice is allowed."""
        if self in self._places:
            del self._places[self]
            if self._places:
                next(iter(self._places))._is_first.set()
