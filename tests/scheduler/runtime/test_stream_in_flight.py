"""Items of a stream that are alive: as many as asked for, and never one more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from staged import ringed
from trio.testing import MockClock, wait_all_tasks_blocked

SECONDS = st.floats(0.0, 3.0)


def relu() -> pl.Graph:
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2,))))
    return builder.build()


def item(value: float) -> dict[str, Any]:
    return {"x": np.full(2, value, np.float32)}


@dataclass
class Census:
    """Counts the items between the moment their source is asked and the end of their release."""

    pulled: int = 0
    released: int = 0
    most: int = 0

    async def source(self, pauses: list[float]) -> AsyncIterator[dict[str, Any]]:
        for index, pause in enumerate(pauses):
            self.pulled += 1
            self.most = max(self.most, self.pulled - self.released)
            await trio.sleep(pause)
            yield item(index)

    def at_once(self, count: int) -> Iterator[dict[str, Any]]:
        for index in range(count):
            self.pulled += 1
            self.most = max(self.most, self.pulled - self.released)
            yield item(index)


async def work(device: SteppedDevice, seconds: float) -> None:
    """Have a device take so long for each piece of work, until it is cancelled."""
    while True:
        await trio.sleep(seconds if device.queue else 0.01)
        if device.queue:
            device.step()


async def finish(device: SteppedDevice) -> None:
    await wait_all_tasks_blocked()
    while device.queue:
        device.step()
        await wait_all_tasks_blocked()


@settings(max_examples=20)
@given(
    limit=st.integers(1, 5),
    pauses=st.lists(SECONDS, min_size=1, max_size=12),
    kernel_s=SECONDS,
    consumer_s=SECONDS,
    ordered=st.booleans(),
    copy=st.booleans(),
)
def test_no_more_items_are_alive_than_asked_for(
    limit: int, pauses: list[float], kernel_s: float, consumer_s: float, ordered: bool, copy: bool
) -> None:
    """Whoever is slow, the source, the device or the consumer; and all items arrive, unharmed."""
    census, device = Census(), SteppedDevice("stepped", private=False)
    got: list[tuple[int, float]] = []

    async def main() -> None:
        plan = pl.plan(relu(), device, max_in_flight=limit)
        async with pl.Session(plan) as session, trio.open_nursery() as nursery:
            nursery.start_soon(work, device, kernel_s)
            source = census.source(pauses)
            async with session.stream(source, ordered=ordered, copy=copy) as results:
                async for one in results:
                    await trio.sleep(consumer_s)
                    got.append((one.index, float(one["y"][0])))
                    one.release()
                    census.released += 1
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert census.most <= limit
    assert sorted(got) == [(index, float(index)) for index in range(len(pauses))]
    assert not ordered or got == sorted(got)


@pytest.mark.parametrize("limit", [1, 2, 4, 7])
@pytest.mark.parametrize("copies", [1, 2])
async def test_as_many_items_are_alive_as_asked_for_whatever_the_memory(
    limit: int, copies: int
) -> None:
    """With fewer copies of the memory than items, the others wait in line."""
    census, device = Census(), SteppedDevice("stepped")
    plan = ringed(pl.plan(relu(), device, max_in_flight=limit), copies)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        async with session.stream(census.at_once(20)) as results:
            await wait_all_tasks_blocked()
            assert census.pulled == limit
            nursery.start_soon(finish, device)
            async for one in results:
                assert one["y"][0] == one.index
                await wait_all_tasks_blocked()
                assert census.pulled == min(one.index + limit, 20)
                while device.queue:
                    device.step()
                    await wait_all_tasks_blocked()
                nursery.start_soon(finish, device)


async def test_an_item_that_is_released_makes_room_at_once() -> None:
    census, plan = Census(), pl.plan(relu(), max_in_flight=2)
    async with pl.Session(plan) as session, session.stream(census.at_once(9)) as results:
        async for one in results:
            with one:
                await wait_all_tasks_blocked()
                assert census.pulled == min(one.index + 2, 9)
            one.release()
            await wait_all_tasks_blocked()
            assert census.pulled == min(one.index + 3, 9)


async def test_the_source_waits_for_a_slow_consumer_and_the_consumer_for_a_slow_source(
    autojump_clock: trio.abc.Clock,
) -> None:
    census = Census()
    async with pl.Session(pl.plan(relu(), max_in_flight=3)) as session:
        async with session.stream(census.source([0.0] * 30)) as results:
            async for one in results:
                await trio.sleep(2.0)
                assert census.pulled == min(one.index + 3, 30)
        async with session.stream(census.source([2.0] * 30)) as results:
            async for one in results:
                assert trio.current_time() >= 60 + 2.0 * (one.index + 1)


@pytest.mark.parametrize("kind", [np.asarray, memoryview])
async def test_a_source_may_use_its_memory_again_at_once(kind: Callable[[Any], object]) -> None:
    memory = np.zeros(2, np.float32)

    def source() -> Iterator[dict[str, Any]]:
        for value in range(1, 30):
            memory[:] = value
            yield {"x": kind(memory)}

    plan = ringed(pl.plan(relu(), max_in_flight=8), copies=1)
    async with pl.Session(plan) as session, session.stream(source()) as results:
        assert [one["y"][0] async for one in results] == [*range(1, 30)]


async def test_no_memory_for_an_item_that_waits_fails_that_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    device = SteppedDevice("stepped")
    plan = ringed(pl.plan(relu(), device, max_in_flight=2), copies=1)
    async with pl.Session(plan) as session:
        monkeypatch.setattr(
            "plait.scheduler.runtime.items.input_staging.InputStagingPool.room_for", refuse
        )
        async with trio.open_nursery() as nursery:
            async with session.stream([item(0), item(1)]) as results:
                await wait_all_tasks_blocked()
                nursery.start_soon(finish, device)
                with trio.fail_after(WAIT_S):
                    errors = [type(one.error) async for one in results]
            nursery.cancel_scope.cancel()
    assert errors == [type(None), MemoryError]
