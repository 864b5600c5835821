"""A queue that keeps items in their order of arrival, whichever of their tasks runs first.

Trio starts the tasks that are spawned in one turn in random order, so each takes its place before.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

import trio

from ..errors import SessionError

MOST_PRIORITY = 1000


def check_priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MOST_PRIORITY:
        raise SessionError(
            f"priority is {value!r}",
            fix=f"use a whole number from {-MOST_PRIORITY} to {MOST_PRIORITY}",
        )
    return value


class ItemQueue:
    """Places by priority, and in order of arrival; used on the trio thread only, but for `place`.

    The first place stays the first until it is left, also if one of a higher priority arrives.
    """

    def __init__(self) -> None:
        self._first: QueuePlace | None = None
        self._later: list[tuple[int, int, QueuePlace]] = []
        self._arrivals = count()

    def place(self, priority: int = 0) -> QueuePlace:
        """Return a place of `priority` that has not been entered. Thread-safe."""
        return QueuePlace(self, priority)

    def enter(self) -> QueuePlace:
        place = self.place()
        place.enter()
        return place

    def add(self, place: QueuePlace) -> None:
        """Add `place` after those of its priority and of higher ones."""
        if self._first is None:
            self._first = place
        else:
            heappush(self._later, (-place.priority, next(self._arrivals), place))

    def is_first(self, place: QueuePlace) -> bool:
        return self._first is place

    def advance(self) -> None:
        """Give the turn to the next place that has not been left."""
        self._first = None
        while self._later and self._first is None:
            place = heappop(self._later)[2]
            if not place.is_left:
                self._first = place
                place.is_next.set()


class QueuePlace:
    """A place in a queue, to be left in the end.

    Higher `priority` goes first. `is_next` is set when its turn comes, unless it was the first from
    the start.
    """

    def __init__(self, queue: ItemQueue, priority: int) -> None:
        self.priority = priority
        self._queue = queue
        self.is_next = trio.Event()
        self.is_left = False

    def enter(self) -> None:
        self._queue.add(self)

    async def wait_first(self) -> None:
        """Wait until all earlier places have been left."""
        if not self._queue.is_first(self):
            await self.is_next.wait()
        # Later code may not wait at all, and would then run despite the cancellation.
        await trio.lowlevel.checkpoint_if_cancelled()

    def leave(self) -> None:
        """Let the next place go on; leaving twice is allowed."""
        self.is_left = True
        if self._queue.is_first(self):
            self._queue.advance()
