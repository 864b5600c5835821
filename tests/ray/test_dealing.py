"""Items are dealt once each, in order, the least loaded first, again when one is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)
from plait.scheduler.ray.pools.load_balancing import CALL_BYTES, LoadBalancer
from plait.scheduler.ray.pools.replica_load import (
    AHEAD_S,
    CALL_S,
    PoolCall,
    ReplicaLoad,
    ReplicaRank,
)

REPLAYS = 2


def dealer_with(*replicas: str, in_flight: int = 1, window: int = 8) -> LoadBalancer:
    balancer = LoadBalancer(REPLAYS)
    for name in replicas:
        balancer.join(name, in_flight, window)
    return balancer


def items_of(calls: tuple[PoolCall, ...]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for call in calls:
        found.setdefault(call.replica, []).extend(call.items)
    return found


def warmed(balancer: LoadBalancer, item_s: float) -> None:
    """Let each replica show how long an item takes it."""
    for item in range(-len(balancer.replicas), 0):
        balancer.put(item)
    for call in balancer.deal():
        balancer.answered(call, item_s)


def test_items_go_to_the_least_loaded_in_turn() -> None:
    balancer = dealer_with("a", "b", "c", in_flight=2)
    for item in range(6):
        balancer.put(item)
    assert items_of(balancer.deal()) == {"a": [0, 3], "b": [1, 4], "c": [2, 5]}


def test_a_lone_item_goes_to_whoever_has_waited_longest() -> None:
    balancer = dealer_with("a", "b")
    turns = []
    for item in range(4):
        balancer.put(item)
        (call,) = balancer.deal()
        turns.append(call.replica)
        balancer.answered(call)
    assert turns == ["a", "b", "a", "b"]


def test_a_replica_of_unknown_speed_gets_what_it_works_at_and_one_more() -> None:
    balancer = dealer_with("a", in_flight=2)
    for item in range(9):
        balancer.put(item)
    assert items_of(balancer.deal()) == {"a": [0, 1, 2]}
    assert balancer.waiting == 6


def test_a_faster_replica_is_sent_more_ahead() -> None:
    balancer = dealer_with("fast", "slow", window=64)
    for name, item_s in (("fast", AHEAD_S / 10), ("slow", AHEAD_S * 10)):
        balancer.put(-1)
        for call in balancer.deal():
            assert call.replica == name
            balancer.answered(call, item_s)
    for item in range(64):
        balancer.put(item)
    balancer.deal()
    assert balancer.under_way("fast") == 11
    assert balancer.under_way("slow") == 2


def test_small_items_that_wait_go_together_when_a_call_returns() -> None:
    balancer = dealer_with("a", window=8)
    warmed(balancer, CALL_S / 100)
    first: list[PoolCall] = []
    for item in range(8):
        balancer.put(item)
        first += balancer.deal()
    assert [call.items for call in first] == [(0,), (1, 2)]  # half a batch had gathered
    balancer.answered(first[0])
    assert [call.items for call in balancer.deal()] == [(3, 4, 5, 6)]


def test_a_few_small_items_wait_for_a_call_to_return() -> None:
    balancer = dealer_with("a", window=16)
    warmed(balancer, CALL_S / 100)
    calls: list[PoolCall] = []
    for item in range(4):
        balancer.put(item)
        calls += balancer.deal()
    assert [call.items for call in calls] == [(0,)]
    balancer.answered(calls[0])
    assert [call.items for call in balancer.deal()] == [(1, 2, 3)]


def test_long_items_go_alone() -> None:
    balancer = dealer_with("a", in_flight=3)
    warmed(balancer, CALL_S * 5)
    for item in range(4):
        balancer.put(item)
    assert [call.items for call in balancer.deal()] == [(0,), (1,), (2,), (3,)]


def test_items_that_are_large_together_go_in_calls_of_their_own() -> None:
    balancer = dealer_with("a", window=16)
    warmed(balancer, CALL_S / 100)
    for item in range(6):
        balancer.put(item, CALL_BYTES // 2)
    assert [call.items for call in balancer.deal()] == [(0, 1), (2, 3)]


def test_an_item_that_is_larger_than_any_call_goes_alone() -> None:
    balancer = dealer_with("a")
    balancer.put(0, CALL_BYTES * 2)
    assert [call.items for call in balancer.deal()] == [(0,)]


def test_items_of_a_lost_replica_go_before_those_that_came_later() -> None:
    balancer = dealer_with("a", "b", in_flight=1, window=2)
    for item in range(6):
        balancer.put(item)
    balancer.deal()
    losses = balancer.lose("a")
    assert losses.replayed == (0, 2)
    balancer.join("a again", 1, 2)
    assert items_of(balancer.deal()) == {"a again": [0, 2]}


def test_an_item_that_loses_every_replica_fails() -> None:
    balancer = LoadBalancer(REPLAYS)
    balancer.put(0)
    fates = []
    for life in range(REPLAYS + 1):
        balancer.join(f"life {life}", 1, 1)
        balancer.deal()
        fates.append(balancer.lose(f"life {life}"))
    assert [fate.replayed for fate in fates] == [(0,)] * REPLAYS + [()]
    assert fates[-1].failed == (0,)
    assert balancer.waiting == 0


def test_an_answer_of_a_replica_that_was_taken_for_lost_counts_for_nothing() -> None:
    balancer = dealer_with("a")
    balancer.put(0)
    (call,) = balancer.deal()
    balancer.lose("a")
    assert balancer.answered(call) == ()
    balancer.join("b", 1, 1)
    (again,) = balancer.deal()
    assert balancer.answered(again) == (0,)


def test_a_dropped_item_keeps_its_place_until_its_call_is_answered() -> None:
    balancer = dealer_with("a", window=1)
    balancer.put(0)
    balancer.put(1)
    (call,) = balancer.deal()
    assert balancer.drop(0) == call
    assert balancer.deal() == ()
    assert balancer.answered(call) == ()
    assert [one.items for one in balancer.deal()] == [(1,)]


def test_a_dropped_item_that_waits_is_in_no_call() -> None:
    balancer = LoadBalancer(REPLAYS)
    balancer.put(0)
    assert balancer.drop(0) is None
    balancer.join("a", 1, 1)
    assert balancer.deal() == ()


@pytest.mark.parametrize("item_s", [0.0, 1e-9])
def test_items_that_take_no_time_stay_within_the_window(item_s: float) -> None:
    balancer = dealer_with("a", window=6)
    warmed(balancer, item_s)
    for item in range(20):
        balancer.put(item)
    assert items_of(balancer.deal()) == {"a": [0, 1, 2, 3, 4, 5]}


class Dealing(RuleBasedStateMachine):
    """Random lives of items and replicas, and where every item has to be."""

    calls: Bundle[PoolCall] = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.balancer = LoadBalancer(REPLAYS)
        self.items = 0
        self.names = 0
        self.windows: dict[str, int] = {}
        self.open: dict[str, list[PoolCall]] = {}
        self.waiting: set[int] = set()
        self.under_way: dict[int, str] = {}
        self.lives: dict[int, int] = {}
        self.ended: set[int] = set()

    @rule(nbytes=st.sampled_from([0, CALL_BYTES // 3, CALL_BYTES * 2]))
    def put(self, nbytes: int) -> None:
        self.balancer.put(self.items, nbytes)
        self.waiting.add(self.items)
        self.items += 1

    @rule(in_flight=st.integers(1, 3), window=st.integers(1, 6))
    def join(self, in_flight: int, window: int) -> None:
        name = f"r{self.names}"
        self.names += 1
        self.balancer.join(name, in_flight, window)
        self.windows[name], self.open[name] = window, []

    @rule(target=calls)
    def deal(self) -> MultipleResults[PoolCall]:
        made = self.balancer.deal()
        taken = [item for call in made for item in call.items]
        assert sorted(taken) == sorted(set(taken))
        assert set(taken) <= self.waiting
        assert not self.waiting - set(taken) or max(taken, default=-1) < min(
            self.waiting - set(taken)
        )
        for call in made:
            self.open[call.replica].append(call)
            for item in call.items:
                self.waiting.discard(item)
                self.under_way[item] = call.replica
        if self.waiting:
            assert all(map(self.balancer.under_way, self.open)), "an idle replica got nothing"
        return multiple(*made)

    @rule(call=consumes(calls), item_s=st.none() | st.sampled_from([0.0, 1e-4, 1e-2, 1.0]))
    def answer(self, call: PoolCall, item_s: float | None) -> None:
        mine = self.open.get(call.replica, [])
        expected = tuple(item for item in call.items if call in mine and self.under_way.get(item))
        assert self.balancer.answered(call, item_s) == expected
        if call in mine:
            mine.remove(call)
        for item in expected:
            del self.under_way[item]
            self.ended.add(item)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if not self.open:
            return
        name = data.draw(st.sampled_from(sorted(self.open)))
        losses = self.balancer.lose(name)
        had = {item for item, where in self.under_way.items() if where == name}
        assert {*losses.replayed, *losses.failed} == had
        for item in had:
            del self.under_way[item]
            self.lives[item] = self.lives.get(item, 0) + 1
            assert (item in losses.failed) == (self.lives[item] > REPLAYS)
        self.waiting.update(losses.replayed)
        self.ended.update(losses.failed)
        del self.open[name]

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        alive = sorted({*self.waiting, *self.under_way})
        if not alive:
            return
        item = data.draw(st.sampled_from(alive))
        call = self.balancer.drop(item)
        assert (call is not None) == (item in self.under_way)
        if call is not None:
            assert item in call.items
            assert call in self.open[call.replica]
        self.waiting.discard(item)
        self.under_way.pop(item, None)
        self.ended.add(item)

    @invariant()
    def every_item_is_in_one_place(self) -> None:
        assert self.balancer.waiting == len(self.waiting)
        assert len(self.waiting) + len(self.under_way) + len(self.ended) == self.items
        for name, calls in self.open.items():
            assert self.balancer.under_way(name) == sum(len(call.items) for call in calls)
            assert self.balancer.under_way(name) <= self.windows[name]
            mine = sorted(item for item, where in self.under_way.items() if where == name)
            assert sorted(self.balancer.items(name)) == mine


Dealing.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_items_and_replicas_come_and_go_in_any_order = Dealing.TestCase


def test_a_slow_replica_gets_what_is_wanted_late_enough_of_an_ordered_stream() -> None:
    """The fast one does ten a second beside it: what takes the slow one a second is ten away."""
    balancer = dealer_with("fast", "slow", window=64)
    for name, item_s in (("fast", 0.1), ("slow", 1.0)):
        balancer.put(-1)
        for call in balancer.deal():
            assert call.replica == name
            balancer.answered(call, item_s)
    for item in range(5):
        balancer.put(item, in_order=True)
    assert items_of(balancer.deal()) == {"fast": [0, 1]}
    for item in range(5, 30):
        balancer.put(item, in_order=True)
    ((name, late),) = items_of(balancer.deal()).items()
    assert name == "slow"
    assert min(late) >= 6


def test_a_slow_replica_gets_anything_where_no_order_is_wanted() -> None:
    balancer = dealer_with("fast", "slow")
    for name, item_s in (("fast", 0.1), ("slow", 1.0)):
        balancer.put(-1)
        for call in balancer.deal():
            assert call.replica == name
            balancer.answered(call, item_s)
    for item in range(3):
        balancer.put(item)
    assert items_of(balancer.deal()) == {"fast": [0, 2], "slow": [1]}


def test_a_slow_replica_that_is_alone_gets_everything() -> None:
    balancer = dealer_with("slow")
    warmed(balancer, 10.0)
    balancer.put(0, in_order=True)
    assert items_of(balancer.deal()) == {"slow": [0]}


def test_dealing_over_many_replicas_looks_at_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]
    place = ReplicaLoad.place

    def counted(hand: ReplicaLoad) -> ReplicaRank:
        looks[0] += 1
        found: ReplicaRank = place.__get__(hand)
        return found

    monkeypatch.setattr(ReplicaLoad, "place", property(counted))
    counts = {}
    for many in (50, 500):
        balancer = dealer_with(*(f"host{n}" for n in range(many)), window=4)
        looks[0] = 0
        for item in range(1000):
            balancer.put(item)
            for call in balancer.deal():
                balancer.answered(call, 0.05)
        counts[many] = looks[0]
    assert counts[500] < 2 * counts[50]
