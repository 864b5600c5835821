"""Batches of rows on simulated devices are those that were predicted, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plait as pl
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.memory import Arena
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.scheduler.planner.simulate import simulate
from plait.scheduler.profile import Profile
from plait.scheduler.profile.records import Record
from plait.scheduler.simulation.workload import SimulatedHost
from virtual_streams import models

NAMES = "sim:a", "sim:b"
WIDTH = 16

places = st.sampled_from(NAMES)
some = st.frozensets(places)


class CountingDevice(SimDevice):
    """Knows how much was allocated of its memory."""

    allocated = 0

    def arena(self, memory: str, nbytes: int) -> Arena:
        self.allocated += nbytes
        return super().arena(memory, nbytes)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[pl.Graph, dict[str, str]]:
    """Draw nodes in a row and graphs for rows, also of rows, with pins for all."""
    count, pins = draw(st.integers(1, 5)), dict[str, str]()

    def node(b: pl.GraphBuilder, x: str, name: str, path: str = "") -> str:
        pins[path + name] = draw(places)
        if draw(st.booleans()):
            return str(b.op("Add", x, x, name=name))
        return str(b.op("Relu", x, name=name))

    def body(name: str, depth: int) -> pl.Graph:
        b = pl.GraphBuilder(name.replace("/", "_"))
        x: str = b.input("x", "int32", ("rows", WIDTH))
        for index in range(draw(st.integers(1, 2))):
            x = node(b, x, f"n{index}", f"{name}/")
        if depth:
            x = rows(b, x, f"{name}/inner", "inner", depth - 1)
            x = node(b, x, "last", f"{name}/")
        b.output("y", x)
        return b.build()

    def rows(b: pl.GraphBuilder, x: str, path: str, name: str, depth: int) -> str:
        batch = draw(st.integers(1, 4))
        made: str = b.each(x, body(path, depth), name=name, batch=batch)
        return made

    b = pl.GraphBuilder("pipeline")
    x = node(b, b.input("x", "int32", (count, WIDTH)), "first")
    for index in range(draw(st.integers(1, 2))):
        x = rows(b, x, f"each{index}", f"each{index}", draw(st.integers(0, 1)) if not index else 0)
        if draw(st.booleans()):
            x = node(b, x, f"after{index}")
    b.output("y", node(b, x, "end"))
    return b.build(), pins


def measured(plan: pl.Plan, items: int, max_in_flight: int) -> Profile:
    x = np.arange(plan.graph.tensors["x"].static_shape[0] * WIDTH, dtype=np.int32)

    async def stream() -> Profile:
        async with pl.Session(plan) as session:
            source = [{"x": x.reshape(-1, WIDTH)}] * items
            async with session.stream(source, max_in_flight=max_in_flight) as results:
                async for item in results:
                    assert item.error is None
        return session.profile()

    return trio.run(stream)


def spans(records: Sequence[Record], first: int) -> list[tuple[int, str, int, int]]:
    """Return when steps on simulated devices began and ended."""
    return sorted(
        (index, span.step.name, span.started_ns - first, span.ended_ns - first)
        for index, record in enumerate(records)
        for span in record.spans()
        if span.step.device in NAMES
    )


def all_spans(profile: Profile) -> tuple[Any, ...]:
    records = [*profile.records, *(batch.record for batch in profile.batches)]
    first = min(
        span.started_ns
        for record in records
        for span in record.spans()
        if span.step.device in NAMES
    )
    batches = sorted(
        (batch.queue, batch.rows, spans([batch.record], first)) for batch in profile.batches
    )
    return spans(profile.records, first), batches


@settings(max_examples=60)
@given(pipelines(), st.lists(models, min_size=2, max_size=2), st.data())
def test_batches_on_a_virtual_clock_are_those_that_were_predicted(
    pipeline: tuple[pl.Graph, dict[str, str]], machine: list[SimModel], data: st.DataObject
) -> None:
    graph, pins = pipeline
    clock = VirtualClock()
    devices = [
        CountingDevice(name, replace(model, peers=data.draw(some) - {name}), clock)
        for name, model in zip(NAMES, machine, strict=True)
    ]
    max_in_flight, items = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    plan = pl.plan(graph, [*devices, "cpu"], pin=pins, max_in_flight=max_in_flight)
    found = measured(plan, items, max_in_flight)
    predicted = simulate(plan, items=items, max_in_flight=max_in_flight, host=SimulatedHost())
    assert all_spans(predicted.profile) == all_spans(found)
    figures = {
        queue: (one.batches, one.rows) for queue, one in predicted.profile.row_batches.items()
    }
    assert figures == {queue: (one.batches, one.rows) for queue, one in found.row_batches.items()}
    planned = {name: use.planned_nbytes for name, use in predicted.memory.items()}
    assert all(device.allocated == planned.get(device.name, 0) for device in devices)


def test_tasks_that_a_loop_runs_in_any_order_go_on_in_theirs() -> None:
    body = pl.GraphBuilder("body")
    body.output("y", body.op("Relu", body.input("x", "int32", ("rows", WIDTH)), name="inside"))
    b = pl.GraphBuilder("rows")
    x = b.op("Relu", b.input("x", "int32", (2, WIDTH)), name="first")
    b.output("y", b.op("Relu", b.each(x, body.build(), name="each", batch=4), name="after"))
    for _ in range(10):  # trio goes through its tasks forwards or backwards, by chance
        device = SimDevice("sim:a", SimModel(submit_s=1e-4), VirtualClock())
        pins = {"first": "sim:a", "each/inside": "sim:a", "after": "sim:a"}
        plan = pl.plan(b.build(), [device, "cpu"], pin=pins, max_in_flight=4)
        predicted = simulate(plan, items=8, max_in_flight=4, host=SimulatedHost()).profile
        assert {batch.rows for batch in predicted.batches} == {2, 4}
        assert all_spans(predicted) == all_spans(measured(plan, 8, 4))


def delayed(delay_s: float, replicas: str) -> pl.Plan:
    body = pl.GraphBuilder("body")
    weights = np.eye(1024, dtype=np.float32)
    x = body.input("x", "float32", ("rows", 1024))
    body.output("y", body.op("MatMul", x, weights, name="product"))
    b = pl.GraphBuilder("rows")
    made = b.each(
        b.input("x", "float32", (3, 1024)), body.build(), name="read", batch=4, max_delay_s=delay_s
    )
    b.output("y", b.op("Relu", made, name="after"))
    pins = {"read/*": f"worker:{replicas}", "*": "cpu"}
    return pl.plan(b.build(), ["cpu", f"worker:{replicas}"], pin=pins, max_in_flight=8)


def test_simulated_rows_fill_batches_and_are_told() -> None:
    found = simulate(delayed(0.0, "0"), items=20)
    (rows,) = found.profile.row_batches.values()
    assert rows.rows == 60
    assert rows.batches < 20, "rows of several items go together"
    assert found.bottleneck == "worker:0", "which computes nothing but batches"
    assert "read: rows per batch" in found.table()
    assert found.to_dict()["row_batches"]["read"]["rows"] == 60
    assert min(found.slack_s) >= 0
    assert found.critical_path[-1].step.name
    # Nothing fills the last batch: it waits.
    waited = simulate(delayed(0.5, "0"), items=3)
    assert waited.makespan_s > 0.5
    assert {batch.rows for batch in waited.profile.batches} == {4, 1}


def test_simulated_rows_go_to_all_replicas() -> None:
    found = simulate(delayed(0.0, "0..1"), items=20)
    assert {"worker:0", "worker:1"} <= {
        span.step.device for batch in found.profile.batches for span in batch.record.spans()
    }
