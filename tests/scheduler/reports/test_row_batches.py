"""Batches of rows in traces and on the page of a profile, and on clocks that sessions move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
import trio
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.scheduler.reports.html.page import collect_document
from trace_reader import read
from trio.testing import MockClock


def graph() -> pl.Graph:
    body = pl.GraphBuilder("body")
    body.output("y", body.op("Neg", body.input("x", "float32", ("rows", 2)), name="minus"))
    b = pl.GraphBuilder("rows")
    x = b.op("Abs", b.input("x", "float32", (3, 2)), name="positive")
    b.output("y", b.each(x, body.build(), name="read", batch=2, max_delay_s=1.0))
    return b.build()


def profiled(plan: pl.Plan) -> pl.Profile:
    async def run() -> pl.Profile:
        async with pl.Session(plan) as session:
            outputs = await session.run({"x": np.ones((3, 2), "float32")})
            assert (outputs["y"] == -1).all()
            return session.profile()

    return trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.fixture(scope="module")
def profile() -> pl.Profile:
    return profiled(pl.plan(graph()))


def test_traces_show_what_batches_waited_for_and_what_ran_of_them(
    profile: pl.Profile, tmp_path: Path
) -> None:
    profile.save(tmp_path / "trace.json")
    trace = read(tmp_path / "trace.json")
    bars = [bars for bars in trace.bars.values() if bars[0].category == "rows of read"]
    full, rest = sorted(bars, key=lambda one: -one[0].args["rows"])
    assert [one.name for one in full] == ["2 rows of read", "fills", "runs"]
    assert [one.name for one in rest] == ["1 rows of read", "fills", "runs"]
    for whole, fills, runs in (full, rest):
        assert (whole.start, fills.end, runs.end) == (fills.start, runs.start, whole.end)
    steps = [one for one in trace.tracks["cpu"] if "batch" in one.args]
    assert sorted(one.args["rows"] for one in steps) == [1, 2]


def test_the_page_has_a_lane_of_batches_behind_the_items(profile: pl.Profile) -> None:
    page = collect_document(pl.plan(graph()), profile, None)
    (timeline,) = (one for one in page["timelines"] if one["kind"] == "measured")
    assert timeline["items"] == 1
    batches = timeline["batches"]
    assert batches["first"] == 1
    # The first to end comes first.
    assert sorted(batches["names"]) == ["batch of 1 row of read", "batch of 2 rows of read"]
    lane = timeline["lanes"].index("rows of read")
    owners = zip(timeline["lane"], timeline["item"], timeline["queued"], strict=True)
    found = [(item, queued > 0) for one, item, queued in owners if one == lane]
    assert sorted(found) == [(1, True), (2, True)]
    assert "rows of read" in dict(page["profile"]["facts"])
    subgraphs = page["step_tables"][timeline["steps"]]["subgraph"]
    of_batches = {timeline["step"][bar] for bar, item in enumerate(timeline["item"]) if item}
    assert {subgraphs[step] for step in of_batches} == {None}, "nodes of the plan around it"


def test_the_page_of_a_plan_shows_the_batches_that_are_predicted() -> None:
    plan = pl.plan(graph(), max_in_flight=2)
    page = collect_document(plan, None, None)
    one, stream = page["timelines"]
    for timeline in (one, stream):
        rows = [int(name.split()[2]) for name in timeline["batches"]["names"]]
        assert sum(rows) == 3 * timeline["items"]
        assert "rows of read" in timeline["lanes"]
        assert len(timeline["slack"]) == len(plan.steps), "rows have none"


def test_batches_run_on_devices_whose_clock_the_session_moves() -> None:
    clock = VirtualClock()
    device = SimDevice("sim:a", SimModel(), clock)
    pins = {"positive": "sim:a", "read/*": "sim:a"}
    assert profiled(pl.plan(graph(), [device, "cpu"], pin=pins)).row_batches["read"].rows == 3
    assert clock.now_ns() > 0
