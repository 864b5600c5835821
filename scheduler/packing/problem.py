"""The normalized problem: merged groups, no empty blocks, rounded sizes, a lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .cliques import MAX_BLOCKS, find_heavy_cliques, weigh_heavy_clique
from .relation import Block, Conflicts, Intervals, PackingError, Relation, Stacked, check_blocks

LISTED = 1_000_000
"""Limit of conflicts in Python lists, which take ten times their bytes."""

MOST_PAIRS = 1_000_000
"""Limit of pairs of lifetimes; with more, only sweeps run: pairs would take 100 bytes each."""


class Problem:
    """Solid blocks, one per group.

    Sizes are rounded up to the greatest common divisor of all alignments: offsets are multiples of
    it, so only the bytes after the highest block differ.
    """

    def __init__(self, blocks: Sequence[Block], relation: Relation) -> None:
        check_blocks(blocks)
        if len(blocks) != len(relation):
            raise PackingError(
                f"there are {len(blocks)} blocks and a relation of {len(relation)}",
                fix="describe each block once",
            )
        self._blocks = blocks
        self._member = _number_groups(blocks)
        count = max(self._member, default=-1) + 1
        solids: list[list[Block]] = [[] for _ in range(count)]
        for block, solid in zip(blocks, self._member, strict=True):
            if solid >= 0:
                solids[solid].append(block)
        self.alignments = [math.lcm(*(block.alignment for block in solid)) for solid in solids]
        self.fixed = [_get_fixed_offset(solid) for solid in solids]
        # All offsets are multiples of this, so that rounded sizes take the same room.
        self.unit = math.gcd(*self.alignments) if solids else 1
        self._bytes = [max(block.nbytes for block in solid) for solid in solids]
        self.sizes = [-(-nbytes // self.unit) * self.unit for nbytes in self._bytes]
        kept = [index for index, solid in enumerate(self._member) if solid >= 0]
        number = np.array([self._member[index] for index in kept], np.int64)
        inner = relation if len(kept) == len(blocks) else relation.restrict(kept)
        merged = inner if count == len(blocks) else inner.merge(number, count)
        self.chains = merged.chains if isinstance(merged, Conflicts) else None
        # Pairs that equal lifetimes get the algorithms for lifetimes.
        self.relation = merged if isinstance(merged, Intervals) else merged.in_time() or merged
        _check_fixed(self)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def intervals(self) -> Intervals | None:
        """The lifetimes, if known."""
        return self.relation if isinstance(self.relation, Intervals) else None

    @cached_property
    def conflicts(self) -> Conflicts:
        relation = self.relation
        return relation.conflicts if isinstance(relation, Intervals) else relation

    @cached_property
    def near(self) -> Sequence[list[int]]:
        rows = _Rows(self.conflicts)
        return [rows[block] for block in range(len(rows))] if rows.is_short else rows

    @cached_property
    def cliques(self) -> list[tuple[int, ...]]:
        return find_heavy_cliques(self.conflicts, self.sizes)

    @property
    def is_crowded(self) -> bool:
        """True if there are too many pairs of lifetimes to list."""
        lives = self.intervals
        return lives is not None and max(self.fixed, default=-1) < 0 and lives.n_pairs > MOST_PAIRS

    @property
    def work(self) -> float:
        """The cost of placing all blocks once, in the units of a budget."""
        return len(self) + len(self.conflicts.indices) / 100

    @cached_property
    def lower_bound(self) -> int:
        if not len(self):
            return 0
        reach = max(
            fixed + nbytes for fixed, nbytes in zip(self.fixed, self._bytes, strict=True)
        )  # what is free counts as one byte less than its size, which `alive` outdoes
        alive = self._heaviest(self._bytes)
        # Rounded sizes bound the peak as well, except for the rounding of the top block: offsets
        # are multiples of the unit.
        if self.sizes != self._bytes:
            padding = max(map(int.__sub__, self.sizes, self._bytes))
            alive = max(alive, self._heaviest(self.sizes) - padding)
        return max(reach, alive)

    def _heaviest(self, sizes: Sequence[int]) -> int:
        if self.intervals is not None:
            return max(sum_loads(self.intervals, sizes).tolist(), default=0)
        if len(sizes) > MAX_BLOCKS:
            return weigh_heavy_clique(self.conflicts, sizes)
        return max((sum(sizes[block] for block in clique) for clique in self.cliques), default=0)

    def labels(self, labels: Sequence[int] | None) -> list[int] | None:
        """Return each solid block's label: its first block's in `labels`, or if None its chain."""
        if labels is None:
            if self.chains is None or self.intervals is not None:
                return None
            return [int(label) for label in self.chains]
        mine = [0] * len(self)
        # Backwards, so that the first block of a group decides.
        for index in reversed(range(len(self._blocks))):
            if self._member[index] >= 0:
                mine[self._member[index]] = labels[index]
        return mine

    def restrict(self, chosen: Sequence[int]) -> Problem:
        blocks = [Block(self.sizes[index], self.alignments[index], group=index) for index in chosen]
        return Problem(blocks, self.relation.restrict(chosen))

    def peak(self, offsets: Sequence[int]) -> int:
        """Return the exact end of the last block at `offsets`."""
        return max(map(int.__add__, offsets, self._bytes), default=0)

    def offsets_of_blocks(self, offsets: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            offsets[solid] if solid >= 0 else block.offset or 0
            for solid, block in zip(self._member, self._blocks, strict=True)
        )


class _Rows(Sequence[list[int]]):
    """Rows of conflicts as lists on demand: all lists may be too large."""

    def __init__(self, conflicts: Conflicts) -> None:
        self._conflicts = conflicts
        self.is_short = len(conflicts.indices) < LISTED

    def __len__(self) -> int:
        return len(self._conflicts)

    def __getitem__(self, block: Any) -> Any:
        return self._conflicts.near(block).tolist()


def find_lower_bound(blocks: Sequence[Block], relation: Relation | Stacked) -> int:
    if isinstance(relation, Stacked):
        return int(sum_loads(relation.lives, [block.nbytes for block in blocks]).max(initial=0))
    return Problem(blocks, relation).lower_bound


def sum_loads(intervals: Intervals, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the bytes of `sizes` alive after each start or end of `intervals`, by time."""
    lower, upper = np.asarray(intervals.lower), np.asarray(intervals.upper)
    weights = np.asarray(sizes, np.int64)
    times, place = np.unique(np.concatenate([lower, upper]), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, place, np.concatenate([weights, -weights]))
    loads: npt.NDArray[np.int64] = np.cumsum(change)
    # A block that is never alive still takes its bytes.
    return np.append(loads, weights.max(initial=0))


