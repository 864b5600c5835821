"""Cancellation of asyncio tasks at every moment: of their loop, and of the session's."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
from asyncio_moments import (
    cancelled_here,
    cancelled_often,
    cancelled_there,
    each_moment,
    run,
    watched,
)
from plait.scheduler.runtime.events import Observer
from resources import held, left_since

__all__ = ["watched"]

Feeds = dict[str, np.ndarray[Any, Any]]
LARGE = 263_000
"""More floats than are copied on the loop."""

ways = pytest.mark.parametrize("cancelled", [cancelled_here, cancelled_often, cancelled_there])
pytestmark = pytest.mark.usefixtures("watched")


def planned(length: int | str = 4, second: str = "cpu:1", max_in_flight: int = 1) -> pl.Plan:
    """Return a plan for y = 2 relu(x), in two steps."""
    builder = pl.GraphBuilder("two steps")
    h = builder.op("Relu", builder.input("x", "float32", (length,)), name="first")
    builder.output("y", builder.op("Add", h, h, name="second"))
    pins = {"second": second}
    return pl.plan(builder.build(), ["cpu", second], pin=pins, max_in_flight=max_in_flight)


def feeds(length: int, first: float = 0) -> Feeds:
    return {"x": np.arange(first, first + length, dtype=np.float32)}


async def run_one(session: pl.AsyncioSession, length: int = 4) -> None:
    outputs = await session.run(feeds(length))
    assert np.array_equal(outputs["y"], 2 * np.arange(length))


async def nothing_runs(session: pl.AsyncioSession, length: int = 4) -> None:
    """Check that a session does nothing for anybody, and then that it can."""
    loop = session._open_loop()
    tasks: Future[int] = Future()
    loop.call_soon(lambda: tasks.set_result(len(loop._nursery.child_tasks)))  # type: ignore[union-attr]
    assert await asyncio.wrap_future(tasks) == 0
    await run_one(session, length)


class Source:
    """Sources of a few items, which know how many are open."""

    def __init__(self, items: int) -> None:
        self._items = items
        self.open = 0

    def given(self) -> Iterator[Feeds]:
        self.open += 1
        try:
            for index in range(self._items):
                yield feeds(4, index)
        finally:
            self.open -= 1

    async def given_later(self) -> AsyncIterator[Feeds]:
        self.open += 1
        try:
            for index in range(self._items):
                await asyncio.sleep(0)
                yield feeds(4, index)
        finally:
            await _even_if_cancelled()
            self.open -= 1


async def _even_if_cancelled() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def consume(results: pl.AsyncioResults, first: int = 0) -> int:
    """Check the rest of a stream's results; return how many there were."""
    index = first
    async for item in results:
        assert item.index == index
        assert item["y"].tolist() == [2.0 * (index + k) for k in range(4)]
        index += 1
    return index - first


def left_but_for_asyncio(before: Counter[str]) -> list[str]:
    """Return what is left; asyncio keeps the threads of its executor as long as it runs."""
    return [name for name in left_since(before) if not name.startswith("thread asyncio_")]


@ways
@pytest.mark.parametrize(
    ("length", "observer"), [(4, None), (4, lambda _: None), (LARGE, None), ("n", None)]
)
def test_a_run_cancelled_at_any_moment_leaves_the_session_usable(
    cancelled: Any, length: int | str, observer: Observer | None
) -> None:
    """With one slot: if that were lost, the next run would hang."""
    plan, lengths = planned(length), iter(range(4, 10_000))
    before = held()

    def fitting() -> int:
        return length if isinstance(length, int) else next(lengths)

    async def main() -> None:
        async with pl.AsyncioSession(plan, on_event=observer) as session:
            moments = await each_moment(
                cancelled,
                lambda: run_one(session, fitting()),
                lambda: nothing_runs(session, fitting()),
            )
        is_at_once = length == 4 and observer is None  # of which the loop does not hear
        assert moments > (0 if is_at_once else 2)  # of one that ends soon there are few

    run(main)
    assert not left_since(before)


@pytest.mark.slow
@ways
@pytest.mark.parametrize("kind", ["given", "given_later"])
@pytest.mark.parametrize("keep", [None, 3])
def test_a_stream_cancelled_at_any_moment_leaves_the_session_usable(
    cancelled: Any, kind: str, keep: int | None
) -> None:
    source, before = Source(3), held()

    async def stream(session: pl.AsyncioSession) -> None:
        given = getattr(source, kind)()
        async with session.stream(given, max_in_flight=2, keep=keep) as results:
            assert await consume(results) == 3

    async def check(session: pl.AsyncioSession) -> None:
        assert source.open == 0
        await nothing_runs(session)

    async def main() -> None:
        async with pl.AsyncioSession(planned(max_in_flight=2)) as session:
            moments = await each_moment(
                cancelled, partial(stream, session), partial(check, session)
            )
        assert moments > 10

    run(main)
    assert not left_since(before)


