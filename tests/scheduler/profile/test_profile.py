from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice
from patience import WAIT_S
from plait.devices.event import Event
from plait.graph.core.ir import Graph
from plait.scheduler.profile.records import Record
from plait.scheduler.profile.timestamps import Timestamps
from plait.scheduler.reports.chrome import make_trace_events
from plait.scheduler.runtime.recorder import Recorder


def graph() -> Graph:
    builder = pl.GraphBuilder("profiled")
    h = builder.op("Relu", builder.input("x", "float32", (8,)), name="first")
    builder.output("y", builder.op("Add", h, 1.0, name="second"))
    return builder.build()


async def profiled(items: int = 5, *, measure: bool = False) -> pl.Profile:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu"), "cpu"]
    plan = pl.plan(graph(), devices, pin={"first": "npu", "second": "cpu"}, max_in_flight=2)
    async with pl.Session(plan, measure=measure) as session:
        source = [{"x": np.ones(8, np.float32)}] * items
        async with session.stream(source) as results:
            async for item in results:
                assert item.error is None
        return session.profile()


async def test_every_item_and_step_is_counted() -> None:
    figures = (await profiled(5)).to_dict()
    assert (figures["items"], figures["failed"]) == (5, 0)
    assert {row["runs"] for row in figures["steps"]} == {5}
    assert sorted(row["kind"] for row in figures["steps"]) == ["subgraph"] * 2 + ["transfer"] * 2
    assert set(figures["busy_s"]) == {"npu", "cpu"}
    json.dumps(figures)


async def test_latencies_lie_inside_the_wall_time() -> None:
    profile = await profiled()
    assert 0 < profile.latency_s(0) <= profile.latency_s(0.5) <= profile.latency_s(1)
    assert profile.latency_s(1) <= profile.wall_s


async def test_the_table_names_devices_and_steps() -> None:
    table = (await profiled(3)).table()
    assert table.startswith("3 items in ")
    for word in ("npu: busy", "cpu: busy", "first   ", "second   ", "x: host to memory of npu"):
        assert word in table


async def test_what_a_shell_shows_is_one_line_and_what_is_printed_the_table() -> None:
    profile = await profiled()
    simulation = pl.simulate(pl.plan(graph()), items=5)
    for shown, start in ((profile, "<Profile: 5 items on "), (simulation, "<Simulation: 5 items ")):
        assert repr(shown).startswith(start)
        assert len(repr(shown)) < 200
        assert str(shown) == shown.table()


async def test_nodes_are_timed_only_when_asked_for() -> None:
    assert (await profiled()).nodes == ()
    nodes = (await profiled(4, measure=True)).nodes
    assert {(node.name, node.device, node.runs) for node in nodes} == {
        ("first", "npu", 4),
        ("second", "cpu", 4),
    }
    table = (await profiled(1, measure=True)).table()
    assert "Relu" in table
    assert "min ms" in table


def test_the_shortest_run_of_a_node_stands_beside_all_of_them() -> None:
    """Row T27: the minimum over runs, their count and their total."""
    plan = pl.plan(graph(), ["cpu"], passes=())
    recorder = Recorder(measures=True)
    for first_ns, second_ns in ((5, 90), (3, 70), (4, 80)):
        event = Event()
        event.node_ns = first_ns, second_ns
        recorder.trace(
            cast(Any, SimpleNamespace(plan=plan, outlines=(), pools={})),
            cast(Any, SimpleNamespace(events=(event,), times=())),
        )
    profile = recorder.profile()
    assert [(node.name, node.runs, node.total_ns, node.min_ns) for node in profile.nodes] == [
        ("second", 3, 240, 70),
        ("first", 3, 12, 3),
    ]
    assert [row["min_ns"] for row in profile.to_dict()["nodes"]] == [70, 3]
    assert [(node.median_ns, node.mad_ns) for node in profile.nodes] == [(80, 10), (4, 1)]


