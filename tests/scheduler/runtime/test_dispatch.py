"""Replicas that items go to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.runtime.dispatcher import Dispatcher
from plait.scheduler.runtime.items.item import ItemRun

GROUPS = (("w:0", "w:1", "w:2"), ("v:4", "v:5"))


@given(
    endings=st.lists(st.integers(0, 9), max_size=40),
    lost=st.sets(st.sampled_from(["w:0", "w:1", "w:2"])),
)
def test_an_item_goes_where_fewest_are_under_way_and_no_device_is_lost(
    endings: list[int], lost: set[str]
) -> None:
    dispatcher = Dispatcher(GROUPS, lost)
    under_way: list[tuple[ItemRun, int]] = []
    for ending in endings:
        loads = [sum(one == index for _, one in under_way) for index in range(3)]
        item_run = ItemRun()
        chosen = dispatcher.choose(item_run)
        alive = [index for index in range(3) if f"w:{index}" not in lost] or [0, 1, 2]
        assert chosen in alive
        assert loads[chosen] == min(loads[index] for index in alive)
        under_way.append((item_run, chosen))
        if ending < len(under_way):
            under_way.pop(ending)[0].finish()


def test_of_equals_the_next_in_turn_is_taken() -> None:
    dispatcher = Dispatcher(GROUPS, ())
    chosen = []
    for _ in range(5):
        item_run = ItemRun()
        chosen.append(dispatcher.choose(item_run))
        item_run.finish()
    assert chosen == [0, 1, 2, 0, 1]


def test_an_item_that_finds_no_slot_keeps_its_turn() -> None:
    dispatcher = Dispatcher(GROUPS, ())
    first, second = ItemRun(), ItemRun()
    assert [dispatcher.choose(first), dispatcher.choose(first), dispatcher.choose(second)] == [
        0,
        0,
        1,
    ]


def test_a_shorter_group_begins_again() -> None:
    item_runs = [ItemRun() for _ in range(3)]
    dispatcher = Dispatcher(GROUPS, {"v:4"})  # of variants 0 and 2
    assert [dispatcher.choose(item_run) for item_run in item_runs] == [1, 1, 1]


def test_a_slot_that_is_held_counts_until_it_is_let_go() -> None:
    dispatcher = Dispatcher((("w:0", "w:1"),), ())
    held = ItemRun(holds=True)
    assert dispatcher.choose(held) == 0
    held.land({}, None, lambda: None)
    others = [ItemRun() for _ in range(2)]
    assert dispatcher.choose(others[0]) == 1
    others[0].finish()
    assert dispatcher.choose(others[1]) == 1
    others[1].finish()
    held.let_go()
    assert dispatcher.choose(ItemRun()) == 0


def test_no_item_moves_while_a_consumer_holds_a_slot() -> None:
    lost: set[str] = set()
    dispatcher = Dispatcher((("w:0", "w:1"),), lost)
    first, held = ItemRun(), ItemRun(holds=True)
    first.variant, held.variant = dispatcher.choose(first), dispatcher.choose(held)
    lost.add("w:0")
    assert dispatcher.move(first) == 0
    held.finish()
    assert dispatcher.move(first) == 1


def test_items_that_nobody_knows_of_any_more_do_not_count() -> None:
    dispatcher = Dispatcher((("w:0", "w:1"),), ())
    kept = ItemRun()
    assert dispatcher.choose(kept) == 0
    dispatcher.choose(ItemRun())
    assert dispatcher.choose(ItemRun()) == 1
