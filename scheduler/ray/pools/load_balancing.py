"""Deals items to replicas, call by call, without a clock, a task or a network.

Replicas that are faster get more: each has room for what it works at, and for what keeps it busy
while results and further items travel. Items that are small against a trip go several in a call.
Where results are wanted in order, slow replicas are given those that are wanted late enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from .replica_load import PoolCall, ReplicaLoad, ReplicaOrder

CALL_BYTES = 8 << 20
"""Of items that go together: larger values take another way through an engine, and a slower one."""

LATER = 2.0
"""By what factor a replica may be through later than the first one would, for whatever is next."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What became of the items of a replica that was lost.

    Attributes
    ----------
    replayed : tuple of int
        They wait again, before all that came later.
    failed : tuple of int
        They have been run as often as they may.
    """

    replayed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


class LoadBalancer:
    """Deals items to replicas, least loaded first; knows items and replicas by number and name.

    Parameters
    ----------
    replays : int
        How many times an item is dealt again after a replica that had it was lost.
    """

    def __init__(self, replays: int) -> None:
        self._replays = replays
        self._hands: dict[str, ReplicaLoad] = {}
        self._everyone = ReplicaOrder(self._hands, lambda hand: True)
        self._open = ReplicaOrder(self._hands, lambda hand: hand.takes_items)
        self._rate = 0.0  # items in a second, of all replicas whose speed is known
        self._queue: list[int] = []  # sorted: who is dealt again comes before those after it
        self._nbytes: dict[int, int] = {}  # of items that wait, or are under way
        self._in_order: set[int] = set()
        self._where: dict[int, PoolCall] = {}
        self._lives: dict[int, int] = {}
        self._calls = 0

    @property
    def waiting(self) -> int:
        """How many items are with no replica."""
        return len(self._queue)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Those that get items."""
        return tuple(self._hands)

    def under_way(self, replica: str) -> int:
        """Return how many items a replica has, those that nobody wants any more included."""
        return self._hands[replica].under_way

    def item_s(self, replica: str) -> float | None:
        """Return how long an item takes a replica, once that is known."""
        return self._hands[replica].item_s

    def items(self, replica: str) -> tuple[int, ...]:
        """Return the items of a replica that are still wanted."""
        calls = self._hands[replica].calls.values()
        return tuple(item for call in calls for item in self._wanted(call))

    def put(self, item: int, nbytes: int = 0, *, in_order: bool = False) -> None:
        """Let an item wait for a replica; it goes before those with higher numbers.

        Parameters
        ----------
        item, nbytes : int
        in_order : bool
            Whether its result is wanted before those of higher numbers.
        """
        assert item not in self._nbytes, f"item {item} is here already"
        if in_order:
            self._in_order.add(item)
        self._nbytes[item] = nbytes
        insort(self._queue, item)

    def join(self, replica: str, in_flight: int, window: int) -> None:
        """Let a replica have items.

        Parameters
        ----------
        replica : str
        in_flight : int
            How many it works at, at a time.
        window : int
            How many it may have, those that travel included.
        """
        assert replica not in self._hands, f"replica {replica} is here already"
        hand = self._hands[replica] = ReplicaLoad(replica, in_flight, max(1, window))
        self._note(hand)

    def lose(self, replica: str) -> Losses:
        """Let a replica have no more; what it had is dealt again as often as that is allowed."""
        hand = self._hands.pop(replica)
        self._rate -= hand.per_s
        replayed, failed = list[int](), list[int]()
        for item in (item for call in hand.calls.values() for item in self._wanted(call)):
            del self._where[item]
            lives = self._lives[item] = self._lives.get(item, 0) + 1
            if lives <= self._replays:
                insort(self._queue, item)
                replayed.append(item)
            else:
                self._forget(item)
                failed.append(item)
        return Losses(tuple(replayed), tuple(failed))

    def drop(self, item: int) -> PoolCall | None:
        """Forget an item that nobody wants any more; return the call it is in, if it is in one.

        Its place with the replica is free when that call is answered.
        """
        call = self._where.pop(item, None)
        if call is None and item in self._nbytes:
            del self._queue[bisect_left(self._queue, item)]
        self._forget(item)
        return call

    def deal(self) -> tuple[PoolCall, ...]:
        """Give away as many items as there is room for, in calls that are to be made now."""
        made: list[PoolCall] = []
        while calls := self._round():
            made += calls
        return tuple(made)

    def answered(self, call: PoolCall, item_s: float | None = None) -> tuple[int, ...]:
        """Take note that a call has ended; return those of its items that are still wanted.

        Parameters
        ----------
        call : PoolCall
        item_s : float, optional
            How long the replica took for an item, at the rate that it had lately.
        """
        hand = self._hands.get(call.replica)
        if hand is None or hand.calls.pop(call.number, None) is None:
            return ()  # the replica was lost in between: all that it had is dealt with
        hand.under_way -= len(call.items)
        if item_s is not None:
            self._rate -= hand.per_s
            hand.learn(item_s)
            self._rate += hand.per_s
        self._note(hand)
        wanted = tuple(self._wanted(call))
        for item in wanted:
            del self._where[item]
            self._forget(item)
        return wanted

    def _wanted(self, call: PoolCall) -> Iterator[int]:
        return (item for item in call.items if self._where.get(item) is call)

    def _forget(self, item: int) -> None:
        self._nbytes.pop(item, None)
        self._in_order.discard(item)
        self._lives.pop(item, None)

    def _note(self, hand: ReplicaLoad) -> None:
        self._everyone.note(hand)
        self._open.note(hand)

    def _round(self) -> list[PoolCall]:
        """Give away items, in one call for each replica at the most."""
        groups: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        aside: list[ReplicaLoad] = []
        while (hand := self._open.take()) is not None:
            index = self._index_for(hand)
            if index is None:  # nor is there anything for those that are later still
                aside.append(hand)
                break
            group, nbytes = groups.get(hand.name, []), self._nbytes[self._queue[index]]
            size = sizes.get(hand.name, 0) + nbytes
            few = len(group) + len(self._queue) < hand.batch // 2
            if hand.calls and few:  # more will have gathered when one of these returns
                aside.append(hand)
                continue
            if group and (len(group) >= hand.batch or size > CALL_BYTES):
                aside.append(hand)
                continue
            groups.setdefault(hand.name, group).append(self._queue.pop(index))
            sizes[hand.name] = size
            hand.under_way += 1
            self._calls += 1
            hand.dealt = self._calls
            self._note(hand)
        for hand in aside:
            self._open.note(hand)
        return [self._call(name, items) for name, items in groups.items()]

    def _index_for(self, hand: ReplicaLoad) -> int | None:
        """Return which of the items that wait a replica is given, if any.

        A slow one would hold up results that are wanted in order: it gets the first item that is
        not wanted before it would be done, by the rate of all.
        """
        if not self._queue:
            return None
        first = self._everyone.first()
        assert first is not None, "there is this one"
        late_s, early_s = hand.place[0], first.place[0]
        if self._queue[0] not in self._in_order or late_s <= early_s * LATER:
            return 0
        oldest = next(iter(self._nbytes))
        index = bisect_left(self._queue, oldest + (late_s - early_s) * self._rate)
        return index if index < len(self._queue) else None

    def _call(self, name: str, items: list[int]) -> PoolCall:
        self._calls += 1
        call = PoolCall(self._calls, name, tuple(items))
        self._hands[name].calls[call.number] = call
        self._where.update(dict.fromkeys(items, call))
        return call
