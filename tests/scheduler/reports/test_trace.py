"""Traces are read back by a reader of their own, and say what happened."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import random_graph, random_machine
from trace_reader import Trace, read

K, ITEMS = 2, 7


@pytest.fixture(scope="module")
def profile() -> pl.Profile:
    builder = pl.GraphBuilder("traced")
    h = builder.op("Relu", builder.input("x", "float32", (8,)), name="first")
    builder.output("y", builder.op("Add", h, 1.0, name="second"))
    devices: list[str | PrivateDevice] = [PrivateDevice("npu"), "cpu"]
    pins = {"first": "npu", "second": "cpu"}
    plan = pl.plan(builder.build(), devices, pin=pins, max_in_flight=K)

    async def run() -> pl.Profile:
        async with pl.Session(plan) as session:
            async with session.stream([{"x": np.ones(8, np.float32)}] * ITEMS) as results:
                async for item in results:
                    assert item.error is None
            return session.profile()

    return trio.run(run)


def traced(profile: pl.Profile, folder: Path) -> Trace:
    profile.save(folder / "trace.json")
    return read(folder / "trace.json")


def test_a_real_trace_has_bars_for_all_steps_and_arrows_along_their_waits(
    profile: pl.Profile, tmp_path: Path
) -> None:
    trace = traced(profile, tmp_path)
    assert set(trace.tracks) == {"npu", "npu in", "npu out", "cpu"}
    assert sum(map(len, trace.tracks.values())) == ITEMS * 4
    pairs = [(source.name, target.name) for source, target in trace.arrows]
    assert len(pairs) == ITEMS * 3
    assert len(set(pairs)) == 3
    assert all(source.args["item"] == target.args["item"] for source, target in trace.arrows)


def test_items_have_bars_with_the_phases_of_their_way(profile: pl.Profile, tmp_path: Path) -> None:
    bars = traced(profile, tmp_path).bars
    assert len(bars) == ITEMS
    for whole, *phases in bars.values():
        assert whole.name.startswith("item ")
        assert "runs" in [phase.name for phase in phases]
        assert phases[0].start == whole.start
        assert phases[-1].end == whole.end
        for before, after in pairwise(phases):
            assert before.end == after.start


def test_counters_begin_and_end_empty_and_keep_the_limits(
    profile: pl.Profile, tmp_path: Path
) -> None:
    counters = traced(profile, tmp_path).counters
    for points in counters.values():
        values = [value for _, args in points for value in args.values()]
        assert min(values) >= 0
        assert values[-1] == 0
    in_flight = [args["items"] for _, args in counters["items in flight"]]
    assert max(in_flight) <= K
    assert {"queue of cpu", "queue of npu", "memory held: memory of npu"} <= set(counters)


SOUND: list[dict[str, Any]] = [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "cpu"}},
    {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 0, "dur": 5},
    {"ph": "X", "name": "b", "cat": "c", "pid": 1, "tid": 1, "ts": 5, "dur": 5},
    {"ph": "s", "name": "f", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": 5},
    {"ph": "f", "name": "f", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": 5, "bp": "e"},
    {"ph": "b", "name": "i", "cat": "c", "id": 1, "pid": 1, "tid": 0, "ts": 0},
    {"ph": "e", "name": "i", "cat": "c", "id": 1, "pid": 1, "tid": 0, "ts": 9},
    {"ph": "C", "name": "n", "pid": 1, "ts": 3, "args": {"items": 2}},
]


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (0, {"tid": 2}),  # a track without a name
        (1, {"ph": "Q"}),
        (1, {"dur": 7}),  # slices that cross
        (1, {"dur": None}),
        (1, {"ts": "0"}),
        (2, {"ts": -1}),
        (3, {"id": 2}),  # an arrow that does not end
        (3, {"ts": 6}),  # into the past
        (4, {"ts": 50}),  # in the void
        (4, {"bp": None}),
        (6, {"name": "j"}),
        (6, {"id": 2}),
        (7, {"args": {"items": "two"}}),
    ],
)
def test_the_reader_refuses_what_is_broken(
    tmp_path: Path, event: int, change: dict[str, Any]
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": SOUND}))
    assert len(read(file).arrows) == 1
    broken = [{**one, **(change if at == event else {})} for at, one in enumerate(SOUND)]
    file.write_text(json.dumps({"traceEvents": broken}))
    with pytest.raises(ValueError, match="broken trace"):
        read(file)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 3))
def test_traces_of_simulated_streams_keep_the_format_and_the_memory_plan(
    tmp_path_factory: pytest.TempPathFactory, seed: int, items: int, max_in_flight: int
) -> None:
    random = Random(seed)
    graph = random_graph(random, random.randint(1, 8))
    plan = pl.plan(graph, random_machine(random, 2), max_in_flight=max_in_flight)
    found = pl.simulate(plan, items=items)
    trace = traced(found.profile, tmp_path_factory.mktemp("trace"))
    assert len(trace.bars) == items
    assert plan.memory is not None
    for name, points in trace.counters.items():
        if name.startswith("memory held: "):
            most = max(args["bytes"] for _, args in points)
            assert most <= plan.memory.pools[name.removeprefix("memory held: ")].nbytes
    for device, busy_s in found.profile.busy_s.items():
        tracks = [found for name, found in trace.tracks.items() if name.split()[0] == device]
        drawn = sum(one.end - one.start for track in tracks for one in track)
        assert drawn == pytest.approx(busy_s * 1e6)
