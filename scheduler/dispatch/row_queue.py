"""The queue of rows in front of batches: which go into the next one, and when it is due.

Rows come in blocks, those of one item, and leave in batches, in order of arrival; a
block may be divided among several. Rows of one shape go together. The caller passes the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class RowGroup:
    """Rows that came together."""

    rows: int
    group: Hashable
    """Blocks of one group can be stacked."""
    since_s: float
    """When it came."""
    due_s: float
    """From when on it waits for no others."""
    taken: int = field(default=0, init=False)
    """How many of its rows have left."""
    stop: int = field(default=0, init=False)
    """Where the rows end that have not been dropped from its end."""


B = TypeVar("B", bound=RowGroup)


class RowRun(NamedTuple, Generic[B]):
    """Rows of a block that go into a batch together."""

    block: B
    start: int
    stop: int


class RowQueue(Generic[B]):
    def __init__(self, size: int) -> None:
        self._size = size
        self._groups: dict[Hashable, OrderedDict[B, None]] = {}
        self._rows: dict[Hashable, int] = {}
        self._order: OrderedDict[B, None] = OrderedDict()  # in order of arrival, across groups

    def __len__(self) -> int:
        return sum(self._rows.values())

    def add(self, block: B) -> None:
        block.stop = block.rows
        self._order[block] = None
        self._groups.setdefault(block.group, OrderedDict())[block] = None
        self._rows[block.group] = self._rows.get(block.group, 0) + block.rows

    def remove(self, block: B) -> None:
        if block in self._groups.get(block.group, ()):
            self._take(block, block.stop - block.taken)

    def due_s(self) -> float:
        """Return the time when the first group is due: -inf if one is full, inf if none waits."""
        return min(map(self._group_due_s, self._groups), default=NEVER)

    def take_batch(self, now_s: float) -> list[RowRun[B]]:
        due = [group for group in self._groups if self._group_due_s(group) <= now_s]
        if not due:
            return []
        group = min(due, key=lambda one: next(iter(self._groups[one])).since_s)
        runs: list[RowRun[B]] = []
        room = self._size
        for block in list(self._groups[group]):
            count = min(room, block.stop - block.taken)
            runs.append(RowRun(block, block.taken, block.taken + count))
            self._take(block, count)
            room -= count
            if not room:
                break
        return runs

    def shed(self, keep: int, *, newest: bool) -> list[RowRun[B]]:
        runs: list[RowRun[B]] = []
        excess = len(self) - keep
        while excess > 0:
            block = next(reversed(self._order) if newest else iter(self._order))
            count = min(excess, block.stop - block.taken)
            start = block.stop - count if newest else block.taken
            runs.append(RowRun(block, start, start + count))
            if newest:
                block.stop -= count
                block.taken -= count  # which `_take` counts
            self._take(block, count)
            excess -= count
        return runs

    def _take(self, block: B, count: int) -> None:
        group = block.group
        block.taken += count
        self._rows[group] -= count
        if block.taken == block.stop:
            del self._groups[group][block], self._order[block]
        if not self._groups[group]:
            del self._groups[group], self._rows[group]

    def _group_due_s(self, group: Hashable) -> float:
        if self._rows[group] >= self._size:
            return -NEVER
        return next(iter(self._groups[group])).due_s
