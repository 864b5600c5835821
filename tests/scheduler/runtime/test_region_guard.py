"""Items in flight that share few copies: who waits, who goes on, and what failures leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import plait as pl
import pytest
from fake_devices import SteppedDevice
from plait.devices.event import Event
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory import memory_plan
from plait.scheduler.plans.regions import ADMISSION, Region
from plait.scheduler.runtime.opened.region_guard import RegionGuard
from plait.scheduler.runtime.opened.slot import Slot
from staged import Guest, Stage

STEPS = 6
"""Of the chain: up, compute and down on each of two devices."""


@pytest.fixture(autouse=True)
def _rings_for_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "SMALL_NBYTES", 0)


def chain() -> Graph:
    builder = pl.GraphBuilder("chain")
    h = builder.op("Neg", builder.input("x", "int32", (4,)), name="a")
    builder.output("y", builder.op("Neg", h, name="b"))
    return builder.build()


def stage(copies: int = 2, slots: int = 6) -> Stage:
    devices = [SteppedDevice("a"), SteppedDevice("b")]
    return Stage(chain(), devices, {"a": "a", "b": "b"}, slots, copies)


def fed(value: int) -> dict[str, Array]:
    return {"x": np.full(4, value, np.int32)}


def offered(guest: Guest) -> list[int]:
    """Return the steps that were ready and had what they claim; their lanes may be busy."""
    return [step for step, ready_ns in enumerate(guest.execution.ready_ns) if ready_ns]


def check(guest: Guest) -> None:
    assert guest.execution.error is None
    np.testing.assert_array_equal(guest.results["y"], guest.inputs["x"])


# waiting


def test_a_step_is_submitted_by_whoever_releases_what_it_waits_for() -> None:
    on = stage(copies=1)
    first, second = on.start(0, fed(1)), on.start(1, fed(2))
    for _ in range(STEPS - 1):
        assert not hasattr(second, "execution"), "it is not even fed"
        on.busy()[0].step()
    on.busy()[0].step()
    assert on.finished == [0]
    assert offered(second) == [0]
    on.run_all(Random(0))
    check(first)
    check(second)


def test_items_overtake_nobody_on_a_ring_but_go_on_where_they_have_copies() -> None:
    on = stage(copies=2)
    guests = [on.start(index, fed(index)) for index in range(4)]
    a, b = on.devices["a"], on.devices["b"]
    for _ in range(2):  # both up to a
        a.step()
    assert [offered(guest) for guest in guests[:2]] == [[0, 1], [0, 1]]
    assert not any(hasattr(guest, "execution") for guest in guests[2:])
    while a.queue:
        a.step()
    assert [offered(guest) for guest in guests[:2]] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    while b.queue:
        b.step()
    assert on.finished == [0, 1]
    on.run_all(Random(0))
    for guest in guests:
        check(guest)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_many_items_pass_through_few_copies_in_any_order(copies: int, seed: int) -> None:
    on, random = stage(copies, slots=8), Random(seed)
    guests: list[Guest] = []
    while len(on.finished) < 40:
        in_flight = len(guests) - len(on.finished)
        if len(guests) < 40 and in_flight < 8 and random.random() < 0.3:
            guests.append(on.start(len(guests), fed(len(guests))))
        elif on.busy():
            random.choice(on.busy()).step()
    for guest in guests:
        check(guest)
    assert len(on.open_plan.slots) == on.open_plan.period <= 6


def test_slots_with_copies_in_common_have_the_programs_on_them_in_common() -> None:
    on = stage(copies=6)
    assert on.plan.memory is not None
    copies = {region.memory: region.copies for region in on.plan.memory.regions}
    assert copies == {"host": 6, "memory of a": 3, "memory of b": 3}
    first, fourth, fifth = (on.open_plan.make_slot(index) for index in (0, 3, 4))
    shared = [a is b for a, b in zip(first.launches, fourth.launches, strict=True)]
    assert shared == [False, True, False, False, True, False], "transfers reach into the host too"
    assert not any(a is b for a, b in zip(first.launches, fifth.launches, strict=True))
    assert on.open_plan.make_slot(0) is first


# failures and cancellation


def moments() -> Iterator[tuple[int, int]]:
    """Yield how many pieces of work are done before something happens, and to which item."""
    yield from ((moment, victim) for moment in range(4 * STEPS) for victim in range(5))


def started(seed: int, moment: int, copies: int) -> tuple[Stage, list[Guest], Random]:
    on, random = stage(copies), Random(seed)
    guests = [on.start(index, fed(index)) for index in range(5)]
    for _ in range(moment):
        random.choice(on.busy()).step()
    return on, guests, random


def end(on: Stage, guests: list[Guest], random: Random, victim: int) -> None:
    """Check that all items end, once, the others well, and that more go through after them."""
    on.run_all(random)
    guests += [on.start(index, fed(index)) for index in range(5, 10)]
    on.run_all(random)
    assert sorted(on.finished) == list(range(10))
    for guest in guests:
        if guest.index != victim:
            check(guest)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 2])
def test_an_item_cancelled_at_any_moment_leaves_the_copies_usable(copies: int) -> None:
    for moment, victim in moments():
        on, guests, random = started(moment, moment, copies)
        execution = getattr(guests[victim], "execution", None)
        if execution is None or victim in on.finished:
            continue
        execution.cancel()
        end(on, guests, random, victim)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_step_failing_at_any_moment_leaves_the_copies_usable(copies: int) -> None:
    def fail() -> None:
        raise ValueError("broken")

    for moment in range(4 * STEPS):
        on, guests, random = started(moment, moment, copies)
        device = random.choice(on.busy())
        event, _ = device.queue[0]
        device.queue[0] = event, fail
        (victim,) = (g.index for g in guests if event in getattr(g, "execution", _Nothing).events)
        end(on, guests, random, victim)
        assert str(guests[victim].execution.error) == "broken"


class _Nothing:
    events: tuple[object, ...] = ()


def test_all_items_cancelled_at_once_end_and_leave_the_copies_usable() -> None:
    for moment in range(4 * STEPS):
        on, guests, random = started(moment, moment, 2)
        for guest in reversed(guests):
            if hasattr(guest, "execution") and guest.index not in on.finished:
                guest.execution.cancel()
        on.run_all(random)
        later = on.start(5, fed(5))
        on.run_all(random)
        assert sorted(on.finished) == list(range(6))
        check(later)


def test_a_cancelled_item_does_not_wait_for_what_it_would_have_needed() -> None:
    on = stage(copies=6)
    guests = [on.start(index, fed(index)) for index in range(6)]
    assert [offered(guest) for guest in guests] == [[0]] * 3 + [[]] * 3, "three copies on a"
    guests[5].execution.cancel()
    assert on.finished == [5]
    on.run_all(Random(0))
    assert sorted(on.finished) == list(range(6))


def test_an_item_cancelled_while_a_step_of_it_claims_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread cancels after the step was found ready, and before it has joined the line."""
    on = stage(copies=6)
    guests = [on.start(index, fed(index)) for index in range(3)]
    claim = RegionGuard.claim

    def cancelled_meanwhile(
        guard: RegionGuard, item: int, step: int, start: Callable[[], None]
    ) -> bool:
        if step == 0:
            start.func.__self__.cancel()  # type: ignore[attr-defined]
        return claim(guard, item, step, start)

    monkeypatch.setattr(RegionGuard, "claim", cancelled_meanwhile)
    guests.append(on.start(3, fed(3)))
    assert on.finished == [3]
    on.run_all(Random(0))
    assert sorted(on.finished) == [0, 1, 2, 3]


