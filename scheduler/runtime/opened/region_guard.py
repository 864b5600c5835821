"""Rings and lines in use: the thread that makes room starts the waiting steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable

from ...dispatch.item_order import ItemOrder, Ordered
from ...dispatch.region_ring import Grant, RegionRing
from ...plans.regions import Region


class _Guard:
    """Steps that wait for earlier items; all methods may be called from any thread."""

    def __init__(self, rings: RegionRing | ItemOrder) -> None:
        self._claims = rings
        self._lock = threading.Lock()
        self._starts: dict[Grant, Callable[[], None]] = {}

    def claim(self, item: int, step: int, start: Callable[[], None]) -> bool:
        """Return whether `step` of `item` may start now; if not, call `start()` when it may."""
        with self._lock:
            if self._claims.claim(item, step):
                return True
            self._starts[item, step] = start
            return False

    def withdraw(self, item: int) -> int:
        """Drop the waiting steps of `item`; return the number of steps that were dropped."""
        with self._lock:
            steps = self._claims.withdraw(item)
            for step in steps:
                del self._starts[item, step]
        return len(steps)

    def complete(self, item: int, step: int) -> None:
        with self._lock:
            starts = [self._starts.pop(grant) for grant in self._claims.complete(item, step)]
        for start in starts:
            start()

    def leave(self, item: int) -> None:
        """Release all that `item` holds, and start the steps of others that waited for it."""
        with self._lock:
            for step in self._claims.withdraw(item):
                del self._starts[item, step]
            starts = [self._starts.pop(grant) for grant in self._claims.leave(item)]
        for start in starts:
            start()


class RegionGuard(_Guard):
    """Guards the regions that items claim in turn; all methods may be called from any thread.

    Attributes
    ----------
    claiming, releasing : frozenset of int
        The steps that must `claim` before they start, and those with a completion that matters.
    """

    def __init__(self, regions: Iterable[Region]) -> None:
        self._rings = RegionRing(regions)
        super().__init__(self._rings)
        self.claiming = self._rings.claiming
        self.releasing = self._rings.releasing

    @property
    def following(self) -> int:
        """The number that the next item will get on being admitted."""
        return self._rings.following

    def has_room(self, step: int) -> bool:
        """Return whether the next item could start `step` as soon as it is admitted."""
        with self._lock:
            return self._rings.has_room(step)

    def admit(self) -> int:
        """Admit an item and return its number; it must `leave` in the end, in any case."""
        with self._lock:
            return self._rings.admit()


class OrderGuard(_Guard):
    """Guards the order of the items of a session; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._order = ItemOrder()
        super().__init__(self._order)

    def admit(self, ordered: Ordered, state: Hashable = None) -> int:
        """Admit an item with `ordered` steps and `state`; return its number, which must `leave`."""
        with self._lock:
            return self._order.admit(ordered, state)
