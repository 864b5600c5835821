"""Blocks to be placed, and the relation of those that may not overlap: lifetimes or pairs.

Both are kept in arrays: 20,000 blocks with 30 conflicts each take 5 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import PlanError


class PackingError(PlanError):
    """The blocks are invalid or contradict each other."""


class Block(NamedTuple):
    """Bytes to be placed.

    Attributes
    ----------
    nbytes : int
        Zero is allowed: such a block conflicts with nothing.
    alignment : int
        The offset is a multiple of it.
    offset : int, optional
        A fixed place.
    group : hashable, optional
        Blocks of a group share their bytes: they start at the same offset, and count as one.
    """

    nbytes: int
    alignment: int = 1
    offset: int | None = None
    group: object = None


@dataclass(frozen=True, slots=True)
class Packing:
    """The places of all blocks.

    Parameters
    ----------
    offsets : tuple of int
        Bytes from the start, one per block.
    nbytes : int
        End of the last block: the peak.
    lower_bound : int
        A lower bound of all packings.
    algorithm : str
        The successful one.
    seconds : float
        The time of packing.
    """

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int = 0
    algorithm: str = ""
    seconds: float = 0.0

    @property
    def is_optimal(self) -> bool:
        return self.nbytes <= self.lower_bound


def check_blocks(blocks: Sequence[Block]) -> None:
    for index, block in enumerate(blocks):
        what = ""
        if block.nbytes < 0:
            what = f"{block.nbytes} bytes"
        elif block.alignment < 1:
            what = f"an alignment of {block.alignment}"
        elif block.offset is not None and (block.offset < 0 or block.offset % block.alignment):
            what = f"the offset {block.offset}, which is not a multiple of {block.alignment}"
        if what:
            raise PackingError(
                f"a block cannot have {what}", at=f"block {index}", fix="correct the block"
            )


Indices: TypeAlias = npt.NDArray[np.int64]


class Conflicts:
    """Pairs of blocks that may not overlap, symmetric and sparse.

    Parameters
    ----------
    indptr : array of int, (n + 1,)
        Start of each block's row in `indices`.
    indices : array of int
        The conflicts of each block, row after row.
    chains : array of int, optional
        A label for each block, equal for blocks that one serial chain of points writes.
    """

    def __init__(
        self, indptr: Indices, indices: npt.NDArray[Any], chains: Indices | None = None
    ) -> None:
        self.indptr, self.indices, self.chains = indptr, indices, chains

    @classmethod
    def of_pairs(
        cls, count: int, first: Sequence[int] | Indices, second: Sequence[int] | Indices
    ) -> Conflicts:
        a, b = np.asarray(first, np.int64), np.asarray(second, np.int64)
        if len(a) and not 0 <= min(a.min(), b.min()) <= max(a.max(), b.max()) < count:
            raise PackingError(
                f"a conflict names a block that is not there: there are {count}",
                fix="number the blocks from 0",
            )
        # Merging blocks makes pairs of a block with itself, which mean nothing.
        apart = a != b
        # A pair as one number, the smaller block first: one sort drops doubles.
        codes = np.unique(np.minimum(a, b)[apart] * count + np.maximum(a, b)[apart])
        return cls.of_rows(count, codes // max(count, 1), codes % max(count, 1))

    @classmethod
    def of_rows(cls, count: int, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Conflicts:
        degrees = np.bincount(first, minlength=count) + np.bincount(second, minlength=count)
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        # Stable, so that the partners of a block are in the order of their pairs: plans are equal
        # on any machine. In 32 bits, since this list is most of the memory; only row offsets may be
        # larger.
        order = np.argsort(np.concatenate([first, second]).astype(np.int32), kind="stable")
        indices = np.concatenate([second, first]).astype(np.int32)
        return cls(indptr, indices[order])

    @classmethod
    def of_lists(cls, lists: Sequence[Iterable[int]]) -> Conflicts:
        rows = [list(row) for row in lists]
        first = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        second = np.fromiter(chain.from_iterable(rows), np.int64)
        return cls.of_pairs(len(rows), first, second)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def near(self, block: int) -> npt.NDArray[Any]:
        return self.indices[self.indptr[block] : self.indptr[block + 1]]

    @property
    def degrees(self) -> Indices:
        return np.diff(self.indptr)

    def pairs(self) -> tuple[Indices, Indices]:
        return np.repeat(np.arange(len(self)), self.degrees), self.indices.astype(np.int64)

    def restrict(self, blocks: Sequence[int]) -> Conflicts:
        rows = np.asarray(blocks, np.int64)
        number = np.full(len(self), -1, np.int64)
        number[rows] = np.arange(len(rows))
        counts = self.degrees[rows]
        # Only requested rows are read, each from its start.
        shifts = self.indptr[rows] - (np.cumsum(counts) - counts)
        second = number[self.indices[np.arange(counts.sum()) + np.repeat(shifts, counts)]]
        kept = second >= 0
        first = np.repeat(np.arange(len(rows)), counts)[kept]
        ends = np.cumsum(np.bincount(first, minlength=len(rows)))
        chains = None if self.chains is None else self.chains[rows]
        indptr = np.concatenate([[0], ends]).astype(np.int64)
        return Conflicts(indptr, second[kept].astype(np.int32), chains)

    def in_time(self) -> Intervals | None:
        """Return equivalent lifetimes, if the blocks are in order of starts and there are such."""
        first, second = self.pairs()
        later = second > first
        # Let block i be alive from i to the last later block in conflict with it. If it conflicts
        # with all blocks in between too, the pairs are equivalent to these lifetimes.
        upper = np.arange(1, len(self) + 1)
        np.maximum.at(upper, first[later], second[later] + 1)
        # A block that conflicts with all blocks from its start to its end is alive for as long.
        runs = np.bincount(first[later], minlength=len(self))
        lower = np.arange(len(self))
        return Intervals(lower, upper) if (runs == upper - lower - 1).all() else None

    def merge(self, number: Indices, count: int) -> Conflicts:
        a, b = self.pairs()
        # Blocks in one union no longer conflict: they are one block at one address.
        merged = Conflicts.of_pairs(count, number[a], number[b])
        if self.chains is not None:
            merged.chains = np.zeros(count, np.int64)
            merged.chains[number[::-1]] = self.chains[::-1]  # that of the first block in each
        return merged


@dataclass(frozen=True)
class Intervals:
    """Lifetimes: a block is alive from `lower` to just before `upper`, in some total order.

    Blocks conflict if they are alive at the same time; blocks that never are have no conflicts.
    """

    lower: Sequence[int] | Indices
    upper: Sequence[int] | Indices

    def __post_init__(self) -> None:
        lower, upper = np.asarray(self.lower, np.int64), np.asarray(self.upper, np.int64)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if lower.shape != upper.shape or (lower > upper).any():
            wrong = "" if lower.shape != upper.shape else f"block {int((lower > upper).argmax())}"
            raise PackingError(
                "a lifetime ends before it starts, or has no end",
                at=wrong or None,
                fix="give each block lower <= upper",
            )

    def __len__(self) -> int:
        return len(self.lower)

    def restrict(self, blocks: Sequence[int]) -> Intervals:
        chosen = np.asarray(blocks, np.int64)
        return Intervals(np.asarray(self.lower)[chosen], np.asarray(self.upper)[chosen])

    def merge(self, number: Indices, count: int) -> Intervals:
        """Return the lifetimes of `count` unions by each block's `number`, with gaps filled."""
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        alive = lower < upper
        # Filling gaps is conservative: a block has one address while any of its parts lives.
        low = np.full(count, np.iinfo(np.int64).max)
        high = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(low, number[alive], lower[alive])
        np.maximum.at(high, number[alive], upper[alive])
        # Unions that are never alive keep no sentinels, whose difference would overflow.
        never = low > high
        low[never] = high[never] = 0
        return Intervals(low, high)

    def near(self, block: int) -> npt.NDArray[Any]:
        """Return the conflicts of a block without listing all pairs."""
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        begins, ends = lower[block], upper[block]
        # Both must be alive at all: an empty lifetime inside another one passes the first two
        # tests.
        found = (lower < ends) & (upper > begins) & (lower < upper) & (begins < ends)
        found[block] = False
        return np.flatnonzero(found)

    @cached_property
    def n_pairs(self) -> int:
        """Count of pairs of blocks that are alive together, without listing them."""
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        starts = np.sort(lower[lower < upper])
        # In order of their starts, a block meets those that start before it ends: a run.
        ends = np.searchsorted(starts, upper[lower < upper])
        return int(ends.sum()) - len(starts) * (len(starts) + 1) // 2

    @cached_property
    def conflicts(self) -> Conflicts:
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        alive = np.flatnonzero(lower < upper)
        order = alive[np.argsort(lower[alive], kind="stable")]
        # In order of their starts, a block meets those that start before it ends: a run.
        ends = np.searchsorted(lower[order], upper[order])
        counts = ends - np.arange(len(order)) - 1
        first = np.repeat(np.arange(len(order)), counts)
        # The partners of the i-th in that order are i + 1, i + 2, ...: the position of each pair in
        # its run, counted from the block.
        second = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts) + first + 1
        return Conflicts.of_rows(len(self), order[first], order[second])