def test_steps_that_are_withdrawn_are_never_started() -> None:
    guard = RegionGuard([Region("host", "r", 8, 1, (0,), (1,))])
    first, second = guard.admit(), guard.admit()
    assert guard.claim(first, 0, pytest.fail)
    assert not guard.claim(second, 0, pytest.fail)
    assert guard.withdraw(second) == 1
    assert guard.withdraw(second) == 0
    guard.complete(first, 1)
    guard.leave(first)
    guard.leave(second)


def test_leaving_forgets_what_waits() -> None:
    guard = RegionGuard([Region("host", "r", 8, 1, (ADMISSION,), (1,))])
    first, second, third = guard.admit(), guard.admit(), guard.admit()
    started: list[int] = []
    assert guard.claim(first, ADMISSION, pytest.fail)
    assert not guard.claim(second, ADMISSION, pytest.fail)
    assert not guard.claim(third, ADMISSION, lambda: started.append(third))
    guard.leave(second)
    assert started == []
    guard.leave(first)
    assert started == [third]
    assert not guard._starts, "what was never started is forgotten"


def test_a_device_that_refuses_work_fails_the_item_and_frees_its_copies() -> None:
    on = stage(copies=1)
    slot = on.open_plan.make_slot(0)

    def refuse(*_: object) -> None:
        raise pl.DeviceLostError("gone")

    refusing = (*slot.launches[:3], refuse, *slot.launches[4:])
    on.open_plan.slots[0] = Slot(slot.feeds, slot.results, refusing, slot.inline)  # type: ignore[arg-type]
    guests = [on.start(index, fed(index)) for index in range(4)]
    on.run_all(Random(0))
    assert on.finished == [0, 1, 2, 3]
    for guest in guests:
        assert isinstance(guest.execution.error, pl.DeviceLostError)


