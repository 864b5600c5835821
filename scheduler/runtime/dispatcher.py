"""The choice of replicas for each item."""

from __future__ import annotations

from collections.abc import Collection
from weakref import ref

from ..dispatch.rotation import Rotation
from ..plans.replicas import Groups, variants
from .items.item import ItemRun


class Dispatcher:
    """Gives each item to a variant of the plan; used on the trio thread only.

    Parameters
    ----------
    groups : tuple of tuple of str
        The replicas.
    lost : collection of str
        The devices that are away; items go there last.
    """

    def __init__(self, groups: Groups, lost: Collection[str]) -> None:
        self._groups = groups
        self._lost = lost
        self._count = variants(groups)
        self._rotation = Rotation(self._count)
        # Weakly: who gives an item up before it has started tells nobody. A list, for all of it is
        # read at each choice, and a dictionary of weak keys takes three times as long to read.
        self._given: list[tuple[ref[ItemRun], int]] = []

    def choose(self, item_run: ItemRun) -> int:
        """Return the variant with the fewest items under way, of equals the next in turn."""
        if self._count == 1:
            return 0
        before: int | None = None
        under_way = [0] * self._count
        given = []
        for entry in self._given:
            other, index = entry[0](), entry[1]
            if other is item_run:  # it found no slot there, and is given a place anew
                before = index
            elif other is not None and not other.is_over:
                under_way[index] += 1
                given.append(entry)
        away = self._away() if self._lost else ()
        chosen = self._rotation.choose(under_way, away, before)
        given.append((ref(item_run), chosen))
        self._given = given
        return chosen

    def move(self, item_run: ItemRun) -> int:
        """Return the variant for an item whose own was lost.

        It stays while slots are held for consumers: these may be waiting for this very item.
        """
        others = (other() for other, _ in self._given)
        is_held = any(one is not None and one.holds and not one.is_over for one in others)
        return item_run.variant if is_held else self.choose(item_run)

    def _away(self) -> set[int]:
        """Return the variants that need a device which is lost."""
        groups, lost = self._groups, self._lost
        return {
            index
            for index in range(self._count)
            if any(names[index % len(names)] in lost for names in groups)
        }
