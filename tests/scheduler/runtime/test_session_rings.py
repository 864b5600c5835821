"""Sessions whose items share few copies of the memory: runs, streams, and what goes wrong."""

from __future__ import annotations

import signal
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice, SteppedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.device import Device
from plait.devices.memory import Arena
from plait.devices.sim.clock import VirtualClock
from plait.devices.sim.device import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.scheduler.planner.memory import memory_plan
from plait.scheduler.runtime.opened import slots
from plait.scheduler.runtime.opened.copying import Feeds
from random_graphs import expected, feeds, graphs
from staged import ringed
from trio.testing import wait_all_tasks_blocked

US = 1_000


@pytest.fixture(autouse=True)
def _rings_for_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "SMALL_NBYTES", 0)


def planned(
    *devices: Device, limit: int = 6, copies: int = 2, length: int | None = None
) -> pl.Plan:
    """Plan a chain of one node per device that adds one each time."""
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", (4,))
    nodes = [device.name for device in devices] * (length or 1)
    for index, _ in enumerate(nodes):
        last = builder.op("Add", last, 1.0, name=f"n{index}")
    builder.output("y", last)
    pins = {f"n{index}": name for index, name in enumerate(nodes)}
    plan = ringed(pl.plan(builder.build(), devices, pin=pins, max_in_flight=limit), copies)
    assert plan.memory is not None
    assert plan.memory.period <= copies
    return plan


def lanes() -> tuple[Device, Device]:
    return PrivateDevice("a"), PrivateDevice("b")


def fed(value: float) -> dict[str, Any]:
    return {"x": np.full(4, value, np.float32)}


async def collect(session: pl.Session, count: int, first: int = 0) -> list[float]:
    source = [fed(value) for value in range(first, first + count)]
    async with session.stream(source) as results:
        return [float(item["y"][-1]) async for item in results]


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_a_stream_through_few_copies_gives_each_item_its_own_result(copies: int) -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(*lanes(), copies=copies)) as session:
            assert await collect(session, 60) == [value + 2 for value in range(60)]


async def test_runs_and_streams_share_the_copies() -> None:
    got: dict[int, list[float]] = {}

    async def stream(session: pl.Session, first: int) -> None:
        got[first] = await collect(session, 20, first)

    async def run(session: pl.Session, first: int) -> None:
        got[first] = [float((await session.run(fed(first + i)))["y"][0]) for i in range(20)]

    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(*lanes())) as session, trio.open_nursery() as nursery:
            for first, function in ((0, stream), (100, stream), (200, run), (300, run)):
                nursery.start_soon(function, session, first)
    assert got == {first: [first + i + 2 for i in range(20)] for first in (0, 100, 200, 300)}


async def test_a_slow_consumer_does_not_keep_copies_from_other_callers() -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(*lanes(), copies=1)) as session:
            async with session.stream([fed(value) for value in range(6)]) as results:
                async for item in results:
                    await wait_all_tasks_blocked()
                    other = await session.run(fed(item.index + 10))
                    assert other["y"][0] == item.index + 12


@pytest.mark.usefixtures("forget_operators")
async def test_failing_items_fail_alone() -> None:
    @pl.operator(name="test_session_rings.picky")
    def picky(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if x[0] % 3 == 0:
            raise ValueError("three")
        return x + 1

    builder = pl.GraphBuilder("picky")
    h = builder.op("Relu", builder.input("x", "float32", (4,)), name="before")
    builder.output("y", builder.op("Relu", builder.call(picky, h, name="picky"), name="after"))
    pins = {"before": "a", "picky": "cpu", "after": "b"}
    plan = pl.plan(builder.build(), [*lanes(), "cpu"], pin=pins, max_in_flight=5)
    with trio.fail_after(WAIT_S):
        async with pl.Session(ringed(plan, 2)) as session:
            async with session.stream([fed(value) for value in range(30)]) as results:
                got = [None if item.error else float(item["y"][0]) async for item in results]
    assert got == [None if value % 3 == 0 else value + 1.0 for value in range(30)]


# cancellation


async def _cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_cancelling_at_any_checkpoint_leaves_the_session_usable() -> None:
    async def consume(session: pl.Session) -> None:
        async with session.stream([fed(value) for value in range(6)]) as results:
            async for _ in results:
                await trio.lowlevel.checkpoint()

    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(*lanes())) as session:
            for moment in range(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_after, nursery.cancel_scope, moment)
                    nursery.start_soon(consume, session)
                assert await collect(session, 4) == [2, 3, 4, 5]


