"""Live streams for synchronous code and asyncio, whose consumers hold items back as trio's do."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from small_graphs import unary

Feed = dict[str, np.ndarray[Any, Any]]
FRAMES = 9


def plan() -> pl.Plan:
    return pl.plan(unary("Relu"), max_in_flight=1)


def item(value: float) -> Feed:
    return {"x": np.full(4, value, np.float32)}


class Camera:
    """A source that blocks: it gives one frame, and the others when it may go on."""

    def __init__(self) -> None:
        self.go_on, self.is_over, self.is_closed = (threading.Event() for _ in range(3))

    def __iter__(self) -> Iterator[Feed]:
        return self._frames()

    def _frames(self) -> Iterator[Feed]:
        try:
            yield item(0)
            self.go_on.wait(WAIT_S)
            yield from map(item, range(1, FRAMES))
            self.is_over.set()
        finally:
            self.is_closed.set()


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread; there is nothing to be told by."""
    while not condition():
        threading.Event().wait(0.001)


def test_synchronous_code_gets_the_latest_when_it_asks() -> None:
    camera = Camera()
    with pl.BlockingSession(plan()) as session:
        results = session.stream(camera, keep="latest")
        first = next(results)
        camera.go_on.set()
        assert camera.is_over.wait(WAIT_S)
        until(lambda: session.status().dropped == FRAMES - 2)
        assert [(one.index, one["y"][0]) for one in (first, *results)] == [(0, 0), (8, 8)]
        assert list(results) == []
    assert session.profile().dropped == FRAMES - 2


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_live_stream_that_is_closed_or_dropped_closes_its_source(is_dropped: bool) -> None:
    camera = Camera()
    with pl.BlockingSession(plan()) as session:
        results = session.stream(camera, keep=1)
        assert next(results).index == 0
        camera.go_on.set()  # a read that is under way is waited for
        if is_dropped:
            del results
            gc.collect()
        else:
            results.close()
            assert camera.is_closed.is_set()
        assert camera.is_closed.wait(WAIT_S)
        assert session.run(item(3))["y"][0] == 3


def test_what_a_source_raises_is_raised_in_synchronous_code() -> None:
    def failing() -> Iterator[Feed]:
        yield item(0)
        raise LookupError("unplugged")

    with pl.BlockingSession(plan()) as session:
        results = session.stream(failing(), keep=1)
        assert next(results).index == 0
        with pytest.raises(LookupError, match="unplugged"):
            next(results)


class AsyncCamera:
    """The same for asyncio; it yields in the tasks of its loop."""

    def __init__(self) -> None:
        self.go_on, self.loop = asyncio.Event(), asyncio.get_running_loop()
        self.is_closed = False

    async def frames(self) -> AsyncIterator[Feed]:
        try:
            again = item(0)
            yield again
            await self.go_on.wait()
            for value in range(1, FRAMES):
                assert asyncio.get_running_loop() is self.loop
                again["x"][:] = value
                yield again
        finally:
            self.is_closed = True


def test_asyncio_gets_the_latest_when_it_asks() -> None:
    async def main() -> list[int]:
        camera = AsyncCamera()
        async with pl.AsyncioSession(plan()) as session:
            async with session.stream(camera.frames(), keep="latest") as results:
                seen = [(one := await anext(results)).index]
                camera.go_on.set()
                # There is nothing to be told by.
                while (await session.status()).dropped < FRAMES - 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                assert one["y"][0] == 0
                async for one in results:
                    seen += [one.index, int(one["y"][0])]
            assert camera.is_closed
        return seen

    assert asyncio.run(main(), debug=True) == [0, 8, 8]


def test_a_stream_that_asyncio_leaves_or_cancels_closes_its_source() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan()) as session:
            for is_cancelled in (False, True):
                camera = AsyncCamera()
                async with session.stream(camera.frames(), keep=1) as results:
                    assert (await anext(results)).index == 0
                    if is_cancelled:
                        waiting = asyncio.create_task(anext(results))
                        await asyncio.sleep(0)
                        waiting.cancel()
                        with pytest.raises(asyncio.CancelledError):
                            await waiting
                assert camera.is_closed
            assert (await session.run(item(3)))["y"][0] == 3

    asyncio.run(main(), debug=True)


def test_asyncio_streams_from_sources_that_block() -> None:
    camera = Camera()
    camera.go_on.set()

    async def main() -> list[int]:
        async with pl.AsyncioSession(plan()) as session:
            async with session.stream(camera, keep=FRAMES) as results:
                return [one.index async for one in results]

    assert asyncio.run(main(), debug=True) == list(range(FRAMES))
    assert camera.is_closed.is_set()
