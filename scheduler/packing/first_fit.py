"""Places one block after another into the lowest, or the tightest, gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .problem import Problem, sum_loads
from .relation import Intervals

FAR = 1 << 60
"""Beyond every offset."""

CROWDED = 100
"""Conflicts above which numpy is faster than a loop. Measured 2026-11: about 100."""


def place(
    problem: Problem, order: Sequence[int], limit: int, *, tightest: bool = False
) -> list[int] | None:
    """Place the blocks of `problem` in `order`; return None as soon as one ends beyond `limit`.

    Fixed blocks are placed first. With `tightest`, each goes into the smallest gap that fits,
    otherwise into the lowest.
    """
    sizes, alignments = problem.sizes, problem.alignments
    offsets = list(problem.fixed)
    crowded = len(problem.conflicts.indices) > CROWDED * len(sizes)
    taken = _TakenArrays(problem, offsets) if crowded else _TakenLists(problem, offsets)
    for block in order:
        if offsets[block] >= 0:
            continue
        size, alignment = sizes[block], alignments[block]
        top, found, room = 0, -1, 0
        for start, end in taken.around(block):
            if start - top >= size and (found < 0 or start - top < room):
                found, room = top, start - top
                if not tightest:
                    break
            if end > top:
                top = end if alignment == 1 else -(-end // alignment) * alignment
        offset = top if found < 0 else found
        if offset + size > limit:
            return None
        offsets[block] = offset
        taken.put(block, offset)
    return offsets


class _TakenLists:
    """The placed neighbours of a block, found one by one."""

    def __init__(self, problem: Problem, offsets: list[int]) -> None:
        self._near, self._sizes, self._offsets = problem.near, problem.sizes, offsets

    def around(self, block: int) -> list[tuple[int, int]]:
        offsets, sizes = self._offsets, self._sizes
        return sorted(
            [
                (offset, offset + sizes[other])
                for other in self._near[block]
                if (offset := offsets[other]) >= 0
            ]
        )

    def put(self, block: int, offset: int) -> None:
        """Do nothing: the offsets are shared."""


class _TakenArrays:
    """Variant for many neighbours: those without room between them are merged."""

    def __init__(self, problem: Problem, offsets: list[int]) -> None:
        self._conflicts = problem.conflicts
        self._offsets = np.array(offsets, np.int64)
        self._sizes = np.array(problem.sizes, np.int64)

    def around(self, block: int) -> Iterator[tuple[int, int]]:
        near = self._conflicts.near(block)
        starts = self._offsets[near]
        placed = (starts >= 0).nonzero()[0]
        starts = starts[placed]
        ends = starts + self._sizes[near[placed]]
        order = starts.argsort()
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        # Gaps that are too small for the block count as taken.
        gaps = (starts[1:] - ends[:-1] >= self._sizes[block]).nonzero()[0]
        firsts = [*starts[:1].tolist(), *starts[gaps + 1].tolist()]
        lasts = [*ends[gaps].tolist(), *ends[-1:].tolist()]
        return zip(firsts, lasts, strict=True)

    def put(self, block: int, offset: int) -> None:
        self._offsets[block] = offset


def list_orders(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """Yield orders to place `problem` in, with their names, the most successful ones first.

    The orders by size, and by bytes alive at the same time (breadth), are from Pisarchyk and Lee,
    "Efficient memory management for deep neural net inference" (2020).
    """
    sizes = np.array(problem.sizes, np.int64)
    given = np.arange(len(sizes))
    yield "size", np.lexsort((given, -sizes)).tolist()  # good enough for most problems
    degrees = problem.conflicts.degrees
    if problem.intervals is not None:
        lower, upper = np.asarray(problem.intervals.lower), np.asarray(problem.intervals.upper)
        breadths, widths = measure_breadths(problem.intervals, problem.sizes), upper - lower
    else:
        lower, upper = given, given[::-1]
        first, second = problem.conflicts.pairs()
        breadths = sizes + np.bincount(first, sizes[second], len(sizes)).astype(np.int64)
        widths = degrees
    keys = {
        "start": (lower,),
        "breadth, size": (-breadths, -sizes),
        "area": (-sizes * widths,),
        "width, size": (-widths, -sizes),
        "end": (-upper, -sizes),
        "breadth, width": (-breadths, -widths),
        "conflicts": (-sizes * (degrees + 1),),
    }
    for name, key in keys.items():
        yield name, np.lexsort((given, *key[::-1])).tolist()


def measure_breadths(
    intervals: Intervals, sizes: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the most bytes that are alive at once during each of `intervals`, given `sizes`."""
    lower, upper = np.asarray(intervals.lower), np.asarray(intervals.upper)
    times = np.unique(np.concatenate([lower, upper]))
    loads = sum_loads(intervals, sizes)[:-1]
    # Maxima of runs of 2^k loads answer any range with two look-ups.
    levels = [loads]
    while 2 ** len(levels) <= len(loads):
        half, last = 2 ** (len(levels) - 1), levels[-1]
        levels.append(np.maximum(last[:-half], last[half:]))
    start = np.searchsorted(times, lower)
    width = np.maximum(np.searchsorted(times, upper) - start, 1)
    level = np.frexp(width.astype(np.float64))[1] - 1
    breadths = np.empty(len(lower), np.int64)
    for k, runs in enumerate(levels):
        mine = level == k
        breadths[mine] = np.maximum(runs[start[mine]], runs[start[mine] + width[mine] - 2**k])
    return breadths