class Paced:
    """A session on a stepped device, and runs on it of which the first is under way."""

    def __init__(self, copies: int = 1) -> None:
        self.device = SteppedDevice("stepped")
        self.plan = planned(self.device, copies=copies)

    async def go_on(self) -> None:
        await wait_all_tasks_blocked()
        while self.device.queue:
            self.device.step()
            await wait_all_tasks_blocked()


async def test_a_cancelled_wait_for_what_is_fed_into_lets_the_next_one_go_on() -> None:
    paced, got = Paced(), []

    async def run(session: pl.Session, value: int) -> None:
        got.append(float((await session.run(fed(value)))["y"][0]))

    with trio.fail_after(WAIT_S):
        async with pl.Session(paced.plan) as session, trio.open_nursery() as nursery:
            nursery.start_soon(run, session, 0)
            await wait_all_tasks_blocked()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(run, session, 1)
                    await wait_all_tasks_blocked()
                    nursery.start_soon(run, session, 2)
                    await wait_all_tasks_blocked()
                    scope.cancel()
            await paced.go_on()
    assert got == [1, 3]


async def test_closing_turns_away_items_that_wait_to_be_fed_before_the_others_end() -> None:
    paced = Paced()
    outcomes: list[object] = []

    async def run(session: pl.Session) -> None:
        try:
            outcomes.append(await session.run(fed(0)))
        except pl.SessionError as error:
            outcomes.append(error.what)

    async def go_on_later() -> None:
        while len(outcomes) < 3:
            await wait_all_tasks_blocked()
        await paced.go_on()

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            async with pl.Session(paced.plan) as session:
                for _ in range(4):
                    nursery.start_soon(run, session)
                await wait_all_tasks_blocked()
                nursery.start_soon(go_on_later)
    assert outcomes == ["the session was closed before the item was done"] * 4


def test_control_c_while_an_item_waits_to_be_fed_ends_the_program() -> None:
    paced = Paced()

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(paced.plan) as session, trio.open_nursery() as nursery:
                nursery.start_soon(session.run, fed(0))
                await wait_all_tasks_blocked()
                nursery.start_soon(session.run, fed(1))
                await wait_all_tasks_blocked()
                trio.lowlevel.spawn_system_task(paced.go_on)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(KeyboardInterrupt)


# feeding and making slots


async def test_an_item_that_cannot_be_fed_gives_its_turn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = Feeds.write

    def failing(feeds: Feeds, arrays: Any) -> None:
        if arrays["x"][0] == 7:
            raise MemoryError("no room to copy")
        write(feeds, arrays)

    monkeypatch.setattr(Feeds, "write", failing)
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(*lanes())) as session:
            for _ in range(5):
                with pytest.raises(MemoryError):
                    await session.run(fed(7))
            assert await collect(session, 4) == [2, 3, 4, 5]


class Scarce(PrivateDevice):
    """Has as many arenas as it is told."""

    arenas = 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        if not self.arenas:
            raise pl.DeviceMemoryError("no more arenas")
        self.arenas -= 1
        return super().arena(memory, nbytes)


async def test_an_item_whose_slot_cannot_be_made_gives_its_turn_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "MADE_AHEAD", 0)
    scarce = Scarce("a")
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(scarce, copies=2)) as session:
            assert (await session.run(fed(0)))["y"][0] == 1
            for _ in range(2):
                with pytest.raises(pl.DeviceMemoryError):
                    await session.run(fed(1))
                assert (await session.run(fed(2)))["y"][0] == 3
            scarce.arenas = 1
            assert await collect(session, 4) == [1, 2, 3, 4]


