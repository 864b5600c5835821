"""Streams over simulated replicas take the times that were predicted, to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from plait import devices
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.graph.core.ir import Graph
from plait.scheduler.planner.simulate import simulate
from plait.scheduler.profile import Profile
from plait.scheduler.simulation.workload import SimulatedHost
from virtual_streams import layered_graphs, measured, models

KINDS = "left", "right", "shared"
REPLICAS = frozenset(f"{kind}:{number}" for kind in KINDS[:2] for number in range(4))


@contextmanager
def machine(modelled: dict[str, SimModel]) -> Iterator[None]:
    """Have kinds of simulated devices, all on one virtual clock."""
    clock = VirtualClock()

    def register(kind: str, model: SimModel) -> None:
        devices.register(kind, lambda name: SimDevice(name, model, clock))

    for kind, model in modelled.items():
        register(kind, model)
    try:
        yield
    finally:
        for kind in modelled:
            devices.unregister(kind)


def items_of(profile: Profile) -> list[tuple[int, int, list[tuple[str, str, int, int]]]]:
    """Return for each item when it was admitted and landed, and when and where its steps ran."""
    first = min(record.admitted_ns for record in profile.records)
    found = []
    for record in profile.records:
        spans = (
            (span.step.name, span.step.device, span.started_ns - first, span.ended_ns - first)
            for span in record.spans()
        )
        found.append((record.admitted_ns - first, record.landed_ns - first, sorted(spans)))
    return sorted(found)


@settings(max_examples=40, deadline=None)
@given(layered_graphs(), st.tuples(models, models, models), st.data())
def test_a_stream_over_replicas_takes_the_times_that_were_predicted(
    graph: Graph, modelled: tuple[SimModel, SimModel, SimModel], data: st.DataObject
) -> None:
    left, right = (f"{kind}:0..{data.draw(st.integers(1, 3))}" for kind in KINDS[:2])
    names = data.draw(st.sampled_from([(left,), (left, "shared:x"), (left, right, "shared:x")]))
    pins = {node.name: data.draw(st.sampled_from(names)) for node in graph.nodes}
    planned_for, in_flight = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    items = data.draw(st.integers(1, 14))
    peers = (frozenset({"shared:x"}) | REPLICAS, frozenset({"shared:x"}), REPLICAS)
    linked = data.draw(st.sampled_from([peers, (frozenset[str](),) * 3]))
    machines = [replace(one, peers=near) for one, near in zip(modelled, linked, strict=True)]
    with machine(dict(zip(KINDS, machines, strict=True))):
        plan = pl.plan(graph, names, pin=pins, max_in_flight=min(planned_for, in_flight))
        found = measured(plan, items, in_flight)
        predicted = simulate(plan, items=items, max_in_flight=in_flight, host=SimulatedHost())
    assert items_of(predicted.profile) == items_of(found)
