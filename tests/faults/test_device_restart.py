"""Devices that are started again: pauses, patience, items that wait meanwhile or give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from patience import WAIT_S
from plait.devices.sim import SimDevice
from plait.scheduler.runtime.events import DeviceRestored
from plait.scheduler.runtime.items import item
from trio.testing import MockClock, wait_all_tasks_blocked

from .fault_devices import Observed, Stubborn, planned, right
from .fault_graphs import feeds, halves


async def test_an_item_waits_for_its_device_where_nothing_stands_in() -> None:
    sim, observed = Stubborn(refusals=1), Observed()
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(restart_s=0)
        async with pl.Session(planned(sim, alone=True), on_event=observed, faults=policy) as s:
            sim.lose()
            assert await right(s, 1)
    assert observed.kinds == ["DeviceLost", "ItemReplayed", "DeviceRestored"]
    assert observed.seen[2] == DeviceRestored("sim:a", 2)


async def test_nothing_stands_in_if_the_policy_forbids_it() -> None:
    sim, observed = SimDevice("sim:a"), Observed()
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(standby=False)
        async with pl.Session(planned(sim), on_event=observed, faults=policy) as session:
            sim.lose()
            assert await right(session, 1)
    assert observed.kinds == ["DeviceLost", "ItemReplayed", "DeviceRestored"]


async def test_items_fail_where_replays_are_switched_off_and_the_session_goes_on() -> None:
    sim, observed = SimDevice("sim:a"), Observed()
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(replays=0)
        async with pl.Session(planned(sim), on_event=observed, faults=policy) as session:
            sim.lose("unplugged")
            with pytest.raises(pl.DeviceLostError, match="unplugged"):
                await session.run(feeds(1))
            assert await right(session, 2)


async def test_a_device_that_dies_of_an_item_each_time_fails_it_with_the_cause() -> None:
    class Fragile(SimDevice):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            event = super().submit(*arguments, **options)
            self.lose("too hot")
            return event

    sim, observed = Fragile("sim:a"), Observed()
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(replays=3, restart_s=0)
        async with pl.Session(planned(sim, alone=True), on_event=observed, faults=policy) as s:
            with pytest.raises(pl.DeviceLostError, match="too hot") as caught:
                await s.run(feeds(1))
    assert caught.value.fix == "see what it does there: a device died of this item 4 times"
    assert observed.kinds.count("DeviceLost") == 4
    assert observed.kinds.count("ItemReplayed") == 3


async def test_items_fail_when_their_device_does_not_come_back() -> None:
    sim = Stubborn(refusals=10**9)
    with trio.fail_after(WAIT_S):
        policy = pl.FaultPolicy(patience=3, patience_s=0, restart_s=0)
        async with pl.Session(planned(sim, alone=True), faults=policy) as session:
            sim.lose("unplugged")
            for _ in range(2):
                with pytest.raises(pl.DeviceLostError, match="unplugged") as caught:
                    await session.run(feeds(1))
                assert isinstance(caught.value.__cause__, pl.DeviceUnavailableError)
            sim.refusals = 0
            while sim.failure is not None:
                await trio.lowlevel.checkpoint()
            with trio.move_on_after(WAIT_S / 2):
                while True:
                    try:
                        assert await right(session, 2)
                        break
                    except pl.DeviceLostError:
                        await trio.lowlevel.checkpoint()


async def test_items_fail_no_earlier_than_the_patience_in_seconds(
    autojump_clock: MockClock,
) -> None:
    sim = Stubborn(refusals=10**9)
    policy = pl.FaultPolicy(patience=1, patience_s=60, restart_s=0)
    async with pl.Session(planned(sim, alone=True), faults=policy) as session:
        sim.refusals = 10**9
        sim.lose("unplugged")
        began = trio.current_time()
        opens = sim.open

        def slow(cores: int | None = None) -> None:
            autojump_clock.jump(7)  # the machine is busy
            opens(cores)

        sim.open = slow  # type: ignore[method-assign]
        with pytest.raises(pl.DeviceLostError, match="unplugged"):
            await session.run(feeds(1))
        assert trio.current_time() - began >= 60


async def test_a_source_is_not_emptied_while_nothing_can_run_its_items() -> None:
    """Items that wait fail; the next one is held back until an attempt to start the device."""
    sim, drawn = Stubborn(refusals=10**9), 0
    policy = pl.FaultPolicy(patience=1, patience_s=0, restart_s=0)

    def source() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield feeds(drawn)

    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim, alone=True), faults=policy) as session:
            sim.lose("unplugged")
            asked, n_failed = sim.asked, 0
            async with session.stream(source()) as stream:
                async for item in stream:
                    if item.error is None:
                        break
                    n_failed += 1
                    if n_failed == 5:
                        sim.refusals = 0
    assert n_failed <= sim.asked - asked + 2  # each needs an attempt of its own, but the first two
    assert drawn <= n_failed + 3


async def test_pauses_between_attempts_grow(autojump_clock: MockClock) -> None:
    sim, observed, asked = Stubborn(refusals=7), Observed(), list[float]()
    opens = sim.open

    def timed(cores: int | None = None) -> None:
        if sim.failure is not None:
            asked.append(autojump_clock.current_time())
        opens(cores)

    async with pl.Session(planned(sim), on_event=observed) as session:
        sim.open = timed  # type: ignore[method-assign]
        sim.lose()
        began = trio.current_time()
        assert await right(session, 1)
        await observed.restored.wait()
    times = np.cumsum([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert [time - began for time in asked] == pytest.approx(list(times))


class Rival(SimDevice):
    """Brings about the loss of another device, which is told, whenever it is started again."""

    other: SimDevice

    def open(self, cores: int | None = None) -> None:
        revived = self.failure is not None
        super().open(cores)
        if revived:
            self.other.lose("the other one is back")
            for callback in list(self.other.on_failure):
                callback()


def over_two(first: SimDevice, second: SimDevice) -> pl.Plan:
    """Return a plan that needs both, with nothing to stand in."""
    pins = {"first": first.name, "second": second.name}
    return pl.plan(halves(), [first, second], pin=pins, max_in_flight=3)


@pytest.mark.parametrize("replays", [0, 2, 5])
async def test_items_fail_whose_devices_keep_dying_in_turn(replays: int) -> None:
    """Each of them always starts, but never does both live when an item needs them."""
    first, second = Rival("sim:a"), Rival("sim:b")
    first.other, second.other = second, first
    policy = pl.FaultPolicy(restart_s=0, patience=3, patience_s=0, replays=replays, standby=False)
    with trio.fail_after(WAIT_S):
        async with pl.Session(over_two(first, second), faults=policy) as session:
            assert await right(session, 1)
            first.lose("unplugged")
            async with session.stream(feeds(value) for value in range(30)) as stream:
                errors = [item.error async for item in stream]
    assert len(errors) == 30
    assert all(isinstance(error, pl.DeviceLostError) for error in errors)


async def test_devices_that_are_away_are_started_together(mock_clock: MockClock) -> None:
    """One dies while another waits for its next attempt, which is then made at once."""
    first, second = Stubborn(10**9), Stubborn(0, "sim:b")

    async def attempts(n: int) -> None:
        assert session._runtime is not None
        assert session._runtime._recovery.examine()  # simulated devices do not tell
        limiter = trio.to_thread.current_default_thread_limiter()
        until = time.monotonic() + WAIT_S
        while (first.asked < n or limiter.borrowed_tokens) and time.monotonic() < until:
            await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()

    async with pl.Session(over_two(first, second)) as session:
        first.lose()
        await attempts(1)  # the next one is due in 0.1 s, and no time passes
        assert first.asked == 1
        second.lose()
        await attempts(2)
        assert first.asked == 2
        assert second.failure is None


async def test_an_item_that_waits_for_its_device_can_be_given_up() -> None:
    sim = Stubborn(refusals=10**9)
    with trio.fail_after(WAIT_S):
        async with pl.Session(planned(sim, alone=True), faults=pl.FaultPolicy(patience=100)) as s:
            sim.lose()
            with trio.move_on_after(0.05) as scope:
                await s.run(feeds(1))
            assert scope.cancelled_caught
            sim.refusals = 0
            assert await right(s, 2)


async def test_an_item_that_is_given_up_while_it_is_fed_again_ends_once(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    sim, observed = SimDevice("sim:a"), Observed()
    again, let_go = threading.Event(), threading.Event()
    fed: list[int] = []

    def feed(*_: object) -> None:
        fed.append(len(fed))
        if len(fed) == 1:
            sim.lose()
        else:
            again.set()
            let_go.wait(WAIT_S)

    async def be_late() -> None:
        await trio.to_thread.run_sync(again.wait, WAIT_S)
        mock_clock.jump(2.0)

    monkeypatch.setattr("plait.scheduler.runtime.opened.copying.Feeds.write", feed)
    monkeypatch.setattr(item, "ALONE_BYTES", 0)
    async with pl.Session(planned(sim, max_in_flight=2), on_event=observed) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_late)
            async with session.stream([feeds(1)], deadline_s=1.0) as results:
                late = (await anext(results)).error
        let_go.set()
        await session.run(feeds(2))
    assert isinstance(late, pl.DeadlineError)
    assert len(fed) == 3
    assert [type(event).__name__ for event in observed.seen].count("ItemDone") == 2


async def test_a_session_can_be_closed_while_items_wait_for_a_device() -> None:
    sim, outcomes = Stubborn(refusals=10**9), list[str]()

    async def run(session: pl.Session) -> None:
        try:
            await session.run(feeds(1))
        except pl.SessionError as error:
            outcomes.append(error.what)

    plan = planned(sim, alone=True, max_in_flight=2)
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            async with pl.Session(plan, faults=pl.FaultPolicy(patience=100)) as session:
                sim.lose()
                for _ in range(3):
                    nursery.start_soon(run, session)
                while sim.asked < 2:
                    await trio.lowlevel.checkpoint()
    assert outcomes == ["the session was closed before the item was done"] * 3


async def test_closing_turns_away_who_waits_for_a_stand_in_that_was_replaced() -> None:
    sim, cpu, observed = Stubborn(refusals=10**9), SteppedDevice("cpu", private=False), Observed()
    refused = trio.Event()

    async def run(session: pl.Session) -> None:
        with suppress(pl.SessionError):  # it ends one way or the other
            await session.run(feeds(1))

    async def wait_for_slot(session: pl.Session) -> None:
        with pytest.raises(pl.SessionError, match="was closed"):
            await session.run(feeds(2))
        refused.set()

    async def go_on() -> None:
        try:
            with trio.fail_after(WAIT_S):
                await refused.wait()
        finally:
            cpu.step()

    plan = pl.plan(halves(), [sim, cpu], pin={"first": "sim:a", "second": "cpu"})
    policy = pl.FaultPolicy(patience=10**9, longest_restart_s=0.01)
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            async with pl.Session(plan, on_event=observed, faults=policy) as session:
                sim.lose()
                nursery.start_soon(run, session)
                while not cpu.queue:
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(wait_for_slot, session)
                await wait_all_tasks_blocked()
                sim.refusals = 0
                await observed.restored.wait()
                nursery.start_soon(go_on)


def test_a_policy_of_negative_numbers_is_refused() -> None:
    with pytest.raises(pl.SessionError, match="grace_s is -1"):
        pl.FaultPolicy(grace_s=-1)