async def test_a_slot_that_two_items_need_at_once_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "MADE_AHEAD", 0)
    scarce = Scarce("a")
    plan = planned(scarce, copies=1)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, trio.open_nursery() as nursery:
            for value in range(4):
                nursery.start_soon(session.run, fed(value))
    assert scarce.arenas == 0


# times

MODEL = SimModel(
    flops_per_s=1e6, bytes_per_s=1e15, copy_bytes_per_s=4e6, copy_latency_s=1e-6, launch_s=1e-6
)


async def landings(copies: int, limit: int = 6) -> list[int]:
    """Return when the items of a stream landed, in µs: six steps of 5 µs on six engines."""
    clock = VirtualClock()
    plan = planned(*(SimDevice(f"sim:{n}", MODEL, clock) for n in "ab"), copies=copies, limit=limit)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            assert await collect(session, 6) == [2, 3, 4, 5, 6, 7]
            return [record.landed_ns // US for record in session.profile().records]


async def test_items_on_one_copy_follow_one_another() -> None:
    assert await landings(copies=1) == [30, 60, 90, 120, 150, 180]


async def test_items_on_two_copies_of_all_go_two_by_two() -> None:
    assert await landings(copies=2) == [30, 35, 60, 65, 90, 95]


async def test_copies_on_a_device_are_passed_on_as_soon_as_they_are_copied_out() -> None:
    """The host has six copies, each device three: a device holds an item for three steps."""
    assert await landings(copies=6) == [30, 35, 40, 45, 50, 55]


SPEEDS = st.sampled_from((1e5, 3e5, 1e6))


@given(
    graph=graphs(),
    random=st.randoms(use_true_random=False),
    limit=st.integers(1, 5),
    copies=st.sampled_from([None, 1, 2]),
    speeds=st.tuples(SPEEDS, SPEEDS),
    beside=st.sampled_from([(), ("cpu",)]),
)
@settings(max_examples=25)
def test_any_graph_on_any_simulated_devices_gives_the_same_bits_at_the_same_times(
    graph: Graph,
    random: Random,
    limit: int,
    copies: int | None,
    speeds: tuple[float, float],
    beside: tuple[str, ...],
) -> None:
    """Beside a real device times may differ: its thread and the loop submit in either order."""
    pins = {node.name: random.choice(("sim:a", "sim:b", *beside)) for node in graph.nodes}
    inputs = [feeds(graph, seed) for seed in range(6)]

    async def run() -> list[tuple[int, int]]:
        clock = VirtualClock()
        a, b = (replace(MODEL, flops_per_s=speed, copy_bytes_per_s=speed) for speed in speeds)
        sims = [SimDevice("sim:a", a, clock), SimDevice("sim:b", b, clock)]
        plan = pl.plan(graph, [*sims, "cpu"], pin=pins, max_in_flight=limit)
        if copies is not None:
            plan = ringed(plan, copies)
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan) as session, session.stream(inputs) as results:
                async for item in results:
                    for name, array in expected(graph, inputs[item.index]).items():
                        np.testing.assert_array_equal(item[name], array)
        spans = [span for record in session.profile().records for span in record.spans()]
        return [(s.started_ns, s.ended_ns) for s in spans if s.step.device != "cpu"]

    first, second = trio.run(run), trio.run(run)
    assert beside or first == second


async def test_threads_that_release_and_threads_that_wait_lose_nothing() -> None:
    """Many tiny items on real lanes: every step is released by another thread."""
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(*lanes(), copies=2, length=3)) as session:
            assert await collect(session, 400) == [value + 6 for value in range(400)]
            assert session._runtime is not None
            (open_slots,) = session._runtime._open_plans._slots.values()
    guard = open_slots.open_plan.guard
    assert guard is not None
    assert not guard._starts
    assert not guard._rings._items
