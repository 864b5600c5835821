"""Lowers a packing by force: blocks that do not fit displace others.

Blocks above a capacity lose their places. One after another gets the place where it overlaps the
least weight; the overlapped ones lose theirs in turn, and the displacing one weighs more from then
on, so that difficult blocks settle first ("guided ejection search", Nagata and Braeysy, 2009). A
step only considers a block and its conflicts: thousands of them take a second.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .best import Budget
from .first_fit import FAR
from .problem import Problem

UNIT_WEIGHT = 1000
"""Initial weight of a block of mean size. Whole numbers, for exact sums."""

STEP_WORK, CONFLICT_WORK = 6, 0.015
"""Cost of one placement, and of each conflict of the block, in the units of a budget."""

LOOKS = 16
"""Placements between two looks at the clock."""


class Ejection:
    """Packs one problem below its height repeatedly, and keeps the learned weights.

    The `problem` has no fixed blocks.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._sizes = np.array(problem.sizes, np.int64)
        self._near = [problem.conflicts.near(block) for block in range(len(problem))]
        roots = np.sqrt(self._sizes / max(self._sizes.mean(), 1))
        self._gains = np.maximum(UNIT_WEIGHT * roots, 1).astype(np.int64).tolist()
        self._weights = np.array(self._gains, np.int64)
        self._dice = random.Random(0)

    def below(
        self, offsets: Sequence[int], capacity: int, tries: int, budget: Budget
    ) -> list[int] | None:
        """Squeeze `offsets` into `capacity`; None after `tries` placements or without `budget`."""
        starts = np.array(offsets, np.int64)
        ends = starts + self._sizes
        # A weight changes only when its block is placed: the order of waiting blocks holds.
        waiting: list[tuple[int, int, int]] = []
        self._push_out(np.flatnonzero(ends > capacity), starts, ends, waiting, 0)
        for step in range(1, tries + 1):
            if not waiting:
                placed: list[int] = starts.tolist()
                return placed
            block = heapq.heappop(waiting)[2]
            budget.spend(STEP_WORK + CONFLICT_WORK * len(self._near[block]))
            if step % LOOKS == 0 and budget.is_over():
                return None
            start, cost = self._cheapest(block, starts, ends, capacity)
            end = start + self._problem.sizes[block]
            if cost:
                self._weights[block] += self._gains[block]
                near = self._near[block]
                overlapped = near[(starts[near] < end) & (ends[near] > start)]
                self._push_out(overlapped, starts, ends, waiting, step)
            starts[block], ends[block] = start, end
        return None

    def _push_out(
        self,
        blocks: npt.NDArray[np.integer],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        waiting: list[tuple[int, int, int]],
        step: int,
    ) -> None:
        starts[blocks] = ends[blocks] = FAR
        for weight, block in zip(self._weights[blocks].tolist(), blocks.tolist(), strict=True):
            heapq.heappush(waiting, (-weight, -step, block))

    def _cheapest(
        self, block: int, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], capacity: int
    ) -> tuple[int, int]:
        """Return the place in `capacity` where `block` overlaps the least weight, and that weight.

        Others lie from `starts` to `ends`. The place is at a wall, or directly above or below
        another block; equals are drawn at random.
        """
        near = self._near[block]
        size, alignment = self._problem.sizes[block], self._problem.alignments[block]
        highest = capacity - size
        weights, first, last = self._weights[near], starts[near], ends[near]
        by_start, by_end = first.argsort(), last.argsort()
        first, last = first[by_start], last[by_end]
        below = np.concatenate([(highest,), first - size]) // alignment * alignment
        above = -(-last // alignment) * alignment
        places = np.concatenate([(0,), above, below])
        places = places[(places >= 0) & (places <= highest)]
        # The overlap: blocks that begin below the place's top, less those that end below it.
        begun, ended = np.zeros((2, len(near) + 1), np.int64)
        weights[by_start].cumsum(out=begun[1:])
        weights[by_end].cumsum(out=ended[1:])
        costs = begun[first.searchsorted(places + size)]
        costs -= ended[last.searchsorted(places, "right")]
        least = costs.min()
        equal = (costs == least).nonzero()[0]
        return int(places[equal[self._dice.randrange(len(equal))]]), int(least)
