"""Steps that run once, when a plan is opened: on each device, for all items, and failing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from fake_devices import PrivateDevice, SteppedDevice
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.cpu import CpuDevice
from plait.devices.device import OnDone, Program
from plait.devices.event import Event
from plait.devices.memory import View
from plait.devices.sim import SimDevice
from plait.graph.core import evaluation
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory.verify import verify_memory
from random_graphs import expected
from resources import held, left_since
from weighted_graphs import by_numpy, partly_known, rows, unfolded, weighted


class Counting(CpuDevice):
    """Counts how often each node runs."""

    def __init__(self, name: str = "cpu") -> None:
        super().__init__(name)
        self.runs: Counter[str] = Counter()
        self._nodes: dict[int, list[str]] = {}

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        program = super().compile(subgraph, views, measure=measure)
        self._nodes[id(program)] = [node.name for node in subgraph.nodes]
        return program

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        self.runs.update(self._nodes[id(program)])
        return super().submit(program, waits, on_done)

    def run_inline(self, program: Program, event: Event) -> bool:
        return False


async def check(session: pl.Session, values: Sequence[float], **options: Any) -> None:
    """Stream rows of these values and compare with numpy."""
    async with session.stream([rows(value) for value in values], **options) as results:
        found = [item["y"].copy() async for item in results]
    assert len(found) == len(values)
    for value, one in zip(values, found, strict=True):
        np.testing.assert_allclose(one, by_numpy(rows(value)), rtol=1e-5)


async def test_nodes_run_once_for_all_items() -> None:
    device = Counting()
    async with pl.Session(unfolded(devices=[device], max_in_flight=2)) as session:
        assert device.runs == {"relu": 1, "total": 1}
        await check(session, [1, 2, 3, 4, 5])
    assert device.runs == {"relu": 1, "total": 1, "matmul": 5, "add": 5}


@pytest.mark.parametrize("seed", SEEDS[:3])
async def test_a_gpu_computes_at_open_into_its_own_memory(seed: int) -> None:
    double = CupyDouble(seed)
    plan = unfolded(devices=[double.device()], max_in_flight=2)
    assert plan.placement is not None
    assert plan.placement.prepared == {("relu", "cuda:0"), ("total", "cuda:0")}
    async with pl.Session(plan) as session:
        await check(session, [1, -2, 3])
    double.gpu.check_freed()


@pytest.mark.parametrize("device", ["worker:0", "ort"])
async def test_other_devices_compute_at_open(device: str) -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(unfolded(devices=[device], max_in_flight=2)) as session:
            await check(session, [1, -2, 3])


@settings(max_examples=12)
@given(drawn=partly_known(), seed=st.integers(0, 1 << 30))
def test_any_graph_yields_what_numpy_does_over_devices_with_memories_of_their_own(
    drawn: tuple[Graph, dict[str, Array]], seed: int
) -> None:
    graph, feeds = drawn
    random = Random(seed)
    names = ["cpu:1", "cpu:2"]
    pins = {node.name: random.choice([*names, "cpu"]) for node in graph.nodes}
    devices = [*map(PrivateDevice, names), "cpu"]
    plan = unfolded(graph, devices, pin=pins, max_in_flight=random.choice([1, 2]))
    verify_memory(plan)
    found = pl.run(plan, feeds)
    wanted = expected(graph, feeds)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


async def test_a_profile_tells_what_ran_at_open_apart_from_items() -> None:
    async with pl.Session(unfolded(max_in_flight=1), measure=True) as session:
        await check(session, [1, 2])
        profile = session.profile()
    (opening,) = profile.at_open
    assert sum(len(span.step.nodes) for span in opening.spans()) == 2
    assert len(profile.records) == 2
    assert {node.name for node in profile.nodes} == {"matmul", "add"}
    assert profile.at_open_s > 0
    assert profile.to_dict()["at_open_s"] == profile.at_open_s
    assert "computed once, before the first item" in profile.table()


async def test_virtual_time_passes_at_open() -> None:
    sim = SimDevice("sim:a")
    async with pl.Session(unfolded(devices=[sim])) as session:
        await check(session, [1, 2])
        (opening,) = session.profile().at_open
    spans = [*opening.spans()]
    assert spans
    assert all(span.ended_ns > span.started_ns for span in spans)


async def test_shapes_within_bounds_share_what_was_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "FOLDED_BYTES", 4)
    device = Counting()
    plan = pl.plan(weighted("n"), [device], bounds={"n": 8})
    async with pl.Session(plan) as session:
        for length in (8, 3, 5, 1):
            feeds = rows(length, length)
            found = await session.run(feeds)
            np.testing.assert_allclose(found["y"], by_numpy(feeds), rtol=1e-5)
    assert device.runs["relu"] == 1


async def test_shapes_that_vary_freely_read_what_was_evaluated_before() -> None:
    device = Counting()
    async with pl.Session(unfolded(weighted("n"), [device])) as session:
        for length in (2, 3, 2):
            found = await session.run(rows(1, length))
            np.testing.assert_allclose(found["y"], by_numpy(rows(1, length)), rtol=1e-5)
    assert device.runs["relu"] == 0  # by numpy, when the session was opened


async def test_each_replica_computes_for_itself() -> None:
    plan = unfolded(devices=["worker:0..1", "cpu"], pin={"*": "worker:0..1"}, max_in_flight=2)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            await check(session, range(6))
            openings = session.profile().at_open
    devices = {span.step.device for one in openings for span in one.spans()}
    assert devices == {"worker:0", "worker:1"}


async def test_a_node_that_fails_at_open_is_named_and_nothing_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "FOLDED_BYTES", 0)
    b = pl.GraphBuilder("failing")
    x = b.input("x", "float32", (3,))
    far = b.op("Gather", np.ones(3, np.float32), np.array([7]), name="far")
    b.output("y", b.op("Add", x, far))
    plan = pl.plan(b.build(), ["worker:0", "cpu"], pin={"far": "cpu", "*": "worker:0"})
    before = held()
    with pytest.raises(pl.KernelError, match="far") as caught:
        async with pl.Session(plan):
            pytest.fail("it is not open")
    assert "computed once" in caught.value.__notes__[0]
    del caught
    assert not left_since(before)


async def test_opening_can_be_cancelled_while_nodes_run() -> None:
    device = SteppedDevice("cpu:1")
    plan = unfolded(devices=[device])
    before = held()
    scope = trio.CancelScope()

    async def give_up() -> None:
        while not device.queue:
            await trio.lowlevel.checkpoint()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert device.is_open
        device.step()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        with scope:
            async with pl.Session(plan):
                pytest.fail("it is not open")
    assert scope.cancelled_caught
    assert not device.is_open
    assert not left_since(before)


async def test_it_is_computed_again_when_a_device_that_was_lost_is_back() -> None:
    sim = SimDevice("sim:a")
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0)
        async with pl.Session(unfolded(devices=[sim]), faults=policy) as session:
            await check(session, [1, 2])
            sim.lose()
            await check(session, [3, 4])
            assert len(session.profile().at_open) >= 2


async def test_a_device_that_is_lost_at_open_is_stood_in_for() -> None:
    sim = SimDevice("sim:a")
    accepted = sim._put

    def lost_once(*arguments: Any) -> Any:
        if sim._accepted == 1 and sim.generation == 1:
            sim.lose()
        return accepted(*arguments)

    sim._put = lost_once  # type: ignore[method-assign, assignment]
    plan = unfolded(devices=[sim, "cpu"], pin={"*": "sim:a"})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            await check(session, [1, 2])
    assert sim.generation == 2 or sim.failure is not None
