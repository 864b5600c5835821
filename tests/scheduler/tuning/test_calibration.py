"""Calibration: what passes between steps here."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from machines import chain
from plait.devices.sim import SimDevice
from plait.scheduler.costs.figures import LOOP, Loop
from plait.scheduler.tuning.calibration import calibrate, complete_costs

FEEDS = {"x": np.zeros((64, 64), np.float32)}


@pytest.mark.extended
def test_two_devices_tell_all_ways_between_them() -> None:
    plan = pl.plan(chain(2), ["cpu", "worker:0"], pin={"*": "cpu"})
    notes: list[str] = []
    found = calibrate(plan, notes.append)
    for way in ((LOOP, "cpu"), ("cpu", "worker:0"), ("worker:0", "cpu")):
        assert is_found_or_told(way, found, notes)
    assert all(0 <= seconds < 1 for seconds in found.hops.values())
    assert found.loop is not None or "what the loop takes" in "".join(notes)


def is_found_or_told(way: tuple[str, str], found: pl.Costs, notes: list[str]) -> bool:
    """Say whether a way is known, or said not to be: the machine may be as busy as it likes."""
    return way in found.hops or any(f"the way from {way[0]} to {way[1]}" in one for one in notes)


@pytest.mark.extended
def test_devices_are_told_to_disturb_each_other_by_rounds_of_the_model() -> None:
    plan = pl.plan(chain(2), ["cpu", "worker:0"], pin={"*": "cpu"})
    found = complete_costs(pl.Costs(loop=Loop(1e-5, 1e-5)), plan, FEEDS)
    assert found.loop is not None
    assert 0 <= found.loop.contention < 1


def test_what_was_measured_with_a_model_stands_in_front() -> None:
    plan = pl.plan(chain(2), ["cpu"])
    notes: list[str] = []
    known = pl.Costs(hops={(LOOP, "cpu"): 0.5}, loop=Loop(0.0, 9.0))
    found = complete_costs(known, plan, FEEDS, notes.append)
    assert found.hops[LOOP, "cpu"] == 0.5
    assert is_found_or_told(("cpu", LOOP), found, notes)
    assert found.loop is not None
    assert found.loop.feed_s == 0.0
    if notes == []:
        assert found.loop.land_s < 9.0, "what the user did between items is no part of it"


def test_devices_that_are_no_part_of_the_host_are_left_alone() -> None:
    plan = pl.plan(chain(2), [SimDevice("sim:a")])
    assert calibrate(plan) == pl.Costs()
