"""The cost of a hand-over between threads."""

from __future__ import annotations

import pytest
from plait.scheduler.dispatch import hand_over


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over, "_measured_ns", 0)
    monkeypatch.setattr(hand_over, "_measured_at_ns", 0)
    monkeypatch.setattr(hand_over, "_noted_ns", 0)


def test_where_nothing_is_measured_it_is_nominal() -> None:
    assert hand_over.measure_hand_over() == hand_over.get_hand_over_ns() == hand_over.NOMINAL_NS
    assert not hand_over.is_measured()


def test_it_is_measured_once_and_again_when_that_is_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLAIT_FIGURES", "on")
    times = iter([1_000_000, 2_000_000, 3_000_000])
    monkeypatch.setattr(hand_over, "_measure_locks", lambda: next(times))
    assert [hand_over.measure_hand_over() for _ in range(3)] == [1_000_000] * 3
    monkeypatch.setattr(hand_over, "AGE_NS", -1)
    assert hand_over.measure_hand_over() == 2_000_000
    assert hand_over.get_hand_over_ns() == 2_000_000
    assert hand_over.is_measured()


def test_what_streams_pay_counts_if_it_is_more_and_until_the_next_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLAIT_FIGURES", "on")
    monkeypatch.setattr(hand_over, "_measure_locks", lambda: 10_000)
    hand_over.measure_hand_over()
    hand_over.note_hand_over(5_000)
    assert hand_over.get_hand_over_ns() == 10_000
    for _ in range(50):
        hand_over.note_hand_over(100_000)
    assert 95_000 < hand_over.get_hand_over_ns() <= 100_000
    for _ in range(50):
        hand_over.note_hand_over(1e12)
    assert hand_over.get_hand_over_ns() <= hand_over.MOST_TIMES * 10_000
    monkeypatch.setattr(hand_over, "AGE_NS", -1)
    assert hand_over.measure_hand_over() == 10_000


def test_without_a_measurement_nothing_is_noted() -> None:
    hand_over.note_hand_over(1e9)
    assert hand_over.get_hand_over_ns() == hand_over.NOMINAL_NS


def test_locks_between_two_threads_take_some_time() -> None:
    assert hand_over._measure_locks() >= 1000
