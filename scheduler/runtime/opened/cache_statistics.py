"""Statistics of open plans: hits and misses, and how many more plans it pays to keep open."""

from __future__ import annotations

from collections.abc import Hashable

from ....graph.values.recent import RecentItems
from ..status import PlansStatus

MORE_PLANS, MORE_NBYTES = 56, 1 << 30
"""Limit of additional plans, one for each closed plan that is needed again, as
long as those that are open take less memory than that; of each variant. Plans that take turns would
close each other otherwise, each before it is used again."""

KEPT_KEYS = 64
"""Plans that were closed and are remembered; of each variant."""


class CacheStatistics:
    """Counts them; used on the trio thread only.

    Parameters
    ----------
    variants : int
        Of every plan.

    Attributes
    ----------
    more : int
        How many more plans are to be kept than usual, on all variants together.
    """

    def __init__(self, variants: int) -> None:
        self.more = 0
        self._variants = variants
        self._hits = self._misses = 0
        self._closed: RecentItems[Hashable, bool] = RecentItems(KEPT_KEYS * variants)

    def status(self, kept: int) -> PlansStatus:
        """Return the counts so far, with `kept`, the number of plans kept now."""
        return PlansStatus(self._hits, self._misses, kept)

    def hit(self) -> None:
        """Take note that a plan is open when it is looked for."""
        self._hits += 1

    def miss(self, key: Hashable, nbytes: int) -> None:
        """Take note that one is not, while those that are open take that much memory."""
        self._misses += 1
        may_keep = self.more < MORE_PLANS * self._variants and nbytes < MORE_NBYTES
        self.more += bool(self._closed.pop(key) and may_keep)

    def close(self, key: Hashable) -> None:
        """Take note that one is closed to make room."""
        self._closed[key] = True
