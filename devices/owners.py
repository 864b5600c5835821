"""Numbers of objects elsewhere, to be freed there when the object here that owns them goes."""

from __future__ import annotations

import weakref
from collections.abc import Callable


class Owners:
    """Calls a function with a number when an object goes, for as long as this lives itself.

    A `weakref.finalize` would live until the object goes: a graph, which outlives many worker
    processes, would keep what is left of each.

    Parameters
    ----------
    free : callable
        It may be called at any moment, on any thread.
    """

    def __init__(self, free: Callable[[int], object]) -> None:
        self._free = free
        self._owners: dict[int, weakref.ref[object]] = {}

    def add(self, owner: object, number: int) -> None:
        """Free what has a number when its owner goes."""
        me = weakref.ref(self)

        def free(_: object) -> None:
            owners = me()
            if owners is not None:
                del owners._owners[number]
                owners._free(number)

        self._owners[number] = weakref.ref(owner, free)
