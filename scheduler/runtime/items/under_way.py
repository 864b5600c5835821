"""The items of a session that are under way, and what may be copied while they are."""

from __future__ import annotations

from ...costs.host import ALONE_BYTES, INLINE_BYTES
from .item import ItemRun


class ItemsUnderWay(set[ItemRun]):
    """Those that have been started and have not landed; changed on the trio thread only.

    Attributes
    ----------
    copying : int
        How many are being copied on threads, most of them before they are started.
    """

    copying = 0

    def most_inline(self, item_run: ItemRun) -> int:
        """Return how many bytes of an item may be copied on the loop's thread; on any thread.

        Who waits for a slot is not counted: where no item is under way, one is about to be free.
        """
        others = self.copying or len(self) > (item_run in self)
        return INLINE_BYTES if others else ALONE_BYTES
