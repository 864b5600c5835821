"""Offsets for buffers, some of which may not overlap, in as few bytes as we find.

First fit, by several orders; the best result is kept. Sizes are rounded up to the alignment before,
so offsets come out aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Packing(NamedTuple):
    """Where each buffer starts, and where the last one ends, in bytes."""

    offsets: tuple[int, ...]
    nbytes: int


def pack(sizes: Sequence[int], conflicts: Sequence[Sequence[int]]) -> Packing:
    """Place buffers so that conflicting ones do not overlap.

    Parameters
    ----------
    sizes : sequence of int
        Bytes; zero is allowed.
    conflicts : sequence of sequences of int
        For every buffer the indices of those it must not overlap; symmetric.

    Notes
    -----
    Orders: by size; by size times number of conflicts; as given (the order of the writers).
    """
    weights: list[Callable[[int], int]] = [
        lambda i: -sizes[i],
        lambda i: -sizes[i] * (1 + len(conflicts[i])),
        lambda i: i,
    ]
    orders = [sorted(range(len(sizes)), key=weight) for weight in weights]
    packings = [_first_fit(sizes, conflicts, order) for order in orders]
    return min(packings, key=lambda packing: packing.nbytes)


def _first_fit(
    sizes: Sequence[int], conflicts: Sequence[Sequence[int]], order: Sequence[int]
) -> Packing:
    offsets = [-1] * len(sizes)
    for index in order:
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in conflicts[index]
            if offsets[other] >= 0
        )
        offset = 0
        for start, end in taken:
            if start - offset >= sizes[index]:
                break
            offset = max(offset, end)
        offsets[index] = offset
    ends = (offset + size for offset, size in zip(offsets, sizes, strict=True))
    return Packing(tuple(offsets), max(ends, default=0))
