"""Results that Python functions donate: read in place instead of being copied.

A function's result is nearly always an array that nothing else refers to. It can then replace the
tensor's planned memory until the function's next call on that memory. That saves the copy, and
keeps the allocator from returning the pages to the system, and faulting them in again, between two
items.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph.values.tensor import Array


class Donation:
    """The array that is read in place of a tensor's planned memory.

    Attributes
    ----------
    array : Array
        The function's last result, or the planned memory that it was copied to.
    is_given : bool
        Whether it is the function's own array, which lives on while anything refers to it.
    is_read : bool
        Whether steps read it, and need its elements in C order; else it only leaves the plan.
    """

    __slots__ = ("array", "is_given", "is_read")

    def __init__(self, array: Array, *, is_read: bool = True) -> None:
        self.array = array
        self.is_given = False
        self.is_read = is_read

    def claim(self, planned: Array) -> Array:
        """Return the function's own array, or a copy if something else refers to it.

        `planned`, its memory in the plan, takes its place. A part of a larger array is copied: it
        would keep all of that alive.
        """
        array, self.array, self.is_given = self.array, planned, False
        is_whole = array.base is None or array.base.nbytes == array.nbytes
        if is_whole and array.flags.writeable and check_unshared(array)[0]:
            return array
        return array.copy("K")


def check_unshared(results: Any) -> list[bool]:
    """Return for each of a function's `results` if only the caller's variable refers to it.

    Call it with the one variable that holds the function's results. An array counts if it owns its
    memory, or is a view of one that does and that nothing else refers to. Its elements may have any
    order.
    """
    whole, counts = _count_references(results)
    if not isinstance(results, tuple):
        return [counts[0] <= _ALONE and has_own_memory(results)]
    return [
        whole <= _WHOLE and count <= _EACH and has_own_memory(array)
        for array, count in zip(results, counts, strict=True)
    ]


def _count_references(results: Any) -> tuple[int, list[int]]:
    if isinstance(results, tuple):
        return sys.getrefcount(results), [sys.getrefcount(each) for each in results]
    return 0, [sys.getrefcount(results)]


def has_own_memory(array: Any) -> bool:
    if type(array) is not np.ndarray or not array.flags.aligned:
        return False
    if array.base is None:
        return array.flags.owndata
    whole = type(array.base) is np.ndarray and array.base.flags.owndata
    return whole and sys.getrefcount(array.base) <= _BASE


def _measure_counts() -> tuple[int, int, int, int]:
    """Return the reference counts of unshared objects, which differ between interpreters."""

    def count(results: Any) -> tuple[int, list[int]]:  # as deep as in `check_unshared`
        return _count_references(results)

    def call(function: Callable[[], Any]) -> tuple[int, list[int]]:
        results = function()
        return count(results)

    whole, (each,) = call(lambda: (np.empty(1),))
    _, (alone,) = call(lambda: np.empty(1))
    view = np.empty((1, 1))[0]
    return whole, each, alone, sys.getrefcount(view.base)


_WHOLE, _EACH, _ALONE, _BASE = _measure_counts()
if not getattr(sys, "_is_gil_enabled", lambda: True)():  # counts are not exact then
    _WHOLE = _ALONE = -1
