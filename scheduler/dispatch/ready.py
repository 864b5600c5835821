"""The steps of an item that are ready, and the order in which a lane is given those of all items.

The step of the oldest item comes first: the one nearest to its end frees its memory soonest. Among
the steps of one item that one does which the longest work follows (its bottom level: Hu, Operations
Research 9(6), 1961), so a long branch is not held up by short ones. Pure decisions, without a clock
or a lock: the executor and the simulator take the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """The steps that wait for a lane, of all items that use it.

    A lane is given few steps at a time: what it was given it does in that order, in spite of steps
    that become ready meanwhile. `depth` is how many it is given at a time.
    """

    __slots__ = ("_depth", "_room", "_waiting")

    def __init__(self, depth: int = 1) -> None:
        self._depth = self._room = depth
        self._waiting: list[tuple[int, int, T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True while the lane has done all that it was given."""
        return self._room == self._depth

    def offer(self, item: int, rank: int, step: T) -> bool:
        """Return whether the lane gets `step` now; if not, it waits until `take` returns it.

        A lower `item` goes first, then a lower `rank`; no two steps have the same.
        """
        if self._room:
            self._room -= 1
            return True
        heappush(self._waiting, (item, rank, step))
        return False

    def take(self) -> T | None:
        """Note that the lane has done a step; return the next step for it, None if none waits."""
        if self._waiting:
            return heappop(self._waiting)[2]
        self._room += 1
        return None

    def withdraw(self, item: int) -> int:
        """Remove the waiting steps of `item`; return the number of steps that were removed."""
        kept = [one for one in self._waiting if one[0] != item]
        count = len(self._waiting) - len(kept)
        if count:
            heapify(kept)
            self._waiting = kept
        return count


def compute_bottom_levels(seconds: Sequence[float], waits: Sequence[Sequence[int]]) -> list[float]:
    """Return for every step the time from its start to the end, if nothing held anything up.

    `seconds` are the durations of the steps, in a topological order, `waits` their predecessors.
    """
    levels = list(seconds)
    following = [0.0] * len(levels)
    for step in range(len(levels) - 1, -1, -1):
        level = levels[step] = levels[step] + following[step]
        for earlier in waits[step]:
            if level > following[earlier]:
                following[earlier] = level
    return levels


def rank_steps(seconds: Sequence[float], waits: Sequence[Sequence[int]]) -> list[int]:
    """Return the rank of every step by its bottom level, the highest first.

    `seconds` and `waits` are those of `compute_bottom_levels`. Among equals the plan's order
    counts, so no step comes before one that it waits for.
    """
    levels = compute_bottom_levels(seconds, waits)
    found = [0] * len(levels)
    for place, step in enumerate(sorted(range(len(levels)), key=lambda one: -levels[one])):
        found[step] = place
    return found


class ItemProgress:
    """The readiness counts of one item.

    Each step waits for as many countdowns as `waits` says, its `input_wait_count`, and counts down
    those in `after` when it is complete.
    """

    __slots__ = ("_after", "_counts")

    def __init__(self, waits: Sequence[int], after: Sequence[Sequence[int]]) -> None:
        self._counts = list(waits)
        self._after = after

    def complete(self, step: int) -> list[int]:
        return self.count_down(self._after[step])

    def count_down(self, steps: Iterable[int]) -> list[int]:
        """Count down each of `steps`; return those that have nothing left to wait for."""
        counts, ready = self._counts, []
        for step in steps:
            counts[step] -= 1
            if counts[step] == 0:
                ready.append(step)
        return ready
