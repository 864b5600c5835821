"""A queue that keeps items in their order of arrival, whichever of their tasks runs first.

Trio starts the tasks that are spawned in one turn in random order, so each takes its place before.
"""

from __future__ import annotations

from collections import OrderedDict

import trio


class Queue:
    """Places in order of arrival; used on the trio thread only, but for `place`."""

    def __init__(self) -> None:
        self._places: OrderedDict[QueuePlace, None] = OrderedDict()

    def place(self) -> QueuePlace:
        """Return a place that has not been entered. Thread-safe."""
        return QueuePlace(self._places)

    def enter(self) -> QueuePlace:
        """Enter and return a place after all others."""
        place = self.place()
        place.enter()
        return place


class QueuePlace:
    """A place in a queue. Whatever happens, `leave` it in the end."""

    def __init__(self, places: OrderedDict[QueuePlace, None]) -> None:
        self._places = places
        self._is_first = trio.Event()

    def enter(self) -> None:
        """Go to the end of the queue."""
        self._places[self] = None

    async def wait_first(self) -> None:
        """Wait until all earlier places have been left."""
        if next(iter(self._places)) is not self:
            await self._is_first.wait()
        # What follows may not wait at all, and would then run although it was cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()

    def leave(self) -> None:
        """Let the next place go on; leaving twice is allowed."""
        if self in self._places:
            del self._places[self]
            if self._places:
                next(iter(self._places))._is_first.set()
