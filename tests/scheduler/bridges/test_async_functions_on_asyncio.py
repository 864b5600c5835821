"""Async functions of a plan that an asyncio program runs are awaited on its own loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import until
from plait.devices.errors import KernelError

Array = np.ndarray[Any, Any]
VECTOR = pl.TensorSpec("float32", ("n",))
caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")
seen: list[Any] = []
under_way: list[float] = []


@pl.operator(VECTOR, inputs=[VECTOR], name="test_on_asyncio.turns", concurrency=3)
async def turns(x: Array) -> Array:
    under_way.append(float(x[0]))
    seen.append((len(under_way), threading.get_ident(), caller.get()))
    try:
        for _ in range(3):
            await asyncio.sleep(0)
        if x[0] < 0:
            raise ValueError("negative")
    finally:
        under_way.remove(float(x[0]))
    return x + 1


@pl.operator(VECTOR, inputs=[VECTOR], name="test_on_asyncio.for_ever")
async def for_ever(x: Array) -> Array:
    under_way.append(float(x[0]))
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await asyncio.sleep(0)  # what it does when it is cancelled takes a while
        under_way.remove(float(x[0]))
    return x


@pl.operator(VECTOR, inputs=[VECTOR], name="test_on_asyncio.of_trio")
async def of_trio(x: Array) -> Array:
    await trio.lowlevel.checkpoint()
    return x


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()
    under_way.clear()


def planned(function: Any, max_in_flight: int = 8) -> pl.Plan:
    b = pl.GraphBuilder("on asyncio")
    b.output("y", b.op("Neg", b.call(function, b.input("x", "float32", (2,)), name="node")))
    return pl.plan(b.build(), max_in_flight=max_in_flight)


def item(value: float) -> dict[str, Array]:
    return {"x": np.full(2, value, np.float32)}


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main, debug=True)


def test_they_run_on_the_loop_of_the_caller_so_many_at_once() -> None:
    async def main() -> list[float]:
        caller.set("opener")
        async with pl.AsyncioSession(planned(turns)) as session:
            await asyncio.gather(*(session.run(item(value)) for value in range(20)))
            async with session.stream(item(value) for value in range(20)) as results:
                return [float(one["y"][0]) async for one in results]

    assert run(main()) == [-(value + 1.0) for value in range(20)]
    assert len(seen) == 40
    assert {one[1:] for one in seen} == {(threading.get_ident(), "opener")}
    assert max(count for count, *_ in seen) <= 3


def test_an_item_that_fails_fails_alone() -> None:
    async def main() -> list[Any]:
        async with pl.AsyncioSession(planned(turns)) as session:
            async with session.stream(item(value) for value in (1, -2, 3)) as results:
                return [one.error or float(one["y"][0]) async for one in results]

    first, error, last = run(main())
    assert (first, last) == (-2, -4)
    assert isinstance(error, KernelError)
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("way", ["task", "deadline", "stream", "session"])
def test_whoever_gives_an_item_up_waits_for_the_end_of_its_call(way: str) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(planned(for_ever)) as session:
            if way == "deadline":
                with pytest.raises(pl.DeadlineError):
                    await session.run(item(1), deadline_s=0.01)
            elif way == "stream":
                async with session.stream(item(value) for value in range(4)):
                    await until(lambda: len(under_way) == 4)
            else:
                task = asyncio.create_task(session.run(item(1)))
                await until(lambda: under_way)
                if way == "task":
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            assert way == "session" or not under_way
        assert not under_way
        if way == "session":
            with pytest.raises(pl.SessionError):
                await task
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_what_is_for_trio_is_told_apart() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(planned(of_trio)) as session:
            await session.run(item(1))

    with pytest.raises(KernelError, match="bad yield") as caught:
        run(main())
    assert "AsyncioSession" in (caught.value.fix or "")
