"""Sessions over replicas: items spread out, results in order and bit for bit those of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_graphs import growing_body
from plait import devices
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.events import DeviceLost, PlanReplaced, SessionEvent

MODEL = SimModel(launch_s=1e-3, submit_s=0.0, copy_latency_s=1e-4)
PINS = {"heavy": "uneven:0..2", "*": "cpu"}
RANGES = ["cpu", "uneven:0..2"]


class Uneven(SimDevice):
    """Takes a random time for everything."""

    def __init__(self, name: str, clock: VirtualClock, random: Random) -> None:
        super().__init__(name, MODEL, clock)
        self._random = random

    def _put(self, engine: str, job: Any) -> Any:
        job.duration_ns = round(job.duration_ns * self._random.uniform(0.05, 4))
        return super()._put(engine, job)


@pytest.fixture(autouse=True)
def uneven() -> Iterator[None]:
    """Have such devices, on one clock."""
    clock, random = VirtualClock(), Random(5)
    devices.register("uneven", lambda name: Uneven(name, clock, random))
    yield
    devices.unregister("uneven")


def graph(length: int | str = 4) -> Graph:
    builder = pl.GraphBuilder("heavy")
    h = builder.op("Add", builder.input("x", "float32", (length,)), 0.1, name="heavy")
    builder.output("y", builder.op("Tanh", h, name="light"))
    return builder.build()


def feeds(index: int, n: int = 4) -> dict[str, Array]:
    return {"x": np.linspace(index, -index, n, dtype=np.float32)}


async def expected(items: list[dict[str, Array]], made: Graph) -> list[list[float]]:
    async with pl.Session(pl.plan(made)) as session:
        return [(await session.run(item))["y"].tolist() for item in items]


async def streamed(
    plan: pl.Plan, items: list[dict[str, Array]], **options: Any
) -> tuple[list[list[float]], Counter[str]]:
    """Return the results, and how many steps each device ran."""
    async with pl.Session(plan) as session:
        async with session.stream(items, **options) as results:
            found = [item["y"].tolist() async for item in results]
    spans = (span for record in session.profile().records for span in record.spans())
    return found, Counter(span.step.device for span in spans if span.step.transfer is None)


@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    in_flight=st.integers(1, 7),
    copy=st.booleans(),
    batch=st.sampled_from([None, None, 2]),
)
def test_results_are_in_order_and_bit_for_bit_those_of_one_device(
    shapes: list[int], in_flight: int, copy: bool, batch: int | None
) -> None:
    made = graph("n")
    items = [feeds(index, n) for index, n in enumerate(shapes)]
    plan = pl.plan(made, RANGES, pin=PINS, max_in_flight=in_flight)
    found, _ = trio.run(
        lambda: streamed(plan, items, copy=copy, batch=batch, max_in_flight=in_flight + 1)
    )
    assert found == trio.run(expected, items, made)


async def test_items_go_to_replicas_in_turn_while_none_is_busier() -> None:
    plan = pl.plan(graph(), RANGES, pin=PINS)
    found, steps = await streamed(plan, [feeds(index) for index in range(9)], max_in_flight=1)
    assert len(found) == 9
    assert steps == {"cpu": 9, "uneven:0": 3, "uneven:1": 3, "uneven:2": 3}


async def test_a_fast_replica_gets_more_items() -> None:
    devices.unregister("uneven")
    clock = VirtualClock()
    devices.register("uneven", lambda name: Slow(name, clock))
    plan = pl.plan(graph(), RANGES, pin=PINS, max_in_flight=3)
    items = [feeds(index) for index in range(60)]
    found, steps = await streamed(plan, items, ordered=False)
    assert sorted(found) == sorted(await expected(items, graph()))
    assert steps["uneven:1"] > 2 * steps["uneven:0"]


class Slow(SimDevice):
    """Is ten times as slow as it is said to be, if its number is 0."""

    def __init__(self, name: str, clock: VirtualClock) -> None:
        super().__init__(name, MODEL, clock)

    def _put(self, engine: str, job: Any) -> Any:
        job.duration_ns *= 10 if self.name.endswith(":0") else 1
        return super()._put(engine, job)


async def test_three_replicas_overlap_where_one_device_cannot() -> None:
    async def makespan_ns(stage: str) -> int:
        plan = pl.plan(graph(), ["cpu", stage], pin={"heavy": stage, "*": "cpu"}, max_in_flight=6)
        async with pl.Session(plan) as session:
            async with session.stream([feeds(index) for index in range(60)]) as results:
                async for _ in results:
                    pass
        times = [
            (span.started_ns, span.ended_ns)
            for record in session.profile().records
            for span in record.spans()
            if span.step.device != "cpu"
        ]
        return max(end for _, end in times) - min(start for start, _ in times)

    assert await makespan_ns("uneven:0..2") < 0.5 * await makespan_ns("uneven:0")


async def test_pages_show_what_ran_on_replicas(tmp_path: Path) -> None:
    plan = pl.plan(graph(), RANGES, pin=PINS, max_in_flight=3)
    async with pl.Session(plan, measure=True) as session:
        async with session.stream([feeds(index) for index in range(6)]) as results:
            async for _ in results:
                pass
    plan.save_html(tmp_path / "page.html", profile=session.profile())
    page = (tmp_path / "page.html").read_text()
    assert "uneven:0..2" in page
    assert "uneven:2" in page
    assert pl.Costs.from_profile(session.profile(), plan).programs["uneven:0"]


async def test_concurrent_runs_spread_out_too() -> None:
    plan = pl.plan(graph(), RANGES, pin=PINS, max_in_flight=3)
    found: dict[int, list[float]] = {}

    async def run(session: pl.Session, index: int) -> None:
        found[index] = (await session.run(feeds(index)))["y"].tolist()

    async with pl.Session(plan) as session:
        async with trio.open_nursery() as nursery:
            for index in range(12):
                nursery.start_soon(run, session, index)
        assert [*session.status().devices] == [*plan.every_device]
    items = [feeds(index) for index in range(12)]
    assert [found[index] for index in range(12)] == await expected(items, graph())
    where = Counter(
        span.step.device for record in session.profile().records for span in record.spans()
    )
    assert {where[f"uneven:{index}"] > 0 for index in range(3)} == {True}


async def test_items_whose_shapes_depend_on_values_keep_to_one_replica() -> None:
    body = growing_body()
    builder = pl.GraphBuilder("looping")
    trips, x = builder.input("trips", "int64", ()), builder.input("x", "float32", ("n",))
    h = builder.op("Add", x, 0.1, name="heavy")
    states = len(body.outputs) - 1
    made = builder.op("Loop", trips, np.bool_(True), h, body=body, outputs=states, name="loop")
    first = made[0] if isinstance(made, tuple) else made
    builder.output("y", builder.op("Neg", first, name="after"))
    looping = builder.build()
    items = [{"trips": np.array(index % 3), **feeds(index)} for index in range(9)]
    pins = {"heavy": "uneven:0..1", "after": "uneven:0..1", "loop/*": "cpu"}
    plan = pl.plan(looping, ["cpu", "uneven:0..1"], pin=pins, max_in_flight=4)
    async with pl.Session(plan) as session:
        async with session.stream(items) as results:
            found = [item["y"].tolist() async for item in results]
    assert found == await expected(items, looping)
    used = [
        {span.step.device for span in record.spans()} - {"cpu"}
        for record in session.profile().records
    ]
    assert {len(names) for names in used} == {1}
    assert set.union(*used) == {"uneven:0", "uneven:1"}


async def test_an_item_that_fails_keeps_its_place() -> None:
    plan = pl.plan(graph(), RANGES, pin=PINS, max_in_flight=3)
    wrong = {"x": np.zeros(3, np.float32)}
    items = [feeds(0), wrong, feeds(2), feeds(3)]
    async with pl.Session(plan) as session:
        async with session.stream(items, deadline_s=60) as results:
            errors = [type(item.error) async for item in results]
    assert errors == [type(None), pl.FeedError, type(None), type(None)]


async def test_a_cancelled_stream_leaves_all_replicas_usable() -> None:
    plan = pl.plan(graph(), RANGES, pin=PINS, max_in_flight=6)
    async with pl.Session(plan) as session:
        for _ in range(3):
            async with session.stream([feeds(index) for index in range(50)]) as results:
                await anext(results)
        found = [(await session.run(feeds(index)))["y"].tolist() for index in range(4)]
    assert found == await expected([feeds(index) for index in range(4)], graph())


@pytest.mark.parametrize("copy", [True, False])
async def test_a_lost_replica_concerns_no_others(
    copy: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Its items run again; the others' go on."""
    plan = pl.plan(graph(), RANGES, pin=PINS, max_in_flight=6)
    seen: list[SessionEvent] = []
    items = [feeds(index) for index in range(40)]
    found: list[list[float]] = []
    async with pl.Session(plan, on_event=seen.append) as session:
        assert session._runtime is not None
        fated = session._runtime._devices.by_name["uneven:2"]
        assert isinstance(fated, Uneven)
        async with session.stream(items, copy=copy) as results:
            async for item in results:
                if len(found) in (5, 20):
                    fated.lose()
                found.append(item["y"].tolist())
    assert found == await expected(items, graph())
    lost = [event.device for event in seen if isinstance(event, DeviceLost)]
    assert set(lost) == {"uneven:2"}
    if copy:
        assert not any(isinstance(event, PlanReplaced) for event in seen)
