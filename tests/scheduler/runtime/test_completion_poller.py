"""Polling of devices on the loop, and where it is left to their threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from fake_devices import SteppedDevice
from plait.devices.event import Event
from plait.scheduler.runtime import completion_poller
from plait.scheduler.runtime.completion_poller import (
    MOST_SKIPPED,
    PATIENCE_NS,
    CompletionPoller,
)
from plait.scheduler.runtime.loop_inbox import LoopInbox


class PolledDevice:
    """A device whose work is over after a number of polls, each of which takes a while.

    Attributes
    ----------
    left : int
        Polls until all work is over.
    polled, watched : int
    is_left : bool
        Whether the poller has gone.
    """

    name = "polled"

    def __init__(self, poll_ns: int = 1000) -> None:
        self.now_ns = self.left = self.polled = self.watched = 0
        self.is_left = False
        self._poll_ns = poll_ns
        self._attendant: Callable[[], bool] = lambda: False

    def attend(self, attendant: Callable[[], bool]) -> None:
        self._attendant = attendant

    def leave(self, attendant: Callable[[], bool]) -> None:
        assert attendant == self._attendant
        self.is_left = True

    def poll(self) -> bool:
        self.now_ns += self._poll_ns
        self.polled += 1
        self.left = max(self.left - 1, 0)
        return self.left > 0

    def watch(self) -> None:
        self.watched += 1
        self.left = 0

    def submit(self, polls: int) -> bool:
        """Submit work that is over after so many polls; say whether it will be polled for."""
        self.left += polls
        return self._attendant()


@pytest.fixture
def device() -> PolledDevice:
    return PolledDevice()


async def opened(device: PolledDevice) -> CompletionPoller:
    poller = CompletionPoller(lambda: device.now_ns)
    poller.add(device)  # type: ignore[arg-type]
    await trio.testing.wait_all_tasks_blocked()
    assert not device.polled, "before there is work"
    return poller


async def test_short_work_is_polled_for_until_it_is_over(device: PolledDevice) -> None:
    poller = await opened(device)
    for _ in range(3):
        device.polled = 0
        assert device.submit(5)
        await trio.testing.wait_all_tasks_blocked()
        assert (device.polled, device.watched) == (5, 0)
    await poller.close()
    assert device.is_left


async def test_long_work_is_left_to_the_threads(device: PolledDevice) -> None:
    poller = await opened(device)
    assert device.submit(10_000)
    await trio.testing.wait_all_tasks_blocked()
    assert device.watched == 1
    assert device.now_ns == pytest.approx(PATIENCE_NS, rel=0.02)
    await poller.close()


async def test_what_comes_meanwhile_is_polled_for_as_long_as_the_first(
    device: PolledDevice,
) -> None:
    poller = await opened(device)
    assert device.submit(150)
    for _ in range(3):
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert device.submit(100)
    await trio.testing.wait_all_tasks_blocked()
    assert device.watched == 0
    assert device.now_ns > 2 * PATIENCE_NS
    await poller.close()


async def test_the_more_often_it_was_in_vain_the_less_is_polled(device: PolledDevice) -> None:
    poller = await opened(device)
    skipped = []
    for _ in range(9):
        count = 0
        while not device.submit(10_000):
            count += 1
            device.left = 0  # a thread waited for it
        await trio.testing.wait_all_tasks_blocked()
        skipped.append(count)
    assert skipped == [0, 1, 3, 7, 15, 31, 63, MOST_SKIPPED, MOST_SKIPPED]
    # Once it was worth its while, it is at once.
    while not device.submit(0):
        pass
    device.left = 2
    await trio.testing.wait_all_tasks_blocked()
    assert device.submit(2)
    await trio.testing.wait_all_tasks_blocked()
    await poller.close()


async def test_other_tasks_run_between_polls(device: PolledDevice) -> None:
    poller = await opened(device)
    device.submit(50)
    turns = 0
    while device.left:
        await trio.lowlevel.checkpoint()
        turns += 1
    assert turns >= 50
    await poller.close()


async def test_an_item_whose_end_is_polled_lands_in_that_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is told by way of the inbox, which would take another turn."""

    class Polled(SteppedDevice):
        """Does all that was submitted when it is polled."""

        def attend(self, attendant: Callable[[], bool]) -> None:
            self.attendant = attendant

        def leave(self, attendant: Callable[[], bool]) -> None:
            del self.attendant

        def submit(self, *arguments: Any) -> Event:
            event = super().submit(*arguments)
            assert self.attendant()
            return event

        def copy(self, *arguments: Any) -> Event:
            event = super().copy(*arguments)
            assert self.attendant()
            return event

        def poll(self) -> bool:
            if self.queue:
                self.step()
            return bool(self.queue)

        def watch(self) -> None:
            raise AssertionError("it was all over at once")

    posted, post = [], LoopInbox.post

    def noting(inbox: LoopInbox, call: Callable[[], object]) -> None:
        posted.append(call)
        post(inbox, call)

    monkeypatch.setattr(LoopInbox, "post", noting)
    monkeypatch.setattr(completion_poller, "PATIENCE_NS", 10**12)
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    async with pl.Session(pl.plan(b.build(), Polled("polled"))) as session:
        results = await session.run({"x": np.array([-1, 2], np.float32)})
    assert results["y"].tolist() == [0, 2]
    assert posted == []


async def test_devices_that_cannot_be_polled_cost_nothing() -> None:
    poller = CompletionPoller()
    before = trio.lowlevel.current_statistics().tasks_living
    poller.add(pl.device("cpu"))
    assert trio.lowlevel.current_statistics().tasks_living == before
    await poller.close()
