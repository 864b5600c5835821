"""Steps that a lane is given next: older items first, then what the longest work follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.dispatch.ready import ReadyQueue, compute_bottom_levels, rank_steps

Waits = list[set[int]]


def test_a_lane_is_given_as_much_as_its_depth_at_once() -> None:
    queue = ReadyQueue[str](2)
    assert [queue.offer(0, rank, "abc"[rank]) for rank in range(3)] == [True, True, False]
    assert queue.take() == "c"
    assert queue.take() is None
    assert queue.take() is None
    assert [queue.offer(1, rank, "def"[rank]) for rank in range(3)] == [True, True, False]


def test_older_items_go_first_and_then_lower_ranks() -> None:
    queue = ReadyQueue[str]()
    queue.offer(9, 9, "runs")
    for item, rank in [(2, 0), (1, 5), (1, 3), (3, 1)]:
        assert not queue.offer(item, rank, f"{item}/{rank}")
    assert [queue.take() for _ in range(5)] == ["1/3", "1/5", "2/0", "3/1", None]


def test_what_waits_of_an_item_can_be_taken_away() -> None:
    queue = ReadyQueue[str]()
    queue.offer(1, 0, "runs")
    for item, rank in [(1, 1), (2, 0), (1, 2), (0, 0)]:
        queue.offer(item, rank, f"{item}/{rank}")
    assert queue.withdraw(1) == 2
    assert queue.withdraw(1) == 0
    assert [queue.take() for _ in range(3)] == ["0/0", "2/0", None]


Key = tuple[int, int]


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), unique=True, max_size=30),
    st.randoms(use_true_random=False),
)
def test_steps_are_given_once_within_the_depth_and_the_first_of_those_that_wait_goes_next(
    depth: int, keys: list[Key], random: object
) -> None:
    """Against a list that is searched each time."""
    queue, waiting, given_to = ReadyQueue[Key](depth), list[Key](), list[Key]()
    left, active = list(keys), 0
    while left or active:
        assert len(queue) == len(waiting)
        if left and (not active or random.random() < 0.5):  # type: ignore[attr-defined]
            key = left.pop()
            if queue.offer(*key, key):
                assert active < depth
                active += 1
                given_to.append(key)
            else:
                assert active == depth
                waiting.append(key)
        else:
            found = queue.take()
            assert found == min(waiting, default=None)
            if found is None:
                active -= 1
            else:
                waiting.remove(found)
                given_to.append(found)
    assert sorted(given_to) == sorted(keys)


@st.composite
def orders(draw: st.DrawFn) -> Waits:
    count = draw(st.integers(0, 12))
    return [draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(count)]


def longest(step: int, seconds: list[float], waits: Waits) -> float:
    """Return the longest way from a step to the end, by trying all of them."""
    after = [i for i, before in enumerate(waits) if step in before]
    return seconds[step] + max((longest(one, seconds, waits) for one in after), default=0.0)


@given(orders().filter(lambda waits: len(waits) < 9), st.data())
def test_a_bottom_level_is_the_longest_way_to_the_end(waits: Waits, data: st.DataObject) -> None:
    times = st.lists(st.floats(0, 9), min_size=len(waits), max_size=len(waits))
    seconds = data.draw(times)
    levels = compute_bottom_levels(seconds, [sorted(before) for before in waits])
    expected = [longest(step, seconds, waits) for step in range(len(waits))]
    assert levels == pytest.approx(expected)


@given(orders(), st.data())
def test_a_step_has_a_lower_rank_than_all_that_follow_it(waits: Waits, data: st.DataObject) -> None:
    """Also where steps take no time."""
    times = st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=len(waits), max_size=len(waits))
    found = rank_steps(data.draw(times), [sorted(before) for before in waits])
    assert sorted(found) == list(range(len(waits)))
    assert all(found[b] < found[step] for step, before in enumerate(waits) for b in before)


def test_the_longest_branch_goes_first_and_among_equals_the_plan_s_order() -> None:
    waits = [[], [0], [0], [2], [0]]
    assert rank_steps([1.0, 2.0, 1.0, 4.0, 2.0], waits) == [0, 3, 1, 2, 4]
