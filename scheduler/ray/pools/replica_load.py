"""The load and speed of each replica, and the order in which they get items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil, log2
from typing import TypeAlias

AHEAD_S = 0.010
"""Work that is sent before a replica is through: a trip takes 1 to 5 ms, measured."""

CALL_S = 0.004
"""Work in one call, which costs a driver about 0.7 ms; see `benchmarks/bench_replicas.py`."""

NO_TIME_S = 1e-9
"""Stands for an unknown time per item."""

ReplicaRank: TypeAlias = tuple[float, int, str]
"""When a replica would end one more item, when it got its last one, and its name."""


@dataclass(frozen=True, slots=True)
class PoolCall:
    """Items that go to a replica together, by their numbers."""

    number: int
    replica: str
    items: tuple[int, ...]


@dataclass(slots=True)
class ReplicaLoad:
    name: str
    in_flight: int
    window: int
    calls: dict[int, PoolCall] = field(default_factory=dict)
    under_way: int = 0
    item_s: float | None = None
    dealt: int = 0

    @property
    def per_s(self) -> float:
        """Items per second; 0 while unknown."""
        return 1 / self.item_s if self.item_s else 0.0

    @property
    def batch(self) -> int:
        """The limit of items in a call: at most half of the window, so that calls overlap."""
        most = max(1, self.window // 2)
        return 1 if self.item_s is None else _count_items(CALL_S, self.item_s, most)

    @property
    def room(self) -> int:
        """The number of further items that it may get."""
        ahead = 1 if self.item_s is None else _count_items(AHEAD_S, self.item_s, self.window)
        return min(self.window, self.in_flight + ahead) - self.under_way

    @property
    def takes_items(self) -> bool:
        """True if it has room, and so few calls that items need not collect for a larger one."""
        return self.room > 0 and len(self.calls) < max(2, ceil(self.window / self.batch))

    @property
    def place(self) -> ReplicaRank:
        """Its rank: unknown speeds first; speeds within a factor of about 1.4 are equal."""
        item_s = 2 ** round(log2(self.item_s)) if self.item_s else NO_TIME_S
        return item_s * max(self.in_flight, self.under_way + 1), self.dealt, self.name

    def learn(self, item_s: float) -> None:
        self.item_s = item_s if self.item_s is None else (self.item_s + item_s) / 2


class ReplicaOrder:
    """A heap of replicas by rank: first the one that would end the next item first.

    Each change of a rank is pushed; outdated entries are skipped. `hands` has all replicas by name,
    and may change; `counts` returns whether one belongs to the order.
    """

    def __init__(
        self, hands: dict[str, ReplicaLoad], counts: Callable[[ReplicaLoad], bool]
    ) -> None:
        self._hands = hands
        self._counts = counts
        self._heap: list[ReplicaRank] = []

    def note(self, hand: ReplicaLoad) -> None:
        """Push the replica `hand` after a change of its rank, or when it counts again."""
        heappush(self._heap, hand.place)
        if len(self._heap) > 4 * len(self._hands) + 64:
            self._heap = [one.place for one in self._hands.values()]
            heapify(self._heap)

    def first(self) -> ReplicaLoad | None:
        while self._heap:
            hand = self._hands.get(self._heap[0][2])
            if hand is not None and hand.place == self._heap[0] and self._counts(hand):
                return hand
            heappop(self._heap)
        return None

    def take(self) -> ReplicaLoad | None:
        """Remove the first replica, until it is noted again, and return it."""
        hand = self.first()
        if hand is not None:
            heappop(self._heap)
        return hand


def _count_items(whole_s: float, item_s: float, most: int) -> int:
    return most if item_s * most <= whole_s else max(1, int(whole_s / item_s))
