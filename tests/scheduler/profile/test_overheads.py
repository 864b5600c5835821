"""Times that pass between steps, told from a profile."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import plait as pl
import pytest
from machines import chain
from plait.scheduler.costs.figures import HERE, LOOP
from plait.scheduler.plans.placement import summarize_step
from plait.scheduler.profile import PlanTimes, Profile, Record
from plait.scheduler.profile.overheads import measure_hops, measure_loop
from plait.scheduler.profile.timestamps import Timestamps

US = 1000


def two_steps() -> pl.Plan:
    return pl.plan(chain(2), ["cpu", "worker:0"], pin={"n0": "cpu", "n1": "worker:0"}, passes=())


def profile(plan: pl.Plan, *items: Sequence[int]) -> Profile:
    """Return items given as microseconds: admitted; ready, started, ended per step; landed."""
    outlines = tuple(map(summarize_step, plan.steps))
    records = []
    for admitted, *times, landed in items:
        part = PlanTimes(outlines, array("q", (time * US for time in times)))
        records.append(
            Record(
                (part,), Timestamps(admitted_ns=admitted * US, landed_ns=landed * US), failed=False
            )
        )
    return Profile(tuple(records), ())


def test_a_step_that_found_its_device_idle_tells_the_way_there() -> None:
    plan = two_steps()
    found = measure_hops(profile(plan, [0, 10, 30, 100, 105, 160, 300, 350]), plan)
    assert found == pytest.approx(
        {(LOOP, "cpu"): 20e-6, ("cpu", "worker:0"): 60e-6, ("worker:0", LOOP): 50e-6}
    )


def test_a_step_that_was_queued_tells_the_gap_before_it() -> None:
    plan = two_steps()
    first = [0, 10, 30, 100, 105, 160, 200, 250]
    second = [15, 20, 107, 180, 185, 245, 300, 350]
    found = measure_hops(profile(plan, first, second), plan)
    assert found["cpu", "cpu"] == pytest.approx(7e-6)
    assert ("worker:0", LOOP) not in found, "the second one was under way"


def test_a_quick_step_tells_nothing_of_waking_a_thread() -> None:
    plan = two_steps()
    item = [0, 10, 13, 23, 25, 85, 300, 350]
    slow_once = [1000, 1010, 1013, 1100, 1105, 1165, 1300, 1350]
    found = measure_hops(profile(plan, item, slow_once, item), plan)
    assert found[LOOP, HERE] == pytest.approx(3e-6)
    assert (LOOP, "cpu") not in found


def test_an_item_of_quick_steps_tells_how_soon_the_loop_is_back() -> None:
    plan = pl.plan(chain(1), ["cpu"])
    found = measure_hops(profile(plan, [0, 10, 13, 23, 29]), plan)
    assert found == pytest.approx({(LOOP, HERE): 3e-6, (HERE, LOOP): 6e-6})


def test_items_that_were_alone_tell_what_the_loop_does() -> None:
    plan = two_steps()
    first = [1000, 1010, 1030, 1100, 1105, 1160, 1300, 1350]
    second = [1430, 1440, 1460, 1500, 1505, 1560, 1700, 1750]
    late = [9000, 9010, 9030, 9100, 9105, 9160, 9300, 9350]
    found = measure_loop(profile(plan, first, second, late), plan)
    assert found is not None
    copied_s = chain(2).tensors["x"].nbytes / 10e9
    assert found.feed_s == pytest.approx(10e-6 - copied_s)
    assert found.land_s == pytest.approx(80e-6)
    assert measure_loop(profile(plan), plan) is None


def test_simulated_devices_are_no_part_of_the_host() -> None:
    plan = pl.plan(chain(2), ["cpu", "sim:0"], pin={"n0": "cpu", "n1": "sim:0"}, passes=())
    times = [time for step in plan.steps for time in [20 + 50 * step.index] * 3]
    found = measure_hops(profile(plan, [0, *times, 900]), plan)
    assert all("sim:0" not in pair for pair in found)