def test_items_are_recorded_while_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    counts: list[None] = []

    def record() -> None:
        recorder.record((), Timestamps(len(counts), 0), False)
        counts.append(None)

    def read(*fields: Any) -> Record:
        if len(counts) < 20:
            record()  # as another thread would
        return Record(*fields)

    monkeypatch.setattr("plait.scheduler.runtime.recorder.Record", read)
    for _ in range(10):
        record()
    recorder.profile()
    asked = [record.marks.asked_ns for record in recorder.profile().records]
    assert asked == [*range(20)]


async def test_an_empty_profile_has_a_table_too(tmp_path: Path) -> None:
    profile = await profiled(0)
    assert profile.table().startswith("0 items")
    profile.save(tmp_path / "trace.json")


async def test_the_profile_outlives_its_session() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        await session.run({"x": np.ones(8, np.float32)})
    assert len(session.profile().records) == 1


async def test_the_trace_has_a_track_per_device_and_arrows_between_steps(tmp_path: Path) -> None:
    profile = await profiled(3)
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {"items", "npu", "npu in", "npu out", "cpu"}
    by_phase = {phase: [e for e in events if e["ph"] == phase] for phase in "Xsf"}
    assert len(by_phase["X"]) == 3 * 4
    assert len(by_phase["s"]) == len(by_phase["f"]) == 3 * 3
    ends = {(e["tid"], round(e["ts"] + e["dur"], 3)) for e in by_phase["X"]}
    assert {(e["tid"], round(e["ts"], 3)) for e in by_phase["s"]} <= ends


async def test_no_more_items_are_in_flight_than_allowed() -> None:
    counts = [
        event["args"]["items"]
        for event in make_trace_events(await profiled(9))
        if event["name"] == "items in flight"
    ]
    assert max(counts) <= 2
    assert counts[-1] == 0


@pl.operator(name="test_profile.wait_for_other")
def meet(x: np.ndarray[Any, Any], *, place: int) -> np.ndarray[Any, Any]:
    BARRIERS[place].set()
    assert BARRIERS[1 - place].wait(WAIT_S)
    return x


async def test_overlap_is_seen_where_two_devices_work_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    monkeypatch.setitem(globals(), "BARRIERS", [threading.Event(), threading.Event()])
    builder = pl.GraphBuilder("overlap")
    x = builder.input("x", "float32", (2,))
    builder.output("a", builder.call(meet, x, name="a", place=0))
    builder.output("b", builder.call(meet, x, name="b", place=1))
    plan = pl.plan(builder.build(), ["cpu", PrivateDevice("other")], pin={"a": "cpu", "b": "other"})
    async with pl.Session(plan) as session:
        with trio.fail_after(WAIT_S):
            await session.run({"x": np.ones(2, np.float32)})
        assert session.profile().overlap > 0


BARRIERS: list[Any] = []


async def test_a_trace_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    profile = await profiled(1)
    with pytest.raises(pl.SessionError, match=r"cannot write .*trace\.json: No such file"):
        profile.save(tmp_path / "missing" / "trace.json")


async def test_a_profile_says_when_it_has_forgotten_the_first_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.scheduler.runtime.recorder.KEPT_SPANS", 40)
    profile = await profiled(9)  # of four steps each
    assert (len(profile.records), profile.forgotten) == (4, 5)
    assert profile.table().startswith("the last 4 items in ")


async def test_who_asks_for_profiles_in_between_gets_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.scheduler.runtime.recorder.KEPT_SPANS", 40)
    read: list[pl.Profile] = []
    async with pl.Session(pl.plan(graph(), ["cpu"])) as session:  # of one step
        for index in range(12):
            await session.run({"x": np.ones(8, np.float32)})
            if index in (0, 1, 7, 11):
                read.append(session.profile())
    assert [(len(one.records), one.forgotten) for one in read] == [(1, 0), (2, 0), (5, 3), (5, 7)]
    assert read[0].records[0] is read[1].records[0]
    assert read[2].records[-1] is read[3].records[0]
    landed = [record.landed_ns for one in read[2:] for record in one.records]
    assert landed == sorted(landed)
