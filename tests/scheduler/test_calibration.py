"""Calibration: what passes between steps here."""

from __future__ import annotations

import plait as pl
from machines import chain
from plait.devices.sim import SimDevice
from plait.scheduler.calibration import calibrated, completed
from plait.scheduler.costs.figures import LOOP, Loop


def test_two_devices_tell_all_ways_between_them() -> None:
    plan = pl.plan(chain(2), ["cpu", "worker:0"], pin={"*": "cpu"})
    found = calibrated(plan)
    ways = {(LOOP, "cpu"), ("cpu", "worker:0"), ("worker:0", "cpu")}
    assert ways <= set(found.hops)
    assert all(0 <= seconds < 1 for seconds in found.hops.values())
    assert found.loop is not None
    assert 0 <= found.loop.contention < 10


def test_what_was_measured_with_a_model_stands_in_front() -> None:
    plan = pl.plan(chain(2), ["cpu"])
    found = completed(pl.Costs(hops={(LOOP, "cpu"): 0.5}, loop=Loop(0.0, 9.0)), plan)
    assert found.hops[LOOP, "cpu"] == 0.5
    assert ("cpu", LOOP) in found.hops
    assert found.loop is not None
    assert found.loop.feed_s == 0.0
    assert found.loop.land_s < 9.0, "what the user did between items is no part of it"


def test_devices_that_are_no_part_of_the_host_are_left_alone() -> None:
    plan = pl.plan(chain(2), [SimDevice("sim:a")])
    assert calibrated(plan) == pl.Costs()