@dataclass(frozen=True)
class Stacked:
    """Parts that never share bytes, when their pairs would take too much memory.

    Attributes
    ----------
    parts : tuple of (array of int, Intervals)
        The blocks of each part, in ascending order, and their lifetimes.
    lives : Intervals
        The lifetimes of all blocks in one possible order: blocks that are alive together in it
        cannot share bytes in any packing.
    """

    parts: tuple[tuple[Indices, Intervals], ...]
    lives: Intervals

    def __len__(self) -> int:
        return len(self.lives)

    def near(self, block: int) -> npt.NDArray[Any]:
        # All blocks outside of its part conflict; inside, lifetimes decide.
        found = np.ones(len(self), np.bool_)
        for indices, lives in self.parts:
            place = np.searchsorted(indices, block)
            if place < len(indices) and indices[place] == block:
                found[indices] = False
                found[indices[lives.near(int(place))]] = True
        return np.flatnonzero(found)

    def restrict(self, blocks: Sequence[int]) -> Stacked:
        """Return the parts of some blocks, given in ascending order and numbered anew."""
        chosen = np.asarray(blocks, np.int64)
        number = np.full(len(self), -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        parts = []
        for indices, lives in self.parts:
            kept = np.flatnonzero(number[indices] >= 0)
            if len(kept):
                # Still ascending, as the search in `near` needs: callers list blocks in order.
                parts.append((number[indices[kept]], lives.restrict(kept.tolist())))
        return Stacked(tuple(parts), self.lives.restrict(blocks))


Relation: TypeAlias = Intervals | Conflicts
