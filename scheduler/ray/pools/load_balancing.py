"""Deals items to replicas, call by call, without a clock, a task or a network.

Faster replicas get more items: a replica has room for those that it runs at a time, and for more
that keep it busy while results and further items travel. Items that are short compared to a trip
are grouped in calls. If results are wanted in order, slow replicas get items further back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from .replica_load import PoolCall, ReplicaLoad, ReplicaOrder

CALL_BYTES = 8 << 20
"""The limit of grouped items' bytes: an engine transports larger values by a slower path."""

LATER = 2.0
"""A replica gets the next item in order unless it ends later than the first one by this factor."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The items of a lost replica."""

    replayed: tuple[int, ...] = ()
    """Items that wait again, before all later ones."""
    failed: tuple[int, ...] = ()
    """Items that have used all of their replays."""


class LoadBalancer:
    """Deals items to replicas, least loaded first; knows items and replicas by number and name.

    After the loss of its replica, an item is dealt again up to `replays` times.
    """

    def __init__(self, replays: int) -> None:
        self._replays = replays
        self._hands: dict[str, ReplicaLoad] = {}
        self._everyone = ReplicaOrder(self._hands, lambda hand: True)
        self._open = ReplicaOrder(self._hands, lambda hand: hand.takes_items)
        self._rate = 0.0  # items per second of all replicas with known speed
        self._queue: list[int] = []  # sorted: replayed items come before later ones
        self._nbytes: dict[int, int] = {}  # of waiting and dealt items
        self._in_order: set[int] = set()
        self._where: dict[int, PoolCall] = {}
        self._lives: dict[int, int] = {}
        self._calls = 0

    @property
    def waiting(self) -> int:
        """The number of items that wait for a replica."""
        return len(self._queue)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(self._hands)

    def under_way(self, replica: str) -> int:
        """Return the number of items of `replica`, including cancelled ones."""
        return self._hands[replica].under_way

    def item_s(self, replica: str) -> float | None:
        return self._hands[replica].item_s

    def items(self, replica: str) -> tuple[int, ...]:
        calls = self._hands[replica].calls.values()
        return tuple(item for call in calls for item in self._wanted(call))

    def put(self, item: int, nbytes: int = 0, *, in_order: bool = False) -> None:
        """Queue `item`, of `nbytes`; it goes before those with higher numbers.

        With `in_order` its result is wanted before those of higher numbers.
        """
        assert item not in self._nbytes, f"item {item} is here already"
        if in_order:
            self._in_order.add(item)
        self._nbytes[item] = nbytes
        insort(self._queue, item)

    def join(self, replica: str, in_flight: int, window: int) -> None:
        """Add `replica`, which runs `in_flight` items at a time.

        `window` limits its items, including those in transit.
        """
        assert replica not in self._hands, f"replica {replica} is here already"
        hand = self._hands[replica] = ReplicaLoad(replica, in_flight, max(1, window))
        self._note(hand)

    def lose(self, replica: str) -> Losses:
        """Remove `replica`, and queue its items again unless they have used all replays."""
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
        """Forget the cancelled `item`, and return its call, if it was dealt.

        Its place with the replica is free when that call is answered.
        """
        call = self._where.pop(item, None)
        if call is None and item in self._nbytes:
            del self._queue[bisect_left(self._queue, item)]
        self._forget(item)
        return call

    def deal(self) -> tuple[PoolCall, ...]:
        """Deal as many items as there is room for; return the calls to make."""
        made: list[PoolCall] = []
        while calls := self._round():
            made += calls
        return tuple(made)

    def answered(self, call: PoolCall, item_s: float | None = None) -> tuple[int, ...]:
        """Record the end of `call`; return its items that are not cancelled.

        `item_s` is the replica's time per item, at its recent rate.
        """
        hand = self._hands.get(call.replica)
        if hand is None or hand.calls.pop(call.number, None) is None:
            return ()  # the replica was lost in between: `lose` has handled its items
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
        groups: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        aside: list[ReplicaLoad] = []
        while (hand := self._open.take()) is not None:
            index = self._index_for(hand)
            if index is None:  # nor does any item suit the slower ones
                aside.append(hand)
                break
            group, nbytes = groups.get(hand.name, []), self._nbytes[self._queue[index]]
            size = sizes.get(hand.name, 0) + nbytes
            few = len(group) + len(self._queue) < hand.batch // 2
            if hand.calls and few:  # a larger group collects until one of its calls returns
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
        """Return the place in the queue of the item for replica `hand`, if any.

        A slow replica would delay results that are wanted in order: it gets the first item that, by
        the rate of all replicas, is due after this replica would be done.
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
