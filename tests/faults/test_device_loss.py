"""Simulated devices that are lost under a session: stood in for, restarted, items run again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from cupy_double import CupyDouble
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.event import Event
from plait.devices.sim import Faults, SimDevice, SimModel
from plait.devices.sim.device import SimulatedJob
from plait.graph.values.tensor import Array
from plait.scheduler.runtime.events import DeviceRestored, PlanReplaced
from plait.scheduler.runtime.faults import recovery
from plait.scheduler.runtime.items import item
from plait.scheduler.runtime.large_copies import copy_array
from plait.scheduler.runtime.opened import open_plans
from plait.scheduler.runtime.running import replays
from staged import ringed

from .fault_devices import Mayfly, Observed, Stubborn, planned, right
from .fault_graphs import answer, feeds, halves

PINS = {"first": "sim:a", "second": "cpu"}


async def test_an_item_of_a_lost_device_runs_again_on_what_remains() -> None:
    sim, observed = Stubborn(refusals=1_000), Observed()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim), on_event=observed) as session:
            assert await right(session, 1)
            sim.lose("unplugged")
            for value in range(5):
                assert await right(session, value)
            assert sim.failure is not None
    assert observed.kinds == ["DeviceLost", "ItemReplayed", "PlanReplaced"]
    assert observed.seen[-6:-5] == [PlanReplaced(("cpu",))]


async def test_the_whole_plan_takes_over_again_when_the_device_is_back() -> None:
    sim, observed = SimDevice("sim:a"), Observed()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim), on_event=observed) as session:
            sim.lose()
            assert await right(session, 1)
            await observed.restored.wait()
            before = sim._accepted
            assert await right(session, 2)
            assert sim._accepted > before
    assert "DeviceRestored" in observed.kinds
    restored = next(event for event in observed.seen if isinstance(event, DeviceRestored))
    assert restored == DeviceRestored("sim:a", 1)


@pytest.mark.parametrize("copy", [True, False], ids=["copies", "views"])
@pytest.mark.parametrize("alone", [False, True], ids=["stood in for", "alone"])
async def test_a_stream_over_a_device_that_is_lost_again_and_again_is_whole(
    copy: bool, alone: bool
) -> None:
    sim, observed = SimDevice("sim:a"), Observed()

    def source() -> Iterator[dict[str, Any]]:
        for value in range(60):
            if value % 12 == 7:
                sim.lose()
            yield feeds(value)

    plan = planned(sim, alone=alone, max_in_flight=3)
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0)
        async with pl.Session(plan, on_event=observed, faults=policy) as session:
            async with session.stream(source(), copy=copy) as stream:
                results = [item["y"].tolist() async for item in stream]
    assert results == [answer(value) for value in range(60)]
    assert observed.kinds.count("DeviceLost") >= 1
    assert observed.kinds.count("ItemReplayed") >= 1


@given(
    deaths=st.sets(st.integers(0, 60), max_size=8),
    alone=st.booleans(),
    copy=st.booleans(),
    in_flight=st.integers(1, 4),
    copies=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_whenever_a_device_is_lost_each_item_comes_once_in_order(
    deaths: set[int], alone: bool, copy: bool, in_flight: int, copies: int
) -> None:
    """Also where memory is shared by turns, and results are read where they lie."""
    plan = planned(Mayfly(deaths), alone=alone, max_in_flight=in_flight)
    plan = ringed(plan, min(copies, in_flight))
    policy = pl.FaultPolicy(restart_s=0, replays=len(deaths) + 1)

    async def main() -> list[list[float]]:
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan, faults=policy) as session:
                async with session.stream(map(feeds, range(20)), copy=copy) as stream:
                    return [item["y"].tolist() async for item in stream]

    assert trio.run(main) == [answer(value) for value in range(20)]


async def test_what_becomes_of_an_array_after_it_was_fed_does_not_matter() -> None:
    sim, given = SimDevice("sim:a", SimModel(submit_s=0.1)), feeds(1)

    async def interfere() -> None:
        while not sim._accepted:
            await trio.lowlevel.checkpoint()
        given["x"].fill(77)
        sim.lose()

    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0)
        async with trio.open_nursery() as nursery:
            async with pl.Session(planned(sim), faults=policy) as session:
                nursery.start_soon(interfere)
                assert (await session.run(given))["y"].tolist() == answer(1)


async def test_shapes_that_are_fed_first_after_a_loss() -> None:
    sim = SimDevice("sim:a")
    graph = halves("n")
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(graph, [sim, "cpu"], pin={"first": "sim:a"})) as session:
            for n in (3, 4):
                sim.lose()
                assert (await session.run(feeds(1, n)))["y"].tolist() == answer(1, n)


async def test_parts_of_a_graph_whose_shapes_depend_on_values_run_again() -> None:
    builder = pl.GraphBuilder("positives")
    x = builder.input("x", "float32", (4,))
    h = builder.op("Relu", x, name="first")
    places = builder.op("Flatten", builder.op("NonZero", builder.op("Greater", x, np.float32(0))))
    found = builder.op("Gather", h, builder.op("Squeeze", places, np.array([0])))
    builder.output("y", builder.op("Add", found, found, name="second"))
    sim = SimDevice("sim:a")
    plan = pl.plan(builder.build(), [sim, "cpu"], pin={"first": "sim:a", "second": "sim:a"})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            for _ in range(3):
                sim.lose()
                outputs = await session.run({"x": np.array([-1, 2, 0, 3], np.float32)})
                assert outputs["y"].tolist() == [4, 6]


async def test_a_gpu_that_is_lost_stays_away() -> None:
    double, observed = CupyDouble(), Observed()
    pins = {"first": "cuda:0", "second": "cpu"}
    plan = pl.plan(halves(), [double.device(), "cpu"], pin=pins)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan, on_event=observed) as session:
            assert await right(session, 1)
            double.gpu.break_next()
            for value in range(3):
                assert await right(session, value)
    assert observed.kinds == ["DeviceLost", "ItemReplayed", "PlanReplaced"]


async def test_sessions_that_share_a_device_both_go_on_after_its_loss() -> None:
    sim = SimDevice("sim:a")
    plan = planned(sim)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as one, pl.Session(plan) as other:
            for value in range(3):
                sim.lose()
                assert await right(one, value)
                assert await right(other, value)


async def test_a_device_lost_in_the_middle_of_an_item() -> None:
    """Of the copy in, the kernel and the copy out, the middle one is the last that is accepted."""
    for after in range(3):
        model = SimModel(faults=Faults(lost_after=after))
        observed = Observed()
        plan = planned(SimDevice("sim:a", model))
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan, on_event=observed) as session:
                assert await right(session, 1)
        assert observed.kinds[:2] == ["DeviceLost", "ItemReplayed"]


async def test_items_of_a_shape_that_was_forgotten_meanwhile_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_plans, "KEPT_SIZES", 1)
    sim, results = SimDevice("sim:a", SimModel(submit_s=0.5)), dict[int, list[float]]()
    plan = pl.plan(halves("n"), [sim, "cpu"], pin=PINS, bounds={"n": 8}, max_in_flight=3)

    async def run(session: pl.Session, n: int) -> None:
        results[n] = (await session.run(feeds(1, n)))["y"].tolist()

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            async with trio.open_nursery() as nursery:
                for n in (3, 4, 5):
                    nursery.start_soon(run, session, n)
                while session.status().in_flight < 3 and not results:
                    await trio.lowlevel.checkpoint()
                sim.model = SimModel()
                sim.lose()
    assert results == {n: answer(1, n) for n in (3, 4, 5)}


async def test_what_stands_in_for_a_device_that_is_back_may_be_lost_with_its_last_item() -> None:
    first, second = Stubborn(refusals=1_000), SimDevice("sim:b", SimModel(submit_s=0.1))
    observed, found = Observed(), list[bool]()
    plan = pl.plan(halves(), [first, second, "cpu"], pin=PINS, strategy="preference")

    async def run(session: pl.Session) -> None:
        found.append(await right(session, 1))

    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0.001)
        async with pl.Session(plan, faults=policy, on_event=observed) as session:
            first.lose()
            assert await right(session, 0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, session)
                while not (found or session.status().in_flight):
                    await trio.lowlevel.checkpoint()
                first.refusals = 0
                await observed.restored.wait()
                second.lose()
    assert found == [True]


async def test_what_may_stand_in_is_planned_ahead_once_for_all_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[pl.Plan]()
    monkeypatch.setattr(recovery, "plan_without", lambda plan, _: seen.append(plan))
    plan = pl.plan(halves("n"), [SimDevice("sim:a"), "cpu"], pin=PINS, bounds={"n": 8})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            for n in range(replays.PREPARED_AFTER):
                await session.run(feeds(1, 1 + n % 7))
            while not seen:
                await trio.lowlevel.checkpoint()
    assert [one is plan for one in seen] == [True]


@pytest.mark.parametrize(
    ("beside", "most", "copies"), [((), 5, 0), (("cpu",), 5, 1), (("cpu",), 0, 0)]
)
async def test_inputs_are_kept_only_where_items_may_run_again(
    beside: tuple[str, ...], most: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is lost does not come back: without another device there is nothing to do."""
    kept, copies_in = list[str](), replays._make_copies

    def counted(slots: Any, room: Mapping[str, Any], inputs: replays.Inputs) -> replays.Inputs:
        kept.extend(room)
        return copies_in(slots, room, inputs)

    monkeypatch.setattr(replays, "_make_copies", counted)
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (4,))))
    plan = pl.plan(b.build(), [CupyDouble().device(), *beside], pin={"*": "cuda:0"})
    async with pl.Session(plan, faults=pl.FaultPolicy(replays=most)) as session:
        results = await session.run({"x": np.array([-1, 0, 1, 2], np.float32)})
    np.testing.assert_array_equal(results["y"], [0, 0, 1, 2])
    assert kept == ["x"] * copies


