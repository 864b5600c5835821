"""The items of a session in flight, and the memory that may be copied meanwhile."""

from __future__ import annotations

from ...costs.host import ALONE_BYTES, INLINE_BYTES
from .item import ItemRun


class ItemsUnderWay(set[ItemRun]):
    """Those that have been started and have not landed; changed on the trio thread only.

    `copying` counts those being copied on threads, most of them before they are started.
    """

    copying = 0

    def most_inline(self, item_run: ItemRun) -> int:
        """Return how many bytes of `item_run` may be copied on the loop's thread; thread-safe.

        Items that wait for a slot are not counted: without items in flight, one will be free soon.
        """
        others = self.copying or len(self) > (item_run in self)
        return INLINE_BYTES if others else ALONE_BYTES
