"""The promises of live streams: what is kept, what is dropped and counted, and what is closed."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.scheduler.reports.html.summary import summarize_profile
from plait.scheduler.runtime.items.input_staging import InputStagingPool
from small_graphs import unary
from trio.testing import MockClock, wait_all_tasks_blocked

Feed = dict[str, np.ndarray[Any, Any]]


def item(value: float) -> Feed:
    return {"x": np.full(4, value, np.float32)}


def session() -> pl.Session:
    return pl.Session(pl.plan(unary("Relu"), max_in_flight=1))


class Camera:
    """An async source that gives what it is told to, and knows whether it was closed."""

    def __init__(self) -> None:
        self.send, self._receive = trio.open_memory_channel[Feed | Exception](100)
        self.is_closed = False

    async def __call__(self) -> AsyncIterator[Feed]:
        try:
            async for given in self._receive:
                if isinstance(given, Exception):
                    raise given
                yield given
        finally:
            self.is_closed = True

    async def gives(self, *given: Feed | Exception) -> None:
        for one in given:
            self.send.send_nowait(one)
        await wait_all_tasks_blocked()


async def test_results_that_nobody_takes_hold_items_back_and_the_newest_stays() -> None:
    camera = Camera()
    async with session() as opened, opened.stream(camera(), keep="latest") as results:
        await camera.gives(*(item(value) for value in range(9)))
        assert opened.status().dropped == 7
        first = await anext(results)
        await camera.gives(item(9))
        assert (first.index, opened.status().dropped) == (0, 8)
        camera.send.close()
        assert [(one.index, one["y"][0]) async for one in results] == [(9, 9)]
    assert opened.profile().totals()["dropped"] == 8
    assert "dropped: 8 more that live sources gave" in opened.profile().table()
    assert ("dropped items", "8 of live sources") in summarize_profile(opened.profile())["facts"]


async def test_what_a_live_source_raises_comes_after_what_is_kept() -> None:
    camera = Camera()
    async with session() as opened, opened.stream(camera(), keep=2) as results:
        await camera.gives(item(0), item(1), item(2), LookupError("unplugged"))
        assert [(await anext(results)).index for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="unplugged"):
            await anext(results)
        assert camera.is_closed


@pytest.mark.parametrize("given", [0, 1, 2, 5])
async def test_a_live_stream_that_is_left_closes_its_source(given: int) -> None:
    camera = Camera()
    async with session() as opened:
        async with opened.stream(camera(), keep=1):
            await camera.gives(*(item(value) for value in range(given)))
        assert camera.is_closed
        assert (await opened.run(item(3)))["y"][0] == 3


async def test_a_live_source_that_blocks_is_read_on_a_thread() -> None:
    go_on, threads = threading.Semaphore(0), set[int]()
    closed = threading.Event()

    def blocking() -> Iterator[Feed]:
        try:
            for value in range(4):
                go_on.acquire()
                threads.add(threading.get_ident())
                yield item(value)
        finally:
            closed.set()

    async with session() as opened, opened.stream(blocking(), keep=9) as results:
        for value in range(3):
            go_on.release()
            assert (await anext(results)).index == value
        go_on.release()
    assert closed.is_set()
    assert threading.get_ident() not in threads


async def test_arrays_are_used_again_for_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[int] = []
    like = InputStagingPool._like

    def watched(pool: InputStagingPool, name: str, array: np.ndarray[Any, Any]) -> Any:
        room = like(pool, name, array)
        rooms.append(room.ctypes.data)
        return room

    monkeypatch.setattr(InputStagingPool, "_like", watched)
    camera = Camera()
    async with session() as opened, opened.stream(camera(), keep=2) as results:
        for value in range(30):
            await camera.gives(item(value), item(value))
            await anext(results)
    assert len(rooms) == 60
    assert len(set(rooms)) <= 2 + 2  # those that are kept, the one that comes, the one that goes


async def test_time_in_the_buffer_counts_for_the_deadline(mock_clock: MockClock) -> None:
    camera = Camera()
    async with session() as opened:
        async with opened.stream(camera(), keep=2, deadline_s=5.0) as results:
            await camera.gives(item(0), item(1))
            first = await anext(results)
            mock_clock.jump(3)
            await camera.gives(item(2))
            mock_clock.jump(3)
            camera.send.close()
            late, last = [one async for one in results]
        assert (first.error, last.error) == (None, None)
        assert isinstance(late.error, pl.DeadlineError)


async def test_items_that_are_wrong_keep_their_places() -> None:
    camera = Camera()
    async with session() as opened, opened.stream(camera(), keep=3) as results:
        await camera.gives({"x": np.zeros(1)}, None, item(2))  # type: ignore[arg-type]
        camera.send.close()
        errors = [type(one.error) async for one in results]
    assert errors == [pl.FeedError, pl.FeedError, type(None)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "keep is 0"),
        ({"keep": "all"}, "keep is 'all'"),
        ({"keep": True}, "keep is True"),
        ({"keep": 2, "drop": "some"}, "drop is 'some'"),
        ({"drop": "oldest"}, "keep is None"),
        ({"keep": "latest", "drop": "newest"}, "keep is 'latest'"),
    ],
)
async def test_what_cannot_be_kept_or_dropped_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    async with session() as opened:
        with pytest.raises(pl.SessionError, match=message):
            opened.stream([], **arguments)
