"""Back-pressure: no more items are asked for than may be alive.

A permit is held from before an item is pulled from its source until the consumer releases its
result, so at most `max_in_flight` items are ever alive; a channel of that size would allow more.
Streams under trio and asyncio, streams of synchronous code, simulated streams, and the slots of
open plans count here. They differ in how they wait for a permit: a parking lot, an event, or a
queue of results that the same thread reads.
"""

from __future__ import annotations

WAITING = 4
"""Items in flight of a stream beyond one per core, by default. The consumer needs a core to pull
the next one: with two, threads that take 0.5 ms for an item waited for 11 % of the time (two cores,
2026-11-30)."""


class Permits:
    """Permits for items that may yet begin.

    `free` is the number of permits that no item holds.
    """

    def __init__(self, count: int) -> None:
        self.free = count

    def take(self, count: int = 1) -> bool:
        if self.free < count:
            return False
        self.free -= count
        return True

    def give_back(self, _: object = None) -> None:
        """Add a permit to `free`. The argument is ignored: consumers pass the item they release."""
        self.free += 1
