"""Conflicts of blocks under a partial order of their accesses.

Block v may reuse bytes of u iff every access to u happens before every writer of v. Sets are bits
of Python integers, and exist only for blocks alive in the sweep: there is never a dense matrix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt

from .relation import Conflicts, Intervals, PackingError, Relation

Points = Sequence[int]


def find_conflicts(
    predecessors: Sequence[Points], writers: Sequence[Points], accesses: Sequence[Points]
) -> Relation:
    """Return the blocks that may not overlap in any execution order of the points.

    The result is lifetimes if the points are totally ordered, otherwise pairs. `predecessors` are
    the direct predecessors of every point; points are numbered in a topological order, so
    predecessors are smaller. `writers` are the first writers of every block: one point, or several
    in any order. `accesses` are all points that read or write a block, perhaps without its writers.
    """
    found = find_few_conflicts(predecessors, writers, accesses, [None] * len(writers))
    assert found is not None, "there is no limit"
    return found


def find_few_conflicts(
    predecessors: Sequence[Points],
    writers: Sequence[Points],
    accesses: Sequence[Points],
    turns: Sequence[tuple[Hashable, Hashable] | None],
    *,
    most: float = inf,
) -> Relation | None:
    """Return the result of `find_conflicts`, or None if it has more than `most` pairs.

    It takes the same `predecessors`, `writers` and `accesses`. `turns` has, for every block that is
    only accessed in one turn of a serial resource, the resource and the turn: blocks of different
    turns are never alive together.
    """
    _check(predecessors, writers, accesses)
    touched = [sorted({*w, *a}) for w, a in zip(writers, accesses, strict=True)]
    if all(point - 1 in before for point, before in enumerate(predecessors) if point):
        return Intervals([min(w) for w in writers], [points[-1] + 1 for points in touched])
    return _Sweep(predecessors, writers, touched, turns).run(most)


class _Sweep:
    """Goes backwards through the points, with the blocks that are first written after each.

    Bits stand for writers of blocks, in the order of the blocks' first writers: blocks that may
    reuse a block have higher bits. A block may reuse another if all its writers may.
    """

    def __init__(
        self,
        predecessors: Sequence[Points],
        writers: Sequence[Points],
        touched: Sequence[Points],
        turns: Sequence[tuple[Hashable, Hashable] | None],
    ) -> None:
        self._predecessors, self._touched, self._turns = predecessors, touched, turns
        self._serial: dict[Hashable, int] = defaultdict(int)
        """The blocks of each serial resource, and of each of its turns."""
        count = len(predecessors)
        self._written = [0] * count
        self._here: list[list[int]] = [[] for _ in range(count)]
        self._starts: list[list[int]] = [[] for _ in range(count)]
        self._above = [0] * len(writers)
        owners: list[int] = []
        for block in sorted(range(len(writers)), key=lambda block: touched[block][0]):
            first = len(owners)
            for point in set(writers[block]):
                self._written[point] |= 1 << len(owners)
                owners.append(block)
            self._above[block] = len(owners)
            turn = turns[block]
            if turn is not None:
                mine = (1 << len(owners)) - (1 << first)
                self._serial[turn[0]] |= mine
                self._serial[turn] |= mine
            self._starts[touched[block][0]].append(block)
            for point in touched[block]:
                self._here[point].append(block)
        self._owners = np.array(owners, np.int32)

    def run(self, most: float) -> Conflicts | None:
        count = 0
        after: dict[int, int] = {}
        reusable: dict[int, int] = {}
        blocks: list[int] = []
        rows: list[npt.NDArray[np.int32]] = []
        for point in reversed(range(len(self._predecessors))):
            later = after.pop(point, 0)
            for block in self._here[point]:
                reusable[block] = reusable[block] & later if block in reusable else later
            for block in self._starts[point]:
                blocks.append(block)
                missing = self._missing(block, reusable.pop(block))
                count += missing.bit_count()
                if count > most:
                    return None
                rows.append(self._row(block, missing))
            later |= self._written[point]
            for before in self._predecessors[point]:
                after[before] = after.get(before, 0) | later
        first = np.repeat(np.array(blocks, np.int32), [len(row) for row in rows])
        second = np.concatenate([np.zeros(0, np.int32), *rows])
        conflicts = Conflicts.of_rows(len(self._above), first, second)
        chains = _label_chains(self._predecessors)
        conflicts.chains = np.array([chains[points[0]] for points in self._touched], np.int64)
        return conflicts

    def _missing(self, block: int, reusable: int) -> int:
        above = self._above[block]
        missing = ~(reusable >> above) & ((1 << (len(self._owners) - above)) - 1)
        turn = self._turns[block]
        if turn is not None:
            missing &= ~((self._serial[turn[0]] ^ self._serial[turn]) >> above)
        return missing

    def _row(self, block: int, missing: int) -> npt.NDArray[np.int32]:
        above = self._above[block]
        count = len(self._owners) - above
        packed = np.frombuffer(missing.to_bytes(-(-count // 8), "little"), np.uint8)
        # Most of the row is zero: only non-zero bytes are unpacked.
        filled = np.flatnonzero(packed)
        bits = np.unpackbits(packed[filled, None], axis=1, bitorder="little")
        byte, bit = np.nonzero(bits)
        row = self._owners[above + filled[byte] * 8 + bit]
        return row if len(self._owners) == len(self._above) else np.unique(row)


def _label_chains(predecessors: Sequence[Points]) -> list[int]:
    """Label each point by its chain; it continues one that ends at one of its `predecessors`."""
    chains: list[int] = []
    ends: dict[int, int] = {}
    for point, before in enumerate(predecessors):
        longest = max((other for other in before if other in ends), default=None)
        chains.append(point if longest is None else ends.pop(longest))
        ends[point] = chains[-1]
    return chains


def _check(
    predecessors: Sequence[Points], writers: Sequence[Points], accesses: Sequence[Points]
) -> None:
    for point, before in enumerate(predecessors):
        if any(not 0 <= other < point for other in before):
            raise PackingError(
                "a point comes before its predecessors",
                at=f"point {point}",
                fix="number the points in a topological order",
            )
    for block, (written, accessed) in enumerate(zip(writers, accesses, strict=True)):
        if not written:
            raise PackingError(
                "nothing writes a block", at=f"block {block}", fix="name where it is first written"
            )
        if any(not 0 <= point < len(predecessors) for point in (*written, *accessed)):
            raise PackingError(
                f"a block is accessed at a point that is not there: there are {len(predecessors)}",
                at=f"block {block}",
                fix="give every point its predecessors",
            )