# one region, made by hand, over two branches that run at the same time


def branches(claims: str, releases: str) -> tuple[Stage, dict[str, int]]:
    """Return a stage with one copy that a step claims and a step releases, and all steps."""
    builder = pl.GraphBuilder("branches")
    x = builder.input("x", "int32", (4,))
    builder.output("y", builder.op("Neg", x, name="left"))
    builder.output("z", builder.op("Relu", x, name="right"))
    devices = [SteppedDevice("a", private=False), SteppedDevice("b", private=False)]
    on = Stage(builder.build(), devices, {"left": "a", "right": "b"}, slots=3)
    steps = {step.device: step.index for step in on.plan.steps}
    assert len(steps) == 2
    region = Region("host", "by hand", 8, 1, (steps[claims],), (steps[releases],))
    on.guard = on.open_plan.guard = RegionGuard([region])
    return on, steps


def fail(device: SteppedDevice) -> None:
    def broken() -> None:
        raise ValueError("broken")

    event, _ = device.queue[0]
    device.queue[0] = event, broken
    device.step()


def test_a_failure_gives_up_the_steps_that_wait_on_other_branches() -> None:
    on, _ = branches("a", "a")
    on.start(0, fed(0))
    waiting = on.start(1, fed(1))
    on.devices["b"].step()
    fail(on.devices["b"])
    assert on.finished == [1]
    assert str(waiting.execution.error) == "broken"


def test_a_step_that_fails_releases_nothing_before_its_item_ends() -> None:
    on, steps = branches("a", "a")
    on.start(0, fed(0))
    second = on.start(1, fed(1))
    fail(on.devices["a"])
    assert offered(second) == [steps["b"]]
    on.devices["b"].step()
    assert on.finished == [0]
    assert offered(second) == [steps["a"], steps["b"]]


def test_an_item_ends_after_the_step_that_waited_is_known_to_be_offered() -> None:
    on, steps = branches("a", "a")
    on.start(0, fed(0))
    second = on.start(1, fed(1))
    on.devices["b"].step()
    on.devices["b"].step()
    launches = list(second.slot.launches)

    def at_once(_: object, on_done: Callable[[Event], None]) -> Event:
        event = Event(on_done)
        event.complete()
        return event

    launches[steps["a"]] = at_once
    second.execution._bound = replace(second.slot, launches=tuple(launches))
    known: list[object] = []
    second.execution._on_finish = lambda: known.extend(second.execution.events)
    on.devices["a"].step()
    assert on.finished == [0]
    assert [event is not None for event in known] == [True, True]
