"""Calibration: what passes between steps here."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from machines import chain
from plait.devices.sim import SimDevice
from plait.scheduler.calibration import calibrated, completed
from plait.scheduler.contention import Disturbance
from plait.scheduler.costs.figures import LOOP, Loop

FEEDS = {"x": np.zeros((64, 64), np.float32)}


def test_two_devices_tell_all_ways_between_them() -> None:
    plan = pl.plan(chain(2), ["cpu", "worker:0"], pin={"*": "cpu"})
    found = calibrated(plan)
    ways = {(LOOP, "cpu"), ("cpu", "worker:0"), ("worker:0", "cpu")}
    assert ways <= set(found.hops)
    assert all(0 <= seconds < 1 for seconds in found.hops.values())
    assert found.loop is not None


@pytest.mark.slow
def test_devices_are_told_to_disturb_each_other_by_rounds_of_the_model() -> None:
    plan = pl.plan(chain(2), ["cpu", "worker:0"], pin={"*": "cpu"})
    found = completed(pl.Costs(), plan, FEEDS)
    assert found.loop is not None
    assert 0 <= found.loop.contention < 10


def test_the_share_of_a_round_is_that_of_the_usual_one() -> None:
    rounds = Disturbance([object(), object(), object()], FEEDS)  # type: ignore[list-item]
    rounds.shares += [0.3, 9.0, 0.2, 0.4, -0.1]
    assert rounds.contention() == 0.15, "the median, for each of two others"


def test_what_was_measured_with_a_model_stands_in_front() -> None:
    plan = pl.plan(chain(2), ["cpu"])
    found = completed(pl.Costs(hops={(LOOP, "cpu"): 0.5}, loop=Loop(0.0, 9.0)), plan, FEEDS)
    assert found.hops[LOOP, "cpu"] == 0.5
    assert ("cpu", LOOP) in found.hops
    assert found.loop is not None
    assert found.loop.feed_s == 0.0
    assert found.loop.land_s < 9.0, "what the user did between items is no part of it"


def test_devices_that_are_no_part_of_the_host_are_left_alone() -> None:
    plan = pl.plan(chain(2), [SimDevice("sim:a")])
    assert calibrated(plan) == pl.Costs()
