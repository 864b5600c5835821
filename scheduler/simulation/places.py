"""Slots and copies of regions for the items on one variant of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from ..dispatch.region_ring import Grant, RegionRing
from ..plans.regions import Region, must_take_turns


class SlotPlaces:
    """The `Slots` of a variant as in a session, for `slots` items, and its `RegionRing`.

    `claiming` and `releasing` are those of the ring; `under_way` counts the items in flight.
    """

    def __init__(self, regions: Sequence[Region], slots: int) -> None:
        in_turn = must_take_turns(regions, slots)
        self.under_way = 0
        self._rings = RegionRing(regions if in_turn else ())
        self._free = None if in_turn else list(range(slots))[::-1]
        self._items: list[int] = []
        self._slot: dict[int, tuple[int, int]] = {}
        self.claiming, self.releasing = self._rings.claiming, self._rings.releasing

    @property
    def is_full(self) -> bool:
        """Whether no slot is free; items that take turns on regions wait for these instead."""
        return self._free is not None and not self._free

    def admit(self, item: int) -> int:
        number = self._rings.admit()
        slot = number if self._free is None else self._free.pop()
        self._slot[item] = number, slot
        self._items.append(item)
        self.under_way += 1
        return slot

    def claim(self, item: int, step: int) -> bool:
        """Return whether `step` of `item` may start; otherwise `complete` or `leave` returns it."""
        return self._rings.claim(self._slot[item][0], step)

    def complete(self, item: int, step: int) -> list[Grant]:
        """Mark `step` of `item` as complete; return steps that may start, earlier items first."""
        return self._named(self._rings.complete(self._slot[item][0], step))

    def leave(self, item: int) -> list[Grant]:
        """Release the place of an item; return the steps that may start now."""
        number, slot = self._slot.pop(item)
        if self._free is not None:
            self._free.append(slot)
        self.under_way -= 1
        return self._named(self._rings.leave(number))

    def _named(self, granted: list[Grant]) -> list[Grant]:
        return [(self._items[number], step) for number, step in granted]
