"""Packings of lifetimes in order of time, without pairs of blocks: near-linear.

Ending blocks leave gaps, adjacent gaps are merged, and each new block gets the tightest gap that
fits ("best fit"). All other methods compare each block with those alive at the same time, which
takes too much time and memory for tens of thousands of long-lived blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

import numpy as np

from .problem import Problem
from .relation import Indices

Key = Callable[[Indices, Indices, Indices], tuple[Indices, ...]]

_ORDERS: dict[str, Key] = {
    "end": lambda lower, upper, sizes: (upper, -sizes),
    "end, latest first": lambda lower, upper, sizes: (-upper, -sizes),
    "size": lambda lower, upper, sizes: (-sizes, upper),
}
"""The order of blocks that begin at the same time."""


def sweep(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """Yield packings of `problem`, in both directions of time; no block may be fixed."""
    lives = problem.intervals
    assert lives is not None, "there are lifetimes"
    lower, upper = np.asarray(lives.lower, np.int64), np.asarray(lives.upper, np.int64)
    upper = np.maximum(upper, lower + 1)  # blocks that are never alive still take bytes
    sizes = np.array(problem.sizes, np.int64)
    for name, key in _ORDERS.items():
        yield f"sweep by {name}", _sweep(problem, lower, upper, key(lower, upper, sizes))
        yield f"sweep back by {name}", _sweep(problem, -upper, -lower, key(-upper, -lower, sizes))


def _sweep(
    problem: Problem, lower: Indices, upper: Indices, ties: tuple[Indices, ...]
) -> list[int]:
    sizes, alignments, unit = problem.sizes, problem.alignments, problem.unit
    begins, offsets, gaps = lower.tolist(), [0] * len(problem), _Gaps()
    ends = np.argsort(upper, kind="stable").tolist()
    times = upper.tolist()
    dead = 0
    for block in np.lexsort((*ties[::-1], lower)).tolist():
        while times[ends[dead]] <= begins[block]:
            gaps.release(offsets[ends[dead]], sizes[ends[dead]])
            dead += 1
        # Offsets are multiples of the unit: this slack always contains an aligned start.
        offsets[block] = gaps.take(sizes[block], alignments[block], alignments[block] - unit)
    return offsets


class _Gaps:
    """Free gaps below the top: by size, to find the tightest, and by both ends, to merge."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        """End of each gap by its start."""
        self._starts: dict[int, int] = {}
        self._top = 0

    def take(self, size: int, alignment: int, slack: int) -> int:
        place = bisect_left(self._by_size, (size + slack, -1))
        if place < len(self._by_size):
            start = self._by_size[place][1]
        else:  # a gap that reaches the top extends into the room above it
            start = self._starts.get(self._top, self._top)
        end = self._remove(start) if start in self._ends else self._top
        offset = -(-start // alignment) * alignment
        self._top = max(self._top, offset + size)
        self._add(start, offset)
        self._add(offset + size, max(end, offset + size))
        return offset

    def release(self, start: int, size: int) -> None:
        end = start + size
        if end in self._ends:
            end = self._remove(end)
        if start in self._starts:
            start = self._starts[start]
            self._remove(start)
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        if start < end:
            self._ends[start], self._starts[end] = end, start
            insort(self._by_size, (end - start, start))

    def _remove(self, start: int) -> int:
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        return end