def _number_groups(blocks: Sequence[Block]) -> list[int]:
    numbers: dict[object, int] = {}
    solids: list[int] = []
    for index, block in enumerate(blocks):
        if block.nbytes == 0 and block.group is None:
            solids.append(-1)
        else:
            key = (index,) if block.group is None else (None, block.group)
            solids.append(numbers.setdefault(key, len(numbers)))
    return solids


def _get_fixed_offset(solid: Sequence[Block]) -> int:
    offsets = {block.offset for block in solid if block.offset is not None}
    alignment = math.lcm(*(block.alignment for block in solid))
    if len(offsets) > 1 or any(offset % alignment for offset in offsets):
        raise PackingError(
            f"the blocks of a group ask for the offsets {sorted(offsets)}, "
            f"multiples of {alignment}",
            at=f"group {solid[0].group!r}",
            fix="ask for one, that suits the alignment of all",
        )
    return offsets.pop() if offsets else -1


def _check_fixed(problem: Problem) -> None:
    fixed, sizes = problem.fixed, problem._bytes
    held = {a for a in range(len(problem)) if fixed[a] >= 0}
    for a in held if len(held) > 1 else ():
        for b in problem.near[a]:
            if b in held and fixed[a] <= fixed[b] < fixed[a] + sizes[a]:
                raise PackingError(
                    "two blocks that may not overlap have to",
                    at=f"offsets {fixed[a]} and {fixed[b]}",
                    fix="fix one of them elsewhere, or leave it free",
                )
