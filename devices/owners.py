"""Frees remote objects, known by numbers, when their local owners are deleted."""

from __future__ import annotations

import weakref
from collections.abc import Callable


class Owners:
    """Calls a function with a number when its owner is deleted, while this object lives.

    A `weakref.finalize` would live until the owner is deleted: a graph, which outlives many worker
    processes, would keep the remains of each. `free` is called at any moment, on any thread.
    """

    def __init__(self, free: Callable[[int], object]) -> None:
        self._free = free
        self._owners: dict[int, weakref.ref[object]] = {}

    def add(self, owner: object, number: int) -> None:
        """Free `number` when `owner` is deleted."""
        me = weakref.ref(self)

        def free(_: object) -> None:
            owners = me()
            if owners is not None:
                del owners._owners[number]
                owners._free(number)

        self._owners[number] = weakref.ref(owner, free)
