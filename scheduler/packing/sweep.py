"""Packings of lifetimes in order of time, without a look at pairs of blocks: near-linear.

Whatever dies leaves a gap, gaps that meet become one, and what begins to live gets the tightest gap
that holds it ("best fit"). All else that is done here compares each block with those alive beside
it, which for tens of thousands of blocks that live long is more than there is time and memory for.
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
"""Of what begins to live at the same time, what comes first."""


def sweeps(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """Yield packings of lifetimes, in both directions of time; no block may be fixed."""
    lives = problem.intervals
    assert lives is not None, "there are lifetimes"
    lower, upper = np.asarray(lives.lower, np.int64), np.asarray(lives.upper, np.int64)
    upper = np.maximum(upper, lower + 1)  # one that is never alive still takes its bytes
    sizes = np.array(problem.sizes, np.int64)
    for name, key in _ORDERS.items():
        yield f"sweep by {name}", _swept(problem, lower, upper, key(lower, upper, sizes))
        yield f"sweep back by {name}", _swept(problem, -upper, -lower, key(-upper, -lower, sizes))


def _swept(
    problem: Problem, lower: Indices, upper: Indices, ties: tuple[Indices, ...]
) -> list[int]:
    sizes, alignments, unit = problem.sizes, problem.alignments, problem.unit
    begins, offsets, gaps = lower.tolist(), [0] * len(problem), _Gaps()
    ends = np.argsort(upper, kind="stable").tolist()
    times = upper.tolist()
    dead = 0
    for block in np.lexsort((*ties[::-1], lower)).tolist():
        while times[ends[dead]] <= begins[block]:
            gaps.give_back(offsets[ends[dead]], sizes[ends[dead]])
            dead += 1
        # Offsets are multiples of the unit: so much more always has an aligned start in it.
        offsets[block] = gaps.take(sizes[block], alignments[block], alignments[block] - unit)
    return offsets


class _Gaps:
    """What is free below the top: by size, to find the tightest, and by both ends, to join."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        """For the start of each gap where it ends."""
        self._starts: dict[int, int] = {}
        self._top = 0

    def take(self, size: int, alignment: int, slack: int) -> int:
        """Return where the tightest gap holds a block, else on top."""
        place = bisect_left(self._by_size, (size + slack, -1))
        if place < len(self._by_size):
            start = self._by_size[place][1]
        else:  # a gap that reaches the top is the beginning of the room above it
            start = self._starts.get(self._top, self._top)
        end = self._remove(start) if start in self._ends else self._top
        offset = -(-start // alignment) * alignment
        self._top = max(self._top, offset + size)
        self._add(start, offset)
        self._add(offset + size, max(end, offset + size))
        return offset

    def give_back(self, start: int, size: int) -> None:
        """Make bytes a gap, with those beside it."""
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
        """Forget the gap at a start, and return where it ends."""
        end = self._ends.pop(start)
        del self._starts[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        return end
