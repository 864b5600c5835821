"""Streams over replicas, simulated."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import plait as pl
import pytest
from plait import devices
from plait.devices.memory import Arena
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.scheduler.planner.simulate import ROUNDS, predict
from plait.scheduler.plans.placement import summarize_step
from plait.scheduler.profile import NodeTime, PlanTimes, Profile, Record
from plait.scheduler.profile.timestamps import Timestamps
from plait.scheduler.simulation.workload import SimulatedHost
from virtual_streams import measured

MODEL = SimModel(bytes_per_s=1e7, copy_bytes_per_s=1e12, copy_latency_s=0.0, launch_s=0.0)
MS = 1_000_000


class CountingDevice(SimDevice):
    """Knows how much was allocated, by name, of all such devices."""

    allocated: ClassVar[Counter[str]] = Counter()

    def arena(self, memory: str, nbytes: int) -> Arena:
        CountingDevice.allocated[self.name] += nbytes
        return super().arena(memory, nbytes)


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    """Have such devices, on one clock."""
    clock = VirtualClock()
    CountingDevice.allocated.clear()
    devices.register("counting", lambda name: CountingDevice(name, MODEL, clock))
    yield
    devices.unregister("counting")


def staged(stage: str, others: str = "counting:x", max_in_flight: int = 6) -> pl.Plan:
    builder = pl.GraphBuilder("staged")
    x = builder.input("x", "int32", (1000,))
    for index in range(4):
        x = builder.op("Add", x, x, name=f"heavy{index}")
    builder.output("y", builder.op("Relu", x, name="light"))
    pins = {"heavy*": stage, "light": others}
    return pl.plan(
        builder.build(), [others, stage], pin=pins, passes=(), max_in_flight=max_in_flight
    )


def test_three_replicas_of_the_slowest_stage_let_three_times_as_many_items_through() -> None:
    one, three = (
        pl.simulate(staged(stage), items=300, host=SimulatedHost()).items_per_s
        for stage in ("counting:0", "counting:0..2")
    )
    assert three == pytest.approx(3 * one, rel=0.03)


def test_every_replica_has_its_share_of_the_work() -> None:
    found = pl.simulate(staged("counting:0..2"), items=30, host=SimulatedHost())
    busy = [found.busy[f"counting:{index}"] for index in range(3)]
    assert busy == pytest.approx([busy[0]] * 3)
    assert {one.step.device for one in found.critical_path} > {"counting:x"}
    assert "counting:2" in found.table()
    steps = {row["device"] for row in found.to_dict()["steps"]}
    assert steps == {"counting:0..2", "counting:x"}


def test_items_in_flight_are_divided_among_replicas() -> None:
    found = pl.simulate(staged("counting:0..2"), items=9, max_in_flight=4, host=SimulatedHost())
    assert found.max_in_flight == found.to_dict()["max_in_flight"] == 4
    assert found.plan.max_in_flight == 2
    assert [time == 0 for time in found.timeline.admitted] == [True] * 4 + [False] * 5


def test_all_replicas_can_be_taken_for_other_hardware() -> None:
    plan, slower = staged("counting:0..2"), replace(MODEL, bytes_per_s=MODEL.bytes_per_s / 4)
    here, there = (
        pl.simulate(plan, models, items=60, host=SimulatedHost()).items_per_s
        for models in ({}, {"counting:0..2": slower})
    )
    assert there == pytest.approx(here / 4, rel=0.05)
    with pytest.raises(pl.PlanError, match="no device 'counting:0'") as raised:
        pl.simulate(plan, {"counting:0": slower})
    assert "counting:0..2" in str(raised.value)


@pytest.mark.parametrize("max_in_flight", [1, 4, 9])
def test_a_stream_over_replicas_allocates_exactly_what_was_simulated(max_in_flight: int) -> None:
    plan = staged("counting:0..2", max_in_flight=max_in_flight)
    found = pl.simulate(plan, items=12)
    measured(plan, 12, max_in_flight)
    for use in found.memory.values():
        assert use.occupied_nbytes <= use.held_nbytes <= use.planned_nbytes
        assert use.occupied[-1][1] == 0, "in the end nothing is needed"
    planned = {name: use.planned_nbytes for name, use in found.memory.items() if name != "host"}
    assert planned == dict(CountingDevice.allocated)


def test_the_rate_in_reports_is_that_of_the_stream() -> None:
    plan = staged("counting:0..2")
    prediction = predict(plan)
    assert prediction is not None
    assert prediction.items_per_s == pl.simulate(plan, items=ROUNDS * 6).items_per_s
    assert prediction.items_per_s > 2 / prediction.seconds


def test_a_page_shows_the_stream(tmp_path: Path) -> None:
    plan = staged("counting:0..2")
    plan.save_html(tmp_path / "page.html")
    assert "counting:2" in (tmp_path / "page.html").read_text()


def test_a_profile_of_replicas_says_what_would_be_gained() -> None:
    plan = staged("cpu:0..1", "cpu:x", max_in_flight=4)
    steps = tuple(map(summarize_step, plan.steps))
    records = []
    for item in range(40):
        start = (4 * (item // 2) + 1) * MS  # two at a time
        times = array("q", [start, start, start + 8 * MS, *[start + 8 * MS] * 2, start + 9 * MS])
        marks = Timestamps(admitted_ns=start, landed_ns=start + 9 * MS)
        records.append(Record((PlanTimes(steps, times),), marks, failed=False))
    nodes = [
        NodeTime(f"heavy{index}", "Add", "cpu:0", 40, 80 * MS, 2 * MS, 2 * MS, 0)
        for index in range(4)
    ]
    nodes.append(NodeTime("light", "Relu", "cpu:x", 40, 40 * MS, MS, MS, 0))
    found = Profile(tuple(records), tuple(nodes)).what_if(plan, {"Relu": 2})
    assert found.before.items == 40
    assert set(found.before.timeline.variant) == {0, 1}
    assert found.gain == pytest.approx(0.0, abs=0.1), "the other stage limits the stream"
    halved = Profile(tuple(records), tuple(nodes)).what_if(plan, {"Add": 2})
    assert halved.gain > 0.5
