"""Copies of regions, taken by items in turn.

Items in flight share the copies of a region like the places of a ring: item n has copy n % copies,
after the item before it there has released it. Since items only ever wait for earlier ones, some
item can always continue, with any regions. Pure decisions, without a clock or a lock: the executor
and the simulator take the same.

Why in turn, and not any free copy: with free choice, two items could each hold a copy that the
other one needs next, and no order of admission would rule that out. In turn, the earliest item that
has not ended never waits for a later one, so it ends (the proof is in `docs/memory.md`). A fixed
copy also means that steps are bound ahead: a free choice would multiply the bindings of a step by
the copies of each region that it touches.

The price: an item waits for the item `copies` before it even if another copy is free, which happens
where durations vary. Regions that are held for long get more copies in the plan instead. If items
of very unequal length become common on lanes, look again at this rule first.

A region is claimed by the first steps that touch it, not at admission, and released by the last,
not at the end: so the second stage of a pipeline does not keep the memory of the first one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..plans.regions import Region

Grant: TypeAlias = tuple[int, int]
"""An item, and the step of it that may start now."""


class RegionRing:
    """The regions that items claim in turn, and the items that have them or wait for them.

    Parameters
    ----------
    regions : iterable of Region
        Those that claim nothing play no part.

    Attributes
    ----------
    claiming : frozenset of int
        The steps that must `claim` before they start, with `ADMISSION` if feeding must.
    releasing : frozenset of int
        The steps that release regions on completion; the number of steps stands for landing.
    """

    def __init__(self, regions: Iterable[Region]) -> None:
        self._claims: dict[int, list[int]] = {}
        self._releases: dict[int, list[int]] = {}
        self._lines: list[list[deque[int]]] = []
        self._owed: list[int] = []
        for region in regions:
            if region.claims:
                self._add(region)
        self.claiming = frozenset(self._claims)
        self.releasing = frozenset(self._releases)
        self._items: dict[int, _Turn] = {}
        self._next = 0

    def _add(self, region: Region) -> None:
        index = len(self._lines)
        self._lines.append([deque() for _ in range(region.copies)])
        self._owed.append(len(set(region.releases)))
        for step in set(region.claims):
            self._claims.setdefault(step, []).append(index)
        for step in set(region.releases):
            self._releases.setdefault(step, []).append(index)

    @property
    def following(self) -> int:
        """The number that the next item will get on being admitted."""
        return self._next

    def has_room(self, step: int) -> bool:
        """Return whether the next item could start `step` as soon as it is admitted."""
        item = self._next
        return not any(self._line(region, item) for region in self._claims.get(step, ()))

    def admit(self) -> int:
        """Put a further item in line for a copy of each region; return the number that it gets."""
        item = self._next
        self._next += 1
        self._items[item] = _Turn(list(self._owed))
        for lines in self._lines:
            lines[item % len(lines)].append(item)
        return item

    def claim(self, item: int, step: int) -> bool:
        """Return whether `step` of `item` may start now; if not, a later call returns it."""
        missing = 0
        for region in self._claims.get(step, ()):
            missing += self._line(region, item)[0] != item
        if missing:
            self._items[item].missing[step] = missing
        return not missing

    def complete(self, item: int, step: int) -> list[Grant]:
        """End `step` of `item`; return the steps that may start now, each with its item."""
        granted: list[Grant] = []
        for region in self._releases.get(step, ()):
            owed = self._items[item].owed
            owed[region] -= 1
            if owed[region] == 0:
                self._release(region, item, granted)
        return sorted(granted)

    def withdraw(self, item: int) -> list[int]:
        """Drop the steps of `item` that wait for copies, and return them."""
        missing = self._items[item].missing
        steps = list(missing)
        missing.clear()
        return steps

    def leave(self, item: int) -> list[Grant]:
        """Release all regions of `item`; return the steps that may start now, with their items."""
        granted: list[Grant] = []
        for region, owed in enumerate(self._items.pop(item).owed):
            is_released = owed == 0 and self._owed[region] > 0
            if not is_released:
                self._release(region, item, granted)
        return sorted(granted)

    def _line(self, region: int, item: int) -> deque[int]:
        lines = self._lines[region]
        return lines[item % len(lines)]

    def _release(self, region: int, item: int, granted: list[Grant]) -> None:
        """Take `item` out of its line for `region`; add steps that may start now to `granted`."""
        line = self._line(region, item)
        was_first = line[0] == item
        line.remove(item)
        if not was_first or not line:
            return
        following = line[0]
        missing = self._items[following].missing
        for step in [s for s in missing if region in self._claims[s]]:
            missing[step] -= 1
            if missing[step] == 0:
                del missing[step]
                granted.append((following, step))


@dataclass(slots=True)
class _Turn:
    """An item's obligations and claims.

    `owed` counts, for each region, the completions that release it; `missing`, for each step that
    waits, the copies that it does not have yet.
    """

    owed: list[int]
    missing: dict[int, int] = field(default_factory=dict)