@pytest.mark.parametrize("observer", [None, lambda _: None], ids=["", "observed"])
@pytest.mark.parametrize("cancelled", [cancelled_here, cancelled_there])
def test_a_consumer_that_gives_up_waiting_at_any_moment_loses_no_result(
    cancelled: Any, observer: Observer | None
) -> None:
    """As `asyncio.wait_for` has it do; of items of which nobody is told the loop may not hear."""

    async def main() -> None:
        async with pl.AsyncioSession(planned(), on_event=observer) as session:
            moment, struck = 0, True
            while struck:
                async with session.stream(Source(3).given_later()) as results:
                    got: list[int] = []

                    async def take(results: Any = results, got: list[int] = got) -> None:
                        got.append((await anext(results)).index)

                    struck = await cancelled(moment, take)
                    assert got in ([], [0])
                    assert await consume(results, first=len(got)) == 3 - len(got)
                moment += 1
            assert moment > (0 if observer is None else 3)

    run(main)


@pytest.mark.parametrize("wanted", range(4))
@pytest.mark.parametrize("kind", ["given", "given_later"])
@pytest.mark.parametrize("keep", [None, 3])
def test_a_consumer_may_leave_after_any_result(wanted: int, kind: str, keep: int | None) -> None:
    source, before = Source(3), held()

    async def main() -> None:
        async with pl.AsyncioSession(planned(max_in_flight=2)) as session:
            given = getattr(source, kind)()
            async with session.stream(given, max_in_flight=2, keep=keep) as results:
                for _ in range(wanted):
                    await anext(results)
            assert source.open == 0
            await nothing_runs(session)

    run(main)
    assert not left_since(before)


def test_leaving_a_stream_waits_for_its_source_to_close() -> None:
    async def main() -> None:
        closing, closed = asyncio.Event(), asyncio.Event()

        async def source() -> AsyncIterator[Feeds]:
            try:
                yield feeds(4)
                await asyncio.Event().wait()
            finally:
                closing.set()
                await closed.wait()

        async def consume_one(session: pl.AsyncioSession) -> None:
            async with session.stream(source(), max_in_flight=2) as results:
                await anext(results)

        async with pl.AsyncioSession(planned()) as session:
            leaving = asyncio.create_task(consume_one(session))
            await closing.wait()
            for _ in range(20):
                await run_one(session)
            assert not leaving.done()
            closed.set()
            await leaving

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cancelled", "second", "stride"),
    [
        (cancelled_here, "cpu:1", 17),
        (cancelled_often, "cpu:1", 23),
        (cancelled_there, "cpu:1", 29),
        (cancelled_here, "worker:0", 67),
        (cancelled_there, "worker:0", 151),
    ],
)
def test_a_session_cancelled_at_any_moment_leaves_nothing_behind(
    cancelled: Any, second: str, stride: int
) -> None:
    """At every `stride`-th of them, a prime number, so that all kinds of moments are met."""
    plan = planned(second=second)
    run(partial(life, plan))  # what is imported and started once is not left behind
    before = held()

    async def main() -> None:
        with_loop = held()

        async def check() -> None:
            assert not left_but_for_asyncio(with_loop)

        moments = await each_moment(cancelled, partial(life, plan), check, stride)
        assert moments > 10

    run(main)
    assert not left_since(before)


async def life(plan: pl.Plan) -> None:
    """Open a session, use it, leave a stream early, and close it."""
    async with pl.AsyncioSession(plan) as session:
        await run_one(session)
        async with session.stream(Source(3).given_later(), max_in_flight=2) as results:
            await anext(results)


def test_tasks_that_are_left_when_the_loop_ends_are_ended() -> None:
    before = held()

    async def forever(session: pl.AsyncioSession) -> None:
        while True:
            await run_one(session)

    async def hold(opened: asyncio.Event) -> None:
        async with pl.AsyncioSession(planned()) as session, asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(forever(session))
            opened.set()

    async def main() -> None:
        opened = asyncio.Event()
        task = asyncio.create_task(hold(opened))
        await opened.wait()
        await asyncio.sleep(0)
        assert not task.done()

    run(main)
    assert not left_since(before)
