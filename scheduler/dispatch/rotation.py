"""The choice of a plan's variant for the next item, which sessions and simulations share."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Rotation:
    """The choice of the next variant: that with the fewest items in flight, of equals the next."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._following = 0
        self._twice_round = [*range(count)] * 2

    def choose(
        self, under_way: Sequence[int], away: Collection[int] = (), again: int | None = None
    ) -> int:
        """Return the index of the variant for an item; `under_way` counts the items on each.

        Variants in `away` are chosen last. `again` is the one that the item had before, which is
        the first in turn; None for a new item.
        """
        first = self._following if again is None else again
        turns = self._twice_round[first : first + self._count]
        if away:
            turns = [index for index in turns if index not in away] or turns
        chosen: int = min(turns, key=under_way.__getitem__)
        self._following = (chosen + 1) % self._count
        return chosen
