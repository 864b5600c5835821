"""The times of a device's events on the host's clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain, repeat

import pytest
from plait.devices.streams import backend
from plait.devices.streams.backend import ANCHOR_S, EventClock


class Clock:
    """The host's clock, and a device whose events take times on it that are given.

    An event happens a microsecond before its waiter knows, as drivers have it.
    """

    def __init__(self, waits_ns: Iterator[int]) -> None:
        self.now_ns = 0
        self._waits_ns = waits_ns

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def happen(self) -> int:
        self.now_ns += next(self._waits_ns)
        return self.now_ns - 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock on which the first event of a queue is slow, as is one now and then."""
    made = Clock(chain([3_000_000, 40_000, 2000], accumulate(repeat(2000))))
    monkeypatch.setattr(backend, "time", made)
    return made


def test_a_slow_first_event_does_not_move_all_times(clock: Clock) -> None:
    timeline = EventClock(clock.happen, lambda earlier, later: later - earlier)
    event = clock.happen()
    assert timeline.host_ns(timeline.anchor, event) == event


def test_an_old_anchor_is_replaced_by_the_one_that_is_known_best(clock: Clock) -> None:
    timeline = EventClock(clock.happen, lambda earlier, later: later - earlier)
    first = timeline.anchor
    timeline.refresh()
    assert timeline.anchor is first
    clock.now_ns += int(ANCHOR_S * 1e9) + 1
    timeline.refresh()
    assert timeline.anchor.event > first.event
    event = clock.happen()
    assert timeline.host_ns(timeline.anchor, event) == event