class AtOnce(SimDevice):
    """Does all work where it is submitted; dies with the pieces of work of these numbers.

    It notes the copies for other attempts, too.
    """

    def __init__(self, deaths: Collection[int], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__("sim:a")
        self.deaths = deaths
        self.noted = list[str]()
        monkeypatch.setattr(replays, "copy_array", self._copy_for_replay)

    def _put(self, engine: str, job: SimulatedJob) -> Event:
        self.noted.append(engine)
        self._accepted += 1
        if self._accepted - 1 in self.deaths:
            self.lose("it died at once")
        if self.failure is None:
            job.event.run(job.work)
        else:
            job.event.complete(self.failure.again())
        return job.event

    def _copy_for_replay(self, target: Array, source: Array) -> None:
        self.noted.append("copied")
        copy_array(target, source)


async def test_nothing_is_copied_for_an_item_that_has_ended_where_it_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = AtOnce((), monkeypatch)
    async with pl.Session(planned(sim, alone=True)) as session:
        for value in range(3):
            assert await right(session, value)
    assert "copied" not in sim.noted


@pytest.mark.parametrize("death", range(3))
async def test_what_was_fed_is_copied_when_the_first_steps_have_begun_and_a_device_dies_of_them(
    death: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's array is written to as soon as another task can do that."""
    sim, fed = AtOnce({death}, monkeypatch), feeds(1)
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0)
        async with pl.Session(planned(sim, alone=True), faults=policy) as session:
            async with trio.open_nursery() as nursery:
                found = list[Any]()

                async def run() -> None:
                    found.append((await session.run(fed))["y"].tolist())

                nursery.start_soon(run)
                while not sim.noted:
                    await trio.lowlevel.checkpoint()
                fed["x"][:] = -1
    assert found == [answer(1)]
    assert sim.noted.count("copied") == 1
    assert sim.noted.index("copied") == death + 1


@pytest.mark.parametrize("death", [None, 0, 1, 2])
@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["on a thread", "on the loop"])
async def test_a_source_may_use_its_array_again_wherever_items_are_copied(
    death: int | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item, "ALONE_BYTES", limit)
    monkeypatch.setattr(item, "INLINE_BYTES", limit)
    sim, array = Mayfly(set() if death is None else {4 + death}), feeds(0)["x"]

    def source() -> Iterator[dict[str, Any]]:
        for value in range(5):
            array[:] = feeds(value)["x"]
            yield {"x": array}
            array[:] = -1

    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0)
        async with pl.Session(planned(sim, alone=True, max_in_flight=2), faults=policy) as session:
            async with session.stream(source()) as results:
                found = [item["y"].tolist() async for item in results]
    assert found == [answer(value) for value in range(5)]
