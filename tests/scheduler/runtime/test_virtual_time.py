"""Sessions on virtual clocks: they run by themselves, and at exact times."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import PrivateDevice
from patience import WAIT_S
from plait.devices.device import Device
from plait.devices.sim.clock import VirtualClock
from plait.devices.sim.device import Faults, SimDevice, SimModel
from plait.scheduler.dispatch.hand_over import NOMINAL_NS
from plait.scheduler.planner import staged_plans
from plait.scheduler.runtime import virtual_time
from plait.scheduler.runtime.items import item
from plait.scheduler.runtime.virtual_time import TURN, VirtualTimeDriver
from trio.testing import wait_all_tasks_blocked

# A kernel on four elements takes 5 µs, and so does copying them.
MODEL = SimModel(
    flops_per_s=1e6, bytes_per_s=1e15, copy_bytes_per_s=4e6, copy_latency_s=1e-6, launch_s=1e-6
)
US = 1_000
X = np.array([1, -2, 3, -4], np.float32)


def chain(*devices: str) -> pl.GraphBuilder:
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", (4,))
    for name in devices:
        last = builder.op("Relu", last, name=name)
    builder.output("y", last)
    return builder


def planned(clock: VirtualClock, limit: int = 1) -> pl.Plan:
    """Plan six steps of 5 µs, on six engines: up, compute and down on each of two devices."""
    devices = [SimDevice(f"sim:{name}", MODEL, clock) for name in "ab"]
    pins = {"a": "sim:a", "b": "sim:b"}
    return pl.plan(chain("a", "b").build(), devices, pin=pins, max_in_flight=limit)


async def landings(plan: pl.Plan, source: Any) -> list[int]:
    """Run a stream and return when each item landed, in µs."""
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, session.stream(source) as results:
            async for item in results:
                np.testing.assert_array_equal(item["y"], np.maximum(X, 0))
            return [record.landed_ns // US for record in session.profile().records]


async def test_a_single_item_takes_the_sum_of_its_steps() -> None:
    clock = VirtualClock()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(clock)) as session:
            assert (await session.run({"x": X}))["y"].tolist() == [1, 0, 3, 0]
    assert clock.now_ns() == 30 * US


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [30, 60, 90, 120, 150, 180]),
        (2, [30, 35, 60, 65, 90, 95]),
        (4, [30, 35, 40, 45, 60, 65]),
        (6, [30, 35, 40, 45, 50, 55]),
    ],
)
async def test_a_stream_runs_by_itself_at_exact_times(limit: int, expected: list[int]) -> None:
    for _ in range(3):
        assert await landings(planned(VirtualClock(), limit), [{"x": X}] * 6) == expected


async def test_what_a_source_does_in_the_loop_takes_no_time() -> None:
    async def source() -> AsyncIterator[dict[str, Any]]:
        for _ in range(6):
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            yield {"x": X}

    expected = [30, 35, 60, 65, 90, 95]
    assert await landings(planned(VirtualClock(), 2), source()) == expected


async def test_what_is_copied_on_a_thread_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.scheduler.runtime.running.completion.AFTER_LAST_BYTES", 0)
    monkeypatch.setattr(item, "INLINE_BYTES", 0)
    expected = [30, 35, 60, 65, 90, 95]
    for alone in (0, 1 << 20):  # the first item at least is alone when it is fed
        monkeypatch.setattr(item, "ALONE_BYTES", alone)
        assert await landings(planned(VirtualClock(), 2), [{"x": X}] * 6) == expected


async def test_all_times_of_a_profile_are_on_the_clock_of_the_devices() -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(VirtualClock(), 2)) as session:
            for _ in range(2):
                await session.run({"x": X})
            profile = session.profile()
    assert [(one.admitted_ns, one.landed_ns) for one in profile.records] == [
        (0, 30 * US),
        (30 * US, 60 * US),
    ]
    starts = [(s.ready_ns, s.started_ns, s.ended_ns) for s in profile.records[0].spans()]
    # Those of one device are submitted together, as it keeps their order itself.
    assert sorted(starts) == [
        (0, 0, 5 * US),
        (0, 5 * US, 10 * US),
        (0, 10 * US, 15 * US),
        (15 * US, 15 * US, 20 * US),
        (15 * US, 20 * US, 25 * US),
        (15 * US, 25 * US, 30 * US),
    ]
    assert profile.wall_s == 60e-6
    assert profile.latency_s(0.5) == 30e-6


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.usefixtures("forget_operators")
async def test_the_clock_stands_still_while_a_real_device_works(late: bool) -> None:
    """Whether the loop submits to it, or the clock's thread when a simulated step has ended."""
    clock, going, seen = VirtualClock(), threading.Event(), []

    @pl.operator(name="test_virtual_time.slow")
    def slow(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(clock.now_ns())
        assert going.wait(WAIT_S)
        seen.append(clock.now_ns())
        return x

    builder = pl.GraphBuilder("both")
    x = builder.input("x", "float32", (4,))
    h = builder.op("Relu", x, name="before") if late else x
    builder.output("y", builder.call(slow, h, name="slow"))
    last = x
    for index in range(6):
        last = builder.op("Relu", last, name=f"beside {index}")
    builder.output("z", last)
    sims = [SimDevice("sim:a", MODEL, clock), SimDevice("sim:b", MODEL, clock)]
    pins = {"beside *": "sim:a", "slow": "cpu"} | ({"before": "sim:b"} if late else {})
    plan = pl.plan(builder.build(), [*sims, "cpu"], pin=pins, passes=())

    async def let_go() -> None:
        for _ in range(20):
            await wait_all_tasks_blocked()
        going.set()

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            await session.run({"x": X})
    assert seen == [15 * US, 15 * US] if late else [0, 0]
    assert clock.now_ns() == 40 * US, "six kernels and two copies"


async def test_the_clock_stands_still_while_a_stage_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One item is on a simulated device, another has a shape that is new."""
    clock, going, seen = VirtualClock(), threading.Event(), []
    make = staged_plans.StagedGraph.make

    def slow(entry: staged_plans.StagedGraph, known: Any) -> staged_plans.Stage:
        if "x" in known and len(known["x"]) == 8:
            seen.append(clock.now_ns())
            assert going.wait(WAIT_S)
            seen.append(clock.now_ns())
        return make(entry, known)

    monkeypatch.setattr(staged_plans.StagedGraph, "make", slow)
    builder = pl.GraphBuilder("values")
    h = builder.op("Relu", builder.input("x", "float32", ("n",)), name="a")
    builder.output("y", builder.op("NonZero", h, name="b"))
    sim = SimDevice("sim:a", MODEL, clock)
    plan = pl.plan(builder.build(), [sim, "cpu"], pin={"a": "sim:a", "b": "cpu"}, passes=())

    async def let_go() -> None:
        while not seen:
            await wait_all_tasks_blocked()
        for _ in range(500):  # until the other item's kernel is due, and longer
            await wait_all_tasks_blocked()
        going.set()

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, trio.open_nursery() as nursery:
            for count in (1, 2):
                nursery.start_soon(session.run, {"x": np.tile(X, count)})
                await wait_all_tasks_blocked()
            nursery.start_soon(let_go)
    assert len(set(seen)) == 1


async def test_a_session_that_rested_goes_on_with_the_next_item() -> None:
    clock = VirtualClock()
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(clock)) as session:
            for count in range(3):
                for _ in range(3):
                    await wait_all_tasks_blocked()
                assert clock.now_ns() == count * 30 * US
                await session.run({"x": X})


async def test_a_cancelled_run_lets_the_clock_end_what_was_submitted() -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(VirtualClock(), 2)) as session:
            with trio.move_on_after(0):
                await session.run({"x": X})
            assert (await session.run({"x": X}))["y"].tolist() == [1, 0, 3, 0]


async def test_a_session_that_is_left_early_ends() -> None:
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(VirtualClock(), 3)) as session:
            async with session.stream([{"x": X}] * 50) as results:
                async for item in results:
                    if item.index == 3:
                        break


async def test_two_sessions_may_share_a_clock() -> None:
    clock = VirtualClock()

    async def run(name: str) -> None:
        device = SimDevice(name, MODEL, clock)
        async with pl.Session(pl.plan(chain("a").build(), device)) as session:
            for _ in range(3):
                await session.run({"x": X})

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "sim:a")
            nursery.start_soon(run, "sim:b")
    assert clock.now_ns() >= 45 * US


async def test_devices_with_clocks_of_their_own_go_on_too() -> None:
    devices = [SimDevice(f"sim:{name}", MODEL, VirtualClock()) for name in "ab"]
    plan = pl.plan(chain("a", "b").build(), devices, pin={"a": "sim:a", "b": "sim:b"})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            for _ in range(3):
                assert (await session.run({"x": X}))["y"].tolist() == [1, 0, 3, 0]
    assert [device.clock.now_ns() for device in devices] == [45 * US, 45 * US]


async def test_a_failing_kernel_fails_its_item_on_a_virtual_clock_too() -> None:
    clock = VirtualClock()
    faults = Faults(fail_nodes={"a": ValueError("broken")})
    device = SimDevice("sim:a", SimModel(faults=faults), clock)
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(chain("a").build(), device)) as session:
            with pytest.raises(pl.KernelError, match="broken"):
                await session.run({"x": X})


class Refusing(PrivateDevice):
    """A real device that refuses its first piece of work."""

    refuses = True

    def copy(self, *arguments: Any, **options: Any) -> Any:
        if self.refuses:
            self.refuses = False
            raise pl.DeviceError("not today")
        return super().copy(*arguments, **options)


async def test_work_that_a_real_device_refuses_does_not_hold_up_the_clock() -> None:
    devices: list[Device] = [SimDevice("sim:a", MODEL, VirtualClock()), Refusing("b")]
    plan = pl.plan(chain("a", "b").build(), devices, pin={"a": "sim:a", "b": "b"})
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            with pytest.raises(pl.DeviceError, match="not today"):
                await session.run({"x": X})
            assert (await session.run({"x": X}))["y"].tolist() == [1, 0, 3, 0]


async def test_the_clock_can_still_be_moved_by_hand() -> None:
    clock = VirtualClock()
    async with pl.Session(planned(clock)) as session:
        clock.advance(1e-3)
        await session.run({"x": X})
        record = session.profile().records[0]
    assert (record.admitted_ns, record.landed_ns) == (1_000 * US, 1_030 * US)


async def turns(
    driver: VirtualTimeDriver, calls: int, monkeypatch: pytest.MonkeyPatch, ns_each: int
) -> int:
    """Return how often another task ran while a pace was asked for checkpoints."""
    now_ns = 1
    monkeypatch.setattr(virtual_time, "time", SimpleNamespace(perf_counter_ns=lambda: now_ns))
    count = 0

    async def other() -> None:
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(calls):
            await driver.checkpoint()
            now_ns += ns_each
        nursery.cancel_scope.cancel()
    return count


async def test_what_waits_for_nothing_lets_others_run_in_due_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seldom = await turns(VirtualTimeDriver(), 100, monkeypatch, TURN * NOMINAL_NS // 10)
    assert 8 <= seldom <= 12  # the start of the other task, and its end, may count
    assert await turns(VirtualTimeDriver(), 100, monkeypatch, TURN * NOMINAL_NS) >= 98


async def test_what_waits_for_nothing_can_be_cancelled_always() -> None:
    driver = VirtualTimeDriver()
    await driver.checkpoint()  # others have just run
    with trio.CancelScope() as scope:
        scope.cancel()
        for _ in range(2):
            with pytest.raises(trio.Cancelled):
                await driver.checkpoint()
        await driver.checkpoint()
    assert scope.cancelled_caught


async def test_items_that_are_done_at_once_can_be_cancelled() -> None:
    async with pl.Session(pl.plan(chain("a").build())) as session:
        for _ in range(5):
            with trio.CancelScope() as scope:
                scope.cancel()
                await session.run({"x": X})
            assert scope.cancelled_caught
        assert (await session.run({"x": X}))["y"].tolist() == [1, 0, 3, 0]
