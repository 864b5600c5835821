"""Copies from one device to another without a stop on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait import Costs, devices
from plait.devices.memory import host_arena
from plait.devices.sim import SimDevice, SimModel, VirtualClock
from plait.graph.core.ir import Graph
from plait.graph.values.errors import ParseError
from plait.graph.values.tensor import Array, TensorSpec
from plait.scheduler.planner.partition.capacity import Capacity
from plait.scheduler.planner.partition.problem import PartitionProblem
from plait.scheduler.planner.simulate import simulate
from plait.scheduler.plans.placement import Transfer
from plait.scheduler.plans.replicas import check_alike
from plait.scheduler.simulation.workload import SimulatedHost
from virtual_streams import layered_graphs, measured, models

NAMES = "sim:a", "sim:b", "sim:c"
SLOW = SimModel(copy_latency_s=1.0, launch_s=1.0, peer_bytes_per_s=1e9)


def linked(*names: str, peers: Iterable[str] = NAMES, model: SimModel = SLOW) -> list[SimDevice]:
    """Return devices that copy from these peers, all on one virtual clock."""
    clock = VirtualClock()
    near = frozenset(peers)
    return [SimDevice(name, replace(model, peers=near - {name}), clock) for name in names]


def chain(*, fetched: bool = False) -> Graph:
    builder = pl.GraphBuilder("chain")
    h = builder.op("Relu", builder.input("x", "int32", (4,)), name="first", outputs=["h"])[0]
    if fetched:
        builder.output("h", h)
    builder.output("y", builder.op("Add", h, h, name="second"))
    builder.output("z", builder.op("Mul", h, h, name="third"))
    return builder.build()


def planned(machine: list[SimDevice], *, fetched: bool = False, **pin: str) -> pl.Plan:
    pins = {"first": "sim:a", "second": "sim:b", "third": "sim:b"} | pin
    return pl.plan(chain(fetched=fetched), machine, pin=pins)


def ways_of(plan: pl.Plan, tensor: str) -> list[tuple[str, str, str]]:
    """Return a tensor's transfers: from where, to where, by whom."""
    return [
        (step.work.source, step.work.target, step.device)
        for step in plan.steps
        if isinstance(step.work, Transfer) and step.work.tensor == tensor
    ]


def test_the_target_copies_from_its_peer() -> None:
    plan = planned(linked("sim:a", "sim:b"))
    assert ways_of(plan, "h") == [("sim:a", "sim:b", "sim:b")]
    assert "h: sim:a to sim:b" in plan.report()


def test_a_device_that_is_only_copied_from_takes_the_way_through_the_host() -> None:
    plan = planned(linked("sim:a", "sim:b", peers=["sim:b"]))
    assert ways_of(plan, "h") == [("sim:a", "host", "sim:a"), ("host", "sim:b", "sim:b")]


def test_what_is_fetched_too_does_not_wait_on_the_host_for_the_peer() -> None:
    plan = planned(linked("sim:a", "sim:b"), fetched=True)
    assert ways_of(plan, "h") == [("sim:a", "host", "sim:a"), ("sim:a", "sim:b", "sim:b")]


def test_one_reader_is_a_peer_and_another_is_not() -> None:
    a, b, _ = linked(*NAMES)
    stranger = SimDevice("sim:c", SLOW, a.clock)
    plan = planned([a, b, stranger], third="sim:c")
    assert ways_of(plan, "h") == [
        ("sim:a", "host", "sim:a"),
        ("sim:a", "sim:b", "sim:b"),
        ("host", "sim:c", "sim:c"),
    ]


def test_the_way_between_peers_is_priced_as_one_copy() -> None:
    def way(machine: list[SimDevice]) -> tuple[float, float]:
        named = {device.name: device for device in machine}
        seconds = [[1.0] * len(machine) for _ in chain().nodes]
        capacity = Capacity.of(chain(), named, None, 1)
        problem = PartitionProblem(chain(), named, Costs.of(named), seconds, 0, None, capacity)
        found = problem.ways[0][1]
        return found.latency_s, found.s_per_byte

    slow = SimModel(copy_latency_s=1.0, copy_bytes_per_s=1e6, peer_bytes_per_s=4e6)
    assert way(linked("sim:a", "sim:b", model=slow)) == pytest.approx((1.0, 1 / 4e6))
    assert way(linked("sim:a", "sim:b", model=slow, peers=())) == pytest.approx((2.0, 2 / 1e6))


def test_a_fast_link_makes_a_split_worth_it() -> None:
    """Each device is good at one operator; only the link decides if both are used."""

    def chosen(peers: Iterable[str]) -> set[str]:
        builder = pl.GraphBuilder("halves")
        h = builder.input("x", "float32", (256, 256))
        for op in ("Sin", "Cos"):
            for index in range(4):
                h = builder.op(op, h, name=f"{op}{index}")
        builder.output("y", h)
        near = frozenset(peers)
        machine = []
        for name, weak in (("sim:a", "Cos"), ("sim:b", "Sin")):
            model = SimModel(
                bytes_per_s=1e9,
                copy_bytes_per_s=1e9,
                peer_bytes_per_s=1e12,
                operators={weak: 1.25},
                peers=near - {name},
            )
            machine.append(SimDevice(name, model))
        return set(pl.plan(builder.build(), machine).assignment.values())

    assert len(chosen(())) == 1
    assert chosen(NAMES) == {"sim:a", "sim:b"}


