"""Items of unequal length on replicas: bound when a lane is idle, on a clock that jumps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from heapq import heapreplace
from types import SimpleNamespace
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.scheduler.dispatch.hand_over import LONG, get_hand_over_ns
from plait.scheduler.runtime.dispatcher import WORTH, Dispatcher, Unevenness
from plait.scheduler.runtime.items.item import ItemRun
from plait.scheduler.runtime.opened.lanes import OpenLane
from plait.scheduler.runtime.runtime import Runtime

WARMING = 24
"""Items until their times are known to differ."""

Array = np.ndarray[Any, Any]


class Stream:
    """Items on replicas of one lane each, which take their times on trio's clock."""

    def __init__(self, replicas: int) -> None:
        names = tuple(f"w:{n}" for n in range(replicas))
        self.dispatcher = Dispatcher((names,), ())
        self._lanes: list[OpenLane[tuple[ItemRun, float]]] = [OpenLane(1) for _ in names]
        order = SimpleNamespace(first=(0,))
        self._plans: list[Any] = [SimpleNamespace(order=order, lane=(x,)) for x in self._lanes]

    async def run(self, lengths: Sequence[float]) -> float:
        """Run items, all of which are there, and return the seconds that they take together."""
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            for length in lengths:
                item_run = ItemRun()
                await self.dispatcher.wait_for_room()
                item_run.variant = self.dispatcher.choose(item_run)
                lane, plan = self._lanes[item_run.variant], self._plans[item_run.variant]
                if lane.offer(id(item_run), 0, (item_run, length)):
                    nursery.start_soon(self._work, lane, plan, item_run, length)
                self.dispatcher.start(item_run, plan)
        return trio.current_time() - begin

    async def _work(
        self, lane: OpenLane[tuple[ItemRun, float]], plan: Any, item_run: ItemRun, length: float
    ) -> None:
        following: tuple[ItemRun, float] | None = (item_run, length)
        while following is not None:
            item_run, length = following
            await trio.sleep(length)
            following = lane.take()
            self.dispatcher.end(plan, (0, 0, round(length * 1e9)))
            item_run.finish()
            self.dispatcher.look_again()


def schedule_lists(lengths: Sequence[float], replicas: int) -> float:
    """Return the time of a list schedule: the next item goes where work ends first."""
    ends = [0.0] * replicas
    for length in lengths:
        heapreplace(ends, ends[0] + length)
    return max(ends)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(
        st.sampled_from([0.01, 0.02, 0.05, 0.3, 1.0]) | st.floats(0.005, 1), min_size=8, max_size=60
    ),
    replicas=st.integers(2, 6),
)
def test_items_of_any_lengths_take_no_longer_than_in_a_list_schedule(
    lengths: list[float], replicas: int
) -> None:
    async def main() -> float:
        stream = Stream(replicas)
        await stream.run([0.01, 0.5] * (WARMING // 2))
        return await stream.run(lengths)

    took = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert schedule_lists(lengths, replicas) >= 0.98 * took


def test_items_that_are_bound_at_once_would_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [1.0, 0.01, 0.01] * 6

    async def main() -> float:
        stream = Stream(3)
        await stream.run([0.01, 0.5] * WARMING)
        return await stream.run(lengths)

    late = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    for rule in ("are_unequal", "is_worth_waiting"):
        monkeypatch.setattr(Unevenness, rule, property(lambda _: False))
    early = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert late == pytest.approx(schedule_lists(lengths, 3))
    assert early > 1.5 * late


def test_waiting_is_worth_it_if_times_differ_by_many_hand_overs() -> None:
    def is_worth(*hand_overs: float) -> bool:
        unevenness = Unevenness()
        for _ in range(100):
            for one in hand_overs:
                unevenness.note(round(one * 20_000))
        return unevenness.are_unequal

    assert not is_worth(100.0)
    assert not is_worth(10.0, 10 + WORTH)
    assert is_worth(10.0, 10 + 3 * WORTH)


def test_one_item_waits_if_items_are_long_or_none_has_ended() -> None:
    def is_worth(*hand_overs: float) -> bool:
        unevenness = Unevenness()
        for one in hand_overs:
            unevenness.note(round(one * get_hand_over_ns()))
        return unevenness.is_worth_waiting

    assert is_worth()
    assert not is_worth(LONG / 2)
    assert is_worth(LONG / 2, *[2 * LONG] * 100)


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_a_single_long_item_holds_up_at_most_one(replicas: int) -> None:
    lengths = [2.0] + [0.1] * 20 * (replicas - 1)

    async def main() -> tuple[float, float]:
        stream = Stream(replicas)
        first = await stream.run(lengths)
        await stream.run([0.1] * 1000)
        return first, await stream.run(lengths)

    took = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert max(took) <= schedule_lists(lengths, replicas) + 0.1 + 1e-6


def test_an_item_that_waits_goes_on_when_one_that_was_bound_is_given_up() -> None:
    async def main() -> int:
        stream = Stream(2)
        await stream.run([0.01, 0.5] * WARMING)
        bound = [ItemRun(), ItemRun()]
        for item_run in bound:
            item_run.variant = stream.dispatcher.choose(item_run)  # and does not start
        variants = []

        async def admit() -> None:
            await stream.dispatcher.wait_for_room()
            variants.append(stream.dispatcher.choose(ItemRun()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(admit)
            await trio.testing.wait_all_tasks_blocked()
            assert not variants
            del item_run
            given_up = bound.pop().variant
        assert variants == [given_up]
        return given_up

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_closing_lets_all_go_on_that_wait() -> None:
    async def main() -> None:
        stream = Stream(2)
        await stream.run([0.01, 0.5] * WARMING)
        bound = [ItemRun(), ItemRun()]
        for item_run in bound:
            stream.dispatcher.choose(item_run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.dispatcher.wait_for_room)
            nursery.start_soon(stream.dispatcher.wait_for_room)
            await trio.testing.wait_all_tasks_blocked()
            assert not stream.dispatcher.has_room
            stream.dispatcher.refuse()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_session_binds_the_next_item_where_a_lane_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first item stays until all others are done, though it has a lane for itself alone."""
    for rule in ("are_unequal", "is_worth_waiting"):
        monkeypatch.setattr(Unevenness, rule, property(lambda _: True))
    done, count = threading.Event(), [0]
    spec = pl.TensorSpec("int64", (1,))

    @pl.operator(spec, inputs=[spec], name="test_late_binding.stay", ordered=False)
    def stay(x: Array) -> Array:
        if x[0] == 4:  # both lanes are known by then
            assert done.wait(WAIT_S)
        elif x[0] > 4:
            count[0] += 1
            if count[0] == 7:
                done.set()
        return x + 1

    b = pl.GraphBuilder("late")
    b.output("y", b.call(stay, b.input("x", "int64", (1,))))
    plan = pl.plan(b.build(), ["cpu:0..1"], max_in_flight=8)
    with pl.BlockingSession(plan) as session:
        monkeypatch.setattr(session._loop.session._runtime, "run_at_once", lambda *_: None)
        monkeypatch.setattr(Runtime, "item_ns", 0)  # the stream would wait until all are done
        feeds = ({"x": np.array([n])} for n in range(12))
        found = [int(item["y"][0]) for item in session.stream(feeds)]
    assert found == list(range(1, 13))
