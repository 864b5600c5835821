"""Copies of regions and the items that wait for them, against a model of the items before."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from plait.scheduler.dispatch.region_ring import RegionRing
from plait.scheduler.plans.regions import ADMISSION, Region

STEPS = 4
LANDING = STEPS
REGIONS = (
    Region("host", "one copy", 8, 1, (1, 2), (2, 3)),
    Region("host", "two copies", 8, 2, (0,), (1, 2)),
    Region("host", "three copies", 8, 3, (2,), (LANDING,)),
    Region("npu", "fed", 8, 2, (ADMISSION,), (0,)),
    Region("npu", "whole", 8, 3, (ADMISSION, 3), (3, LANDING)),
    Region("npu", "lane", 8, 1),
)


def region(copies: int, claims: tuple[int, ...], releases: tuple[int, ...]) -> Region:
    return Region("host", f"{copies} {claims} {releases}", 8, copies, claims, releases)


@dataclass
class Item:
    """What the model knows of an item: which of its steps wait, run and are complete."""

    waiting: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)

    def has_started(self, region: Region) -> bool:
        return bool(set(region.claims) & (self.running | self.complete))

    def has_released(self, region: Region) -> bool:
        return set(region.releases) <= self.complete


class AgainstTheModel(RuleBasedStateMachine):
    """Items run their steps in order, each when it may, and end whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = RegionRing(REGIONS)
        self.items: dict[int, Item] = {}
        self.admitted = 0

    def may_start(self, number: int, step: int) -> bool:
        """True when no earlier item still has, or is still to have, one of the copies."""
        return not any(
            earlier < number
            and earlier % region.copies == number % region.copies
            and not item.has_released(region)
            for region in REGIONS
            if step in region.claims
            for earlier, item in self.items.items()
        )

    def granted(self, grants: list[tuple[int, int]]) -> None:
        assert grants == sorted(set(grants))
        for number, step in grants:
            assert self.may_start(number, step)
            self.items[number].waiting.remove(step)
            self.items[number].running.add(step)

    @precondition(lambda self: len(self.items) < 7)
    @rule()
    def admit(self) -> None:
        number = self.rings.admit()
        assert number == self.admitted
        self.admitted += 1
        self.items[number] = Item()
        self.claim(number, ADMISSION)

    def claim(self, number: int, step: int) -> None:
        may = self.rings.claim(number, step)
        assert may == self.may_start(number, step)
        (self.items[number].running if may else self.items[number].waiting).add(step)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def finish_a_step_and_go_on(self, data: st.DataObject) -> None:
        """Steps 0 and then 1, 2 and 3 follow the feeding; 1 and 2 run at the same time."""
        running = [(n, step) for n, item in sorted(self.items.items()) for step in item.running]
        if not running:
            return
        number, step = data.draw(st.sampled_from(sorted(running)))
        item = self.items[number]
        item.running.remove(step)
        item.complete.add(step)
        self.granted(self.rings.complete(number, step))
        following = {ADMISSION: [0], 0: [1, 2], 3: [LANDING]}.get(step, [])
        if step in (1, 2) and {1, 2} <= item.complete:
            following = [3]
        for later in following:
            self.claim(number, later)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """An item ends: it failed, was cancelled, or has landed."""
        number = data.draw(st.sampled_from(sorted(self.items)))
        del self.items[number]
        self.granted(self.rings.leave(number))

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """An item is cancelled: what waits is skipped, what runs ends later."""
        number = data.draw(st.sampled_from(sorted(self.items)))
        item = self.items[number]
        assert set(self.rings.withdraw(number)) == item.waiting
        item.waiting.clear()

    @invariant()
    def nobody_waits_who_may_start(self) -> None:
        for number, item in self.items.items():
            assert not any(self.may_start(number, step) for step in item.waiting)

    @invariant()
    def a_copy_is_with_one_item_at_a_time(self) -> None:
        for region in (region for region in REGIONS if region.claims):
            copies = [
                number % region.copies
                for number, item in self.items.items()
                if item.has_started(region) and not item.has_released(region)
            ]
            assert len(copies) == len(set(copies))

    @invariant()
    def the_earliest_item_waits_for_nobody(self) -> None:
        if self.items:
            assert not self.items[min(self.items)].waiting


