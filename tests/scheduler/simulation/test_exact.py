"""Simulated devices on a virtual clock do what the simulation says, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.memory import Arena
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.graph.core.ir import Graph
from plait.scheduler.planner.simulate import simulate
from plait.scheduler.profile import Profile
from plait.scheduler.simulation.workload import SimulatedHost
from virtual_streams import layered_graphs, measured, models

NAMES = "sim:a", "sim:b", "sim:c"

some = st.frozensets(st.sampled_from(NAMES))


class CountingDevice(SimDevice):
    """Knows how much was allocated of its memory."""

    allocated = 0

    def arena(self, memory: str, nbytes: int) -> Arena:
        self.allocated += nbytes
        return super().arena(memory, nbytes)


def spans(profile: Profile) -> list[tuple[int, str, int, int]]:
    """Return when steps began and ended, counted from when the first began."""
    found = [
        (index, span.step.name, span.started_ns, span.ended_ns)
        for index, record in enumerate(profile.records)
        for span in record.spans()
    ]
    first = min((started for _, _, started, _ in found), default=0)
    return sorted((item, name, start - first, end - first) for item, name, start, end in found)


def landings(profile: Profile) -> list[tuple[int, int]]:
    """Return when items were admitted and when their results were known."""
    first = profile.records[0].admitted_ns
    return sorted((one.admitted_ns - first, one.landed_ns - first) for one in profile.records)


@settings(max_examples=60)
@given(layered_graphs(), st.lists(models, min_size=3, max_size=3), st.data())
def test_a_session_on_a_virtual_clock_takes_the_times_that_were_predicted(
    graph: Graph, machine: list[SimModel], data: st.DataObject
) -> None:
    clock = VirtualClock()
    devices = [
        CountingDevice(name, replace(model, peers=data.draw(some) - {name}), clock)
        for name, model in zip(NAMES, machine, strict=True)
    ]
    pins = {node.name: data.draw(st.sampled_from(NAMES)) for node in graph.nodes}
    max_in_flight = data.draw(st.integers(1, 4))
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=max_in_flight)
    items = data.draw(st.integers(1, 6))
    found = measured(plan, items, max_in_flight)
    predicted = simulate(plan, items=items, max_in_flight=max_in_flight, host=SimulatedHost())
    assert spans(predicted.profile) == spans(found)
    assert landings(predicted.profile) == landings(found)
    planned = {name: use.planned_nbytes for name, use in predicted.memory.items()}
    assert all(device.allocated == planned.get(device.name, 0) for device in devices)
