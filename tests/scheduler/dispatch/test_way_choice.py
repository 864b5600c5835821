"""The choice between running items here and on lanes, on a clock of the tests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from plait.scheduler.dispatch import way_choice
from plait.scheduler.dispatch.way_choice import (
    GAIN_HAND_OVERS,
    LEAST_PATIENCE,
    LEAST_WINDOW,
    MOST_PATIENCE,
    TRIAL,
    WayChoice,
    WayMemory,
)

US = 1000
Costs = Callable[[bool, int], float]
"""The µs from one result to the next, by way and by item."""


class Stream:
    """A stream of items on a clock of its own; their steps are `busy` for a part of the time."""

    def __init__(
        self, here_us: float, costs: Costs, *, lanes: int = 1, busy: float = 0, **options: Any
    ) -> None:
        self.here_us, self._costs, self._busy = here_us, costs, busy
        self.now_ns = 1
        self.ways: list[bool] = []
        self.choice = WayChoice(2, lanes, 1000 * US, lambda: int(self.here_us * US), **options)

    def run(self, items: int) -> list[bool]:
        """Return which of some items ran where they were asked for."""
        begin = len(self.ways)
        for item in range(begin, begin + items):
            is_here = self.choice.is_here
            self.ways.append(is_here)
            self.now_ns += int(self._costs(is_here, item) * US)
            self.choice.left -= 1
            if not self.choice.left:
                self.choice.advance(self.now_ns, int(self._busy * self.now_ns))
        return self.ways[begin:]


def test_items_that_are_nearly_all_of_the_time_stay_here_without_a_trial() -> None:
    stream = Stream(200, lambda is_here, _: 210 if is_here else 1e6)
    assert all(stream.run(2000))


def test_short_items_are_not_even_tried_on_many_lanes() -> None:
    stream = Stream(10, lambda is_here, _: 25 if is_here else 1e6, lanes=8)
    assert all(stream.run(2000))


def test_streams_shorter_than_a_window_use_lanes_for_long_items() -> None:
    memory = WayMemory()
    first = Stream(0, lambda is_here, _: 400 if is_here else 210, lanes=2, memory=memory)
    assert first.run(1) == [True]
    first.here_us = 400  # known from now on
    assert first.run(2) == [True, False]
    assert not any(Stream(400, lambda *_: 210, lanes=2, memory=memory).run(4))


def test_the_faster_way_is_found_and_kept() -> None:
    for faster in (True, False):
        stream = Stream(200, lambda way, _, best=faster: 300 if way is best else 400, lanes=2)  # type: ignore[misc]
        later = stream.run(20_000)[10_000:]
        assert sum(one is faster for one in later) > 0.97 * len(later)


@pytest.mark.parametrize("faster", [True, False])
def test_a_stream_begins_with_what_the_last_one_has_found(faster: bool) -> None:
    def cost(is_here: bool, _: int) -> float:
        return 300 if is_here is faster else 400

    memory = WayMemory()
    Stream(200, cost, lanes=2, memory=memory).run(20_000)
    for _ in range(5):
        later = Stream(200, cost, lanes=2, memory=memory).run(300)
        assert sum(one is faster for one in later) >= 300 - (LEAST_WINDOW + 2) * TRIAL


def test_it_follows_a_change_in_both_directions() -> None:
    stream = Stream(200, lambda is_here, item: 400 if is_here == (item < 20_000) else 300, lanes=2)
    stream.run(15_000)
    assert sum(stream.run(1000)) < 100
    stream.run(15_000)
    assert sum(stream.run(1000)) > 900


@pytest.mark.parametrize("is_here", [True, False])
def test_it_looks_again_soon_after_other_programs_have_ended(is_here: bool) -> None:
    def cost(way: bool, item: int) -> float:
        if item < 20_000:
            return 500 if way is is_here else 600
        return 300 if way is is_here else 200

    stream = Stream(190, cost, lanes=2)
    assert sum(one is is_here for one in stream.run(20_000)[15_000:]) > 4800
    assert sum(one is is_here for one in stream.run(1000)) < 200


def test_lanes_are_tried_again_within_seconds_though_items_here_take_as_long_as_before() -> None:
    is_loaded = True
    stream = Stream(800, lambda way, _: 850 if way else 1000 if is_loaded else 500, lanes=2)
    assert sum(stream.run(20_000)[-5000:]) > 4800
    while stream.run(1)[0]:  # until lanes are tried
        pass
    while not stream.run(1)[0]:
        pass
    is_loaded = False
    assert not any(stream.run(2000)[-500:])


def test_other_programs_that_hold_up_some_items_change_nothing() -> None:
    stream = Stream(
        200, lambda is_here, item: (300 if is_here else 400) + 5e4 * (item % 90 == 0), lanes=2
    )
    later = stream.run(20_000)[10_000:]
    assert sum(later) > 0.97 * len(later)


def test_a_trial_of_lanes_measures_what_a_hand_over_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[float] = []
    monkeypatch.setattr(way_choice, "note_hand_over", noted.append)
    # 300 µs here, of which 100 for the source: on two lanes 100 if hand-overs were free
    Stream(200, lambda is_here, _: 300 if is_here else 400, lanes=2).run(200)
    assert noted[0] == pytest.approx(300 * US / GAIN_HAND_OVERS, rel=0.01)


def test_a_trial_that_a_stream_did_not_end_goes_on_in_the_next() -> None:
    memory = WayMemory()
    ways = [
        Stream(200, lambda way, _: 300 if way else 400, lanes=2, memory=memory, cores=1).run(25)
        for _ in range(8)
    ]
    assert not all(map(all, ways))  # lanes were tried
    assert all(ways[-1])


def test_waits_for_the_only_core_do_not_keep_items_on_lanes() -> None:
    def make(cores: int) -> Stream:
        # Steps take 200 µs, and on lanes of one core wait for it three times as long.
        return Stream(800, lambda way, _: 200 if way else 320, lanes=2, cores=cores)

    assert sum(make(1).run(4000)[2000:]) > 0.9 * 2000
    assert not any(make(4).run(4000)[2000:])


@pytest.mark.parametrize(("busy", "cores"), [(0.2, 1), (0.9, 1), (0.9, 2)])
def test_lanes_are_tried_if_the_cores_could_do_more(busy: float, cores: int) -> None:
    stream = Stream(
        200, lambda way, _: 300 if way else 400, lanes=2, busy=busy, cores=cores, starts_here=True
    )
    assert all(stream.run(2000)[200:]) is (busy / cores > 0.8)


def test_a_hopeless_trial_ends_early() -> None:
    def count_tried(here_us: float) -> int:
        return sum(Stream(200, lambda way, _: here_us if way else 300, lanes=2).run(100))

    assert count_tried(400) <= 2 + LEAST_WINDOW // 2 < count_tried(320)


@pytest.mark.parametrize("busy", [0.2, 1.0, 1.9])
def test_lanes_that_keep_one_core_busy_are_compared_with_this_thread(busy: float) -> None:
    stream = Stream(800, lambda way, _: 250 if way else 400, lanes=2, busy=busy, cores=2)
    assert any(stream.run(2000)) is (busy == 1)


def test_items_too_long_for_this_thread_stay_on_lanes() -> None:
    stream = Stream(5000, lambda *_: 5000, lanes=2, starts_here=False)
    assert not any(stream.run(3000))
    stream.here_us = 10
    assert any(stream.run(MOST_PATIENCE + 1))


def test_patience_grows_with_each_refusal_and_ends_with_a_window_here() -> None:
    stream = Stream(10, lambda *_: 25)
    for patience in (LEAST_PATIENCE * 2**n for n in range(9)):
        stream.choice.refuse()
        assert stream.run(min(patience, MOST_PATIENCE) + 1)[-2:] == [False, True]
    stream.run(TRIAL * (LEAST_WINDOW + 2))
    stream.choice.refuse()
    assert next(n for n in count(1) if stream.run(1)[0]) == LEAST_PATIENCE + 1


def test_a_trial_of_this_thread_ends_when_an_item_is_refused() -> None:
    stream = Stream(800, lambda *_: 400, lanes=2, busy=1, cores=2)
    tried = refused = 0
    for _ in range(2000):
        if stream.choice.is_here:
            stream.choice.refuse()
            tried += 1
        refused += stream.choice.is_refused
        stream.run(1)
    assert tried > 2
    assert refused <= LEAST_PATIENCE


@pytest.mark.parametrize("starts_here", [True, False])
def test_the_first_way_is_as_asked(starts_here: bool) -> None:
    assert Stream(10, lambda *_: 25, starts_here=starts_here).run(1) == [starts_here]