AgainstTheModel.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestRings = AgainstTheModel.TestCase


def test_an_item_waits_for_the_one_that_used_its_copy_before() -> None:
    rings = RegionRing([region(2, (0,), (1,))])
    first, second, third = (rings.admit() for _ in range(3))
    assert rings.claim(first, 0)
    assert rings.claim(second, 0)
    assert not rings.claim(third, 0)
    assert rings.complete(second, 1) == []
    assert rings.complete(first, 1) == [(third, 0)]


def test_an_earlier_item_that_has_not_come_yet_is_waited_for() -> None:
    rings = RegionRing([region(1, (0,), (0,))])
    first, second = rings.admit(), rings.admit()
    assert not rings.claim(second, 0), "the first comes first, however late"
    assert rings.claim(first, 0)
    assert rings.complete(first, 0) == [(second, 0)]


def test_an_item_that_leaves_before_its_turn_does_not_pass_on_what_it_never_had() -> None:
    rings = RegionRing([region(1, (0,), (1,))])
    first, second, third = (rings.admit() for _ in range(3))
    assert rings.claim(first, 0)
    assert not rings.claim(third, 0)
    assert rings.leave(second) == []
    assert rings.complete(first, 1) == [(third, 0)]


@pytest.mark.parametrize("had_it", [True, False])
def test_an_item_that_leaves_releases_what_it_had(had_it: bool) -> None:
    rings = RegionRing([region(1, (0,), (1,))])
    first, second = rings.admit(), rings.admit()
    if had_it:
        assert rings.claim(first, 0)
    assert not rings.claim(second, 0)
    assert rings.leave(first) == [(second, 0)]


def test_a_region_is_released_when_the_last_of_its_releases_is_complete() -> None:
    rings = RegionRing([region(1, (0,), (1, 2))])
    first, second = rings.admit(), rings.admit()
    assert rings.claim(first, 0)
    assert not rings.claim(second, 0)
    assert rings.complete(first, 2) == []
    assert rings.complete(first, 1) == [(second, 0)]


def test_a_step_that_claims_two_regions_starts_when_it_has_both() -> None:
    rings = RegionRing([region(1, (0,), (1,)), region(1, (0,), (2,))])
    first, second = rings.admit(), rings.admit()
    assert rings.claim(first, 0)
    assert not rings.claim(second, 0)
    assert rings.complete(first, 2) == []
    assert rings.complete(first, 1) == [(second, 0)]
    assert rings.leave(first) == []


def test_a_region_without_releases_is_kept_until_its_item_leaves() -> None:
    rings = RegionRing([region(1, (0,), ())])
    first, second = rings.admit(), rings.admit()
    assert rings.claim(first, 0)
    assert not rings.claim(second, 0)
    assert rings.complete(first, 0) == []
    assert rings.leave(first) == [(second, 0)]


def test_what_was_withdrawn_is_not_started() -> None:
    rings = RegionRing([region(1, (0,), (1,))])
    first, second = rings.admit(), rings.admit()
    assert rings.claim(first, 0)
    assert not rings.claim(second, 0)
    assert rings.withdraw(second) == [0]
    assert rings.leave(first) == []


def test_regions_without_claims_are_waited_for_by_nobody() -> None:
    rings = RegionRing([region(1, (), ())])
    assert rings.claiming == frozenset()
    assert all(rings.claim(rings.admit(), 0) for _ in range(5))


def test_the_steps_that_must_claim_are_known_ahead() -> None:
    assert RegionRing(REGIONS).claiming == {ADMISSION, 0, 1, 2, 3}
    assert RegionRing(REGIONS[:1]).claiming == {1, 2}
