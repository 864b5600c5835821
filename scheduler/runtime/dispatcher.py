"""The choice of replicas for each item."""

from __future__ import annotations

from collections.abc import Container
from weakref import WeakKeyDictionary

from ..dispatch.rotation import Rotation
from ..plans.replicas import Groups, variants
from .items.item import ItemRun


class Dispatcher:
    """Gives each item to a variant of the plan; used on the trio thread only.

    Parameters
    ----------
    groups : tuple of tuple of str
        The replicas.
    lost : container of str
        The devices that are away; items go there last.
    """

    def __init__(self, groups: Groups, lost: Container[str]) -> None:
        self._groups = groups
        self._lost = lost
        self._count = variants(groups)
        self._rotation = Rotation(self._count)
        self._given: WeakKeyDictionary[ItemRun, int] = WeakKeyDictionary()

    def choose(self, flight: ItemRun) -> int:
        """Return the variant with the fewest items under way, of equals the next in turn."""
        if self._count == 1:
            return 0
        given = self._given
        before = given.pop(flight, None)  # it found no slot there, and is given a place anew
        for other in [one for one in given if one.is_over]:
            del given[other]
        under_way = [0] * self._count
        for index in given.values():
            under_way[index] += 1
        away = {index for index in range(self._count) if self._is_lost(index)}
        chosen = self._rotation.choose(under_way, away, before)
        given[flight] = chosen
        return chosen

    def move(self, flight: ItemRun) -> int:
        """Return the variant for an item whose own was lost.

        It stays while slots are held for consumers: these may be waiting for this very item.
        """
        is_held = any(one.holds for one in self._given if not one.is_over)
        return flight.variant if is_held else self.choose(flight)

    def _is_lost(self, index: int) -> bool:
        return any(names[index % len(names)] in self._lost for names in self._groups)
