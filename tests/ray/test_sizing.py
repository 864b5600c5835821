"""Replicas are added, and given back, when they should be."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait import SessionError
from plait.scheduler.ray.pools.autoscaling import Autoscaler, Change, Size

SIZE = Size(2, 8, crowded_s=1.0, idle_s=60.0)


def test_items_have_to_wait_a_while_before_replicas_are_added() -> None:
    sizing = Autoscaler(SIZE)
    assert sizing.look(10.0, 2, 0, 5, 2, {}) == Change(again=11.0)
    assert sizing.look(10.9, 2, 0, 5, 2, {}) == Change(again=11.0)
    assert sizing.look(11.0, 2, 0, 5, 2, {}) == Change(start=3)


def test_items_that_wait_no_more_begin_anew() -> None:
    sizing = Autoscaler(SIZE)
    sizing.look(10.0, 2, 0, 5, 2, {})
    sizing.look(10.5, 2, 0, 0, 2, {})
    assert sizing.look(11.2, 2, 0, 5, 2, {}) == Change(again=12.2)


def test_none_are_added_while_some_are_being_started() -> None:
    sizing = Autoscaler(SIZE)
    sizing.look(10.0, 4, 2, 5, 2, {})
    assert sizing.look(99.0, 4, 2, 5, 2, {}) == Change()


def test_there_are_never_too_many() -> None:
    sizing = Autoscaler(SIZE)
    sizing.look(0.0, 7, 0, 500, 1, {})
    assert sizing.look(5.0, 7, 0, 500, 1, {}) == Change(start=1)
    assert sizing.look(9.0, 8, 0, 500, 1, {}) == Change()


def test_who_has_been_idle_the_longest_is_given_back_first() -> None:
    idle = {"a": 30.0, "b": 10.0, "c": 20.0}
    assert Autoscaler(SIZE).look(85.0, 4, 0, 0, 1, idle) == Change(stop=("b", "c"))
    assert Autoscaler(SIZE).look(75.0, 4, 0, 0, 1, idle) == Change(stop=("b",), again=80.0)


def test_the_least_number_stays_however_idle() -> None:
    assert Autoscaler(SIZE).look(1e6, 2, 0, 0, 1, {"a": 0.0, "b": 0.0}) == Change()


@pytest.mark.parametrize(("least", "most"), [(0, 1), (3, 2), (-1, -1)])
def test_sizes_that_cannot_be_are_refused(least: int, most: int) -> None:
    with pytest.raises(SessionError, match=f"{least} to {most} replicas"):
        Size(least, most)


@given(
    looks=st.lists(
        st.tuples(
            st.floats(0, 30), st.integers(0, 3), st.integers(0, 40), st.lists(st.floats(0, 90))
        ),
        max_size=20,
    )
)
def test_there_are_always_as_many_as_there_may_be(
    looks: list[tuple[float, int, int, list[float]]],
) -> None:
    sizing, now, count = Autoscaler(SIZE), 0.0, SIZE.least
    for pause, starting, waiting, ages in looks:
        now += pause
        starting = min(starting, count)
        ready = count - starting
        idle = {f"r{index}": now - age for index, age in enumerate(ages[:ready])}
        change = sizing.look(now, count, starting, waiting, 2, idle)
        assert set(change.stop) <= idle.keys()
        assert not (change.start and change.stop)
        assert change.again == inf or change.again > now
        count += change.start - len(change.stop)
        assert SIZE.least <= count <= SIZE.most