def test_the_peer_is_given_its_copy_before_the_source_is_computed() -> None:
    """No trip to the host lies between: the devices keep the order themselves."""
    record = measured(planned(linked("sim:a", "sim:b")), 1, 1).records[0]
    spans = {span.step.name: span for span in record.spans()}
    source = next(
        span for span in spans.values() if span.step.device == "sim:a" and "x" not in span.step.name
    )
    copied = spans["h: sim:a to sim:b"]
    assert copied.ready_ns < source.ended_ns == copied.started_ns


def test_copies_between_peers_and_uploads_share_a_queue() -> None:
    plan = planned(linked("sim:a", "sim:b"))
    lanes = {lane.name for lane in simulate(plan, host=SimulatedHost()).workload.lanes}
    assert lanes >= {"sim:b in", "sim:b out", "sim:b"}


@settings(max_examples=30, deadline=None)
@given(layered_graphs(), st.lists(models, min_size=3, max_size=3), st.data())
def test_what_goes_from_device_to_device_arrives_whole(
    graph: Graph, machine: list[SimModel], data: st.DataObject
) -> None:
    """Memory is shared by items and tensors, and holds other bytes before and after."""
    clock = VirtualClock()
    some = st.frozensets(st.sampled_from(NAMES), min_size=2)
    sims = [
        SimDevice(name, replace(model, peers=data.draw(some) - {name}), clock)
        for name, model in zip(NAMES, machine, strict=True)
    ]
    pins = {node.name: data.draw(st.sampled_from(NAMES)) for node in graph.nodes}
    plan = pl.plan(graph, sims, pin=pins, max_in_flight=data.draw(st.integers(1, 4)))
    feeds = [
        {name: np.arange(64, dtype=np.int32) * (item + 2) - 9 for name in graph.inputs}
        for item in range(6)
    ]

    async def stream() -> list[dict[str, Array]]:
        async with pl.Session(plan) as session, session.stream(feeds) as results:
            return [{name: item[name] for name in graph.outputs} async for item in results]

    for fed, found in zip(feeds, trio.run(stream), strict=True):
        for name, wanted in pl.run(graph, fed, ["cpu"]).items():
            np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, 80), max_size=6), st.sampled_from(["sim:a", "sim:b"]))
def test_a_stream_over_peers_is_whole_whenever_one_of_them_is_lost(
    deaths: set[int], mortal: str
) -> None:
    class Mayfly(SimDevice):
        def _put(self, *arguments: Any) -> Any:
            if self._accepted in deaths:
                self.lose()
            return super()._put(*arguments)

    model = SimModel(peers=frozenset(NAMES))
    kinds = {"sim:a": SimDevice, "sim:b": SimDevice} | {mortal: Mayfly}
    machine = [kind(name, model) for name, kind in kinds.items()]
    policy = pl.FaultPolicy(restart_s=0, replays=len(deaths) + 1)
    plan = planned(machine)

    async def stream() -> list[list[int]]:
        source = ({"x": np.arange(4, dtype=np.int32) + item} for item in range(20))
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan, faults=policy) as session:
                async with session.stream(source, max_in_flight=3) as results:
                    return [item["y"].tolist() async for item in results]

    assert trio.run(stream) == [[2 * (n + item) for n in range(4)] for item in range(20)]


def test_a_saved_plan_wants_the_same_links_between_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "linked.plan"
    plan = planned(linked("sim:a", "sim:b", peers=("sim:a", "sim:b")))
    plan.save(path)
    more = linked("sim:a", "sim:b")  # there is a third one, which the plan does not use
    assert ways_of(pl.load_plan(path, devices=more), "h") == ways_of(plan, "h")
    with pytest.raises(ParseError, match=r"copies_from , was sim:b"):
        pl.load_plan(path, devices=linked("sim:a", "sim:b", peers=()))


def test_replicas_are_alike_if_the_same_devices_are_their_peers() -> None:
    near = {"npu:0": {"npu:1", "dsp"}, "npu:1": {"npu:0", "dsp"}, "npu:2": {"dsp:1"}}
    models_of = {name: SimModel(peers=frozenset(peers)) for name, peers in near.items()}
    devices.register("npu", lambda name: SimDevice(name, models_of[name]))
    try:
        check_alike(("npu:0", "npu:1"))
        with pytest.raises(pl.PlanError, match="'npu:2' is not like 'npu:0'"):
            check_alike(("npu:0", "npu:1", "npu:2"))
    finally:
        devices.unregister("npu")


def test_a_device_that_reaches_one_replica_only_is_refused() -> None:
    devices.register("npu", SimDevice)
    try:
        reader = SimDevice("sim:a", SimModel(peers=frozenset({"npu:0"})))
        with pytest.raises(pl.PlanError, match="'sim:a' copies from npu:0 only") as caught:
            pl.plan(chain(), ["npu:0..1", reader])
        assert caught.value.fix
    finally:
        devices.unregister("npu")


class Reader(PrivateDevice):
    """Copies from the memory of another device as well."""

    def __init__(self, name: str, peer: str) -> None:
        super().__init__(name)
        peers = frozenset({f"memory of {peer}"})
        self.capabilities = replace(self.capabilities, copies_from=peers)


def test_copies_between_peers_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.scheduler.costs import measure as measuring

    monkeypatch.setattr(measuring, "COPY_BYTES", (1 << 10, 1 << 16))
    found = measuring.measure_peers([Reader("a", "b"), PrivateDevice("b"), SimDevice("sim:a")])
    assert set(found) == {("memory of b", "memory of a")}
    assert found["memory of b", "memory of a"].bytes_per_s > 0


def test_a_view_of_a_strangers_memory_is_a_mistake_of_ours() -> None:
    (device,) = linked("sim:a", peers=())
    arena = host_arena(64)
    arena.memory = "sim:b"
    with pytest.raises(AssertionError):
        device.view(arena, 0, TensorSpec("uint8", (4,)))
