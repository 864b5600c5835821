"""The load and speed of each replica, and the order in which they are dealt items."""

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
"""What stands for the time of items that no replica has been seen to do."""

ReplicaRank: TypeAlias = tuple[float, int, str]
"""When a replica would be through with one more item, when it got one last, and its name."""


@dataclass(frozen=True, slots=True)
class PoolCall:
    """Items that go to a replica together, by their numbers."""

    number: int
    replica: str
    items: tuple[int, ...]


@dataclass(slots=True)
class ReplicaLoad:
    """What one replica holds."""

    name: str
    in_flight: int
    window: int
    calls: dict[int, PoolCall] = field(default_factory=dict)
    under_way: int = 0
    item_s: float | None = None
    dealt: int = 0

    @property
    def per_s(self) -> float:
        """How many items it does in a second; 0 while nobody knows."""
        return 1 / self.item_s if self.item_s else 0.0

    @property
    def batch(self) -> int:
        """How many items go together at the most: half of all, so that others travel meanwhile."""
        most = max(1, self.window // 2)
        return 1 if self.item_s is None else _ratio(CALL_S, self.item_s, most)

    @property
    def room(self) -> int:
        """How many more items it may get."""
        ahead = 1 if self.item_s is None else _ratio(AHEAD_S, self.item_s, self.window)
        return min(self.window, self.in_flight + ahead) - self.under_way

    @property
    def takes_items(self) -> bool:
        """True if it has room, and not so many calls that items had better gather for the next."""
        return self.room > 0 and len(self.calls) < max(2, ceil(self.window / self.batch))

    @property
    def place(self) -> ReplicaRank:
        """Its place among others: those that nobody knows first, the about as fast are equals."""
        item_s = 2 ** round(log2(self.item_s)) if self.item_s else NO_TIME_S
        return item_s * max(self.in_flight, self.under_way + 1), self.dealt, self.name

    def learn(self, item_s: float) -> None:
        """Take note of how long it took for an item."""
        self.item_s = item_s if self.item_s is None else (self.item_s + item_s) / 2


class ReplicaOrder:
    """Replicas by their places, first the one that would be through first.

    Each change of a place is noted; what was noted before it is passed over.

    Parameters
    ----------
    hands : dict of str to Hand
        All there are, by name; it may change.
    counts : callable
        Which of them are meant.
    """

    def __init__(
        self, hands: dict[str, ReplicaLoad], counts: Callable[[ReplicaLoad], bool]
    ) -> None:
        self._hands = hands
        self._counts = counts
        self._heap: list[ReplicaRank] = []

    def note(self, hand: ReplicaLoad) -> None:
        """Take note that a replica's place may be another one, or that it counts again."""
        heappush(self._heap, hand.place)
        if len(self._heap) > 4 * len(self._hands) + 64:
            self._heap = [one.place for one in self._hands.values()]
            heapify(self._heap)

    def first(self) -> ReplicaLoad | None:
        """Return the first replica that counts."""
        while self._heap:
            hand = self._hands.get(self._heap[0][2])
            if hand is not None and hand.place == self._heap[0] and self._counts(hand):
                return hand
            heappop(self._heap)
        return None

    def take(self) -> ReplicaLoad | None:
        """Return the first replica, which has no place here until it is noted again."""
        hand = self.first()
        if hand is not None:
            heappop(self._heap)
        return hand


def _ratio(whole_s: float, item_s: float, most: int) -> int:
    """Return how many items take that long, 1 at least."""
    return most if item_s * most <= whole_s else max(1, int(whole_s / item_s))
