"""The readiness counts of an item: a step is ready when all that it waits for is complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.dispatch.ready import ItemProgress

Waits = list[set[int]]


@st.composite
def orders(draw: st.DrawFn) -> Waits:
    """Draw for each of some steps the earlier ones that it waits for."""
    count = draw(st.integers(0, 12))
    return [draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(count)]


def progress(waits: Waits) -> ItemProgress:
    after = [[i for i, before in enumerate(waits) if step in before] for step in range(len(waits))]
    return ItemProgress([len(before) for before in waits], after)


@given(orders(), st.randoms(use_true_random=False))
def test_a_step_is_ready_when_all_it_waits_for_is_complete(waits: Waits, random: object) -> None:
    counts = progress(waits)
    ready = {step for step, before in enumerate(waits) if not before}
    complete: set[int] = set()
    while ready:
        step = random.choice(sorted(ready))  # type: ignore[attr-defined]
        complete.add(step)
        ready = ready - {step} | set(counts.complete(step))
        by_definition = {s for s, before in enumerate(waits) if before <= complete}
        assert ready == by_definition - complete
    assert len(complete) == len(waits)


def test_what_becomes_ready_is_told_once_and_in_the_order_that_was_given() -> None:
    counts = progress([set(), set(), {0}, {0, 1}, {0}])
    assert counts.complete(0) == [2, 4]
    assert counts.complete(1) == [3]


def test_steps_may_be_counted_down_before_the_one_they_wait_for_is_complete() -> None:
    counts = ItemProgress([0, 1, 2], [[2], [2], []])
    assert counts.count_down([1]) == [1]
    assert counts.complete(0) == []
    assert counts.complete(1) == [2]


def test_items_of_one_plan_count_for_themselves() -> None:
    waits, after = (0, 0, 2), ((2,), (2,), ())
    first, second = ItemProgress(waits, after), ItemProgress(waits, after)
    assert first.complete(0) == []
    assert second.complete(1) == []
    assert first.complete(1) == [2]
