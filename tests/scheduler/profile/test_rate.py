"""The rate of a profile: by the time in which items were under way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.profile import Profile, Record
from plait.scheduler.profile.timestamps import Timestamps


def record_of(asked: int, admitted: int, landed: int, released: int = 0) -> Record:
    marks = Timestamps(asked_ns=asked, admitted_ns=admitted, landed_ns=landed, released_ns=released)
    return Record((), marks, failed=False)


def test_time_between_streams_does_not_count_for_the_rate() -> None:
    s = 1_000_000_000
    first = [record_of((1 + i) * s, (1 + i) * s, (2 + i) * s) for i in range(4)]
    second = [record_of((91 + i) * s, (91 + i) * s, (92 + i) * s) for i in range(4)]
    profile = Profile((*first, *second), ())
    assert (profile.wall_s, profile.active_s, profile.items_per_s) == (94, 8, 1)
    assert profile.totals()["items_per_s"] == 1
    told = profile.table().splitlines()
    assert told[0] == "8 items in 8.000 s: 1.0 items/s, 0 failed"
    assert told[1] == "in 86.000 s between the first and the last, no item was under way"


def test_a_slow_source_and_a_slow_consumer_count_for_the_rate() -> None:
    s = 1_000_000_000
    slow_source = [record_of(1 + 10 * i * s, (10 * i + 9) * s, 10 * (i + 1) * s) for i in range(4)]
    assert Profile(tuple(slow_source), ()).active_s == pytest.approx(31)
    slow_consumer = [
        record_of(10 * i * s, (10 * i + 1) * s, (10 * i + 2) * s, 10 * (i + 1) * s)
        for i in range(1, 5)
    ]
    profile = Profile(tuple(slow_consumer), ())
    assert profile.active_s == profile.wall_s == 31
    assert "no item was under way" not in profile.table()


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=8))
def test_items_are_under_way_in_the_moments_in_which_one_is(
    spans: list[tuple[int, int, int, int]],
) -> None:
    records = tuple(record_of(*(1 + moment for moment in sorted(span))) for span in spans)
    profile = Profile(records, ())
    first = min(record.admitted_ns for record in records)
    last = max(record.landed_ns for record in records)
    marks = [record.marks for record in records]
    under_way = [
        moment
        for moment in range(first, last)
        if any(one.asked_ns <= moment < one.released_ns for one in marks)
    ]
    assert profile.active_s == pytest.approx(len(under_way) / 1e9)
