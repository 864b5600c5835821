"""Lines of items: each key is passed in the order of admission, and somebody can always go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.dispatch.item_order import ItemOrder, Ordered


def make_both(steps: Mapping[int, Sequence[str]]) -> Ordered:
    """Return steps that wait for the item before, and let the next one go on."""
    return Ordered(steps, steps)


def test_an_item_waits_until_the_one_before_is_through_all_steps_of_a_key() -> None:
    order = ItemOrder()
    first, second = (order.admit(make_both({0: ["a"], 2: ["a"]})) for _ in range(2))
    assert not order.claim(second, 0)
    assert order.claim(first, 0)
    assert order.complete(first, 0) == []
    assert order.complete(first, 2) == [(second, 0)]
    assert order.claim(second, 0)


def test_items_that_lack_a_key_stand_in_no_line_for_it() -> None:
    order = ItemOrder()
    order.admit(make_both({0: ["a"]}))
    other = order.admit(make_both({0: ["b"]}))
    assert order.claim(other, 0)


def test_an_item_that_leaves_lets_the_next_one_go_whatever_it_owes() -> None:
    order = ItemOrder()
    first, second, third = (order.admit(make_both({0: ["a"], 1: ["b"]})) for _ in range(3))
    assert not order.claim(third, 0)
    assert not order.claim(second, 1)
    assert order.leave(first) == [(second, 1)]
    assert order.leave(second) == [(third, 0)]


def test_a_key_that_is_held_is_passed_on_at_the_end_alone() -> None:
    order = ItemOrder()
    held = Ordered({0: ["a"]}, {0: ["a"]}, frozenset("a"))
    first, second = order.admit(held), order.admit(make_both({0: ["a"]}))
    assert not order.claim(second, 0)
    assert order.complete(first, 0) == []
    assert order.leave(first) == [(second, 0)]


def test_a_step_that_only_reads_waits_for_earlier_items_and_holds_nobody_up() -> None:
    order = ItemOrder()
    reading = Ordered({0: ["a"], 1: ["a"]}, {1: ["a"]})
    first, second, third = (order.admit(reading) for _ in range(3))
    assert order.complete(first, 1) == []  # which has not read yet itself
    assert not order.claim(third, 0)
    assert order.claim(second, 1)
    assert order.complete(second, 1) == [(third, 0)]
    assert order.claim(first, 0)
    assert order.claim(second, 0)


def test_items_of_other_states_wait_for_shared_functions_alone() -> None:
    order = ItemOrder()
    steps = {0: ["a"], 1: ["f"]}
    ordered = Ordered(steps, steps, shared=frozenset("f"))
    first, other, second, plain = (order.admit(ordered, one) for one in ("x", "y", "x", None))
    assert order.claim(other, 0)
    assert order.claim(plain, 0)
    assert not order.claim(second, 0)
    assert not order.claim(other, 1)
    assert order.complete(first, 0) == [(second, 0)]
    assert order.leave(first) == [(other, 1)]
    for item in (other, second, plain):
        order.leave(item)
    assert not order._lines
    assert not order._waiting


def test_a_step_waits_for_earlier_items_though_its_own_item_is_through() -> None:
    order = ItemOrder()
    first, second = (order.admit(Ordered({0: ["a"], 1: ["a"]}, {1: ["a"]})) for _ in range(2))
    assert order.complete(second, 1) == []
    assert not order.claim(second, 0)
    assert order.leave(first) == [(second, 0)]


@given(
    keys=st.lists(st.lists(st.sampled_from("abc"), max_size=2, unique=True), max_size=5),
    items=st.integers(1, 6),
    seed=st.integers(0, 1 << 20),
)
def test_every_key_is_passed_in_order_and_all_items_come_through(
    keys: list[list[str]], items: int, seed: int
) -> None:
    random, order = Random(seed), ItemOrder()
    steps = {step: of_step for step, of_step in enumerate(keys) if of_step}
    numbers = [order.admit(make_both(steps)) for _ in range(items)]
    running: list[tuple[int, int]] = []
    passed: dict[str, list[int]] = {}
    left = {item: list(range(len(keys))) for item in numbers}
    gone = {item for item in numbers if random.random() < 0.2}  # they leave without a word
    for item in gone:
        running += order.leave(item)
        del left[item]
    offered = [item for item in left if left[item]]
    while offered or running:
        if offered and (not running or random.random() < 0.5):
            item = offered.pop(random.randrange(len(offered)))
            step = left[item].pop(0)
            if step not in steps or order.claim(item, step):
                running.append((item, step))
        else:
            item, step = running.pop(random.randrange(len(running)))
            for key in steps.get(step, ()):
                passed.setdefault(key, []).append(item)
            if step in steps:
                running += order.complete(item, step)
            if left[item]:
                offered.append(item)
    assert not any(left.values()), "nobody waits for ever"
    for found in passed.values():
        assert found == sorted(found)
