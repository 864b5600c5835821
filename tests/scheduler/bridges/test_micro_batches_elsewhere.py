"""Micro-batches of sessions whose loop runs on a thread: asyncio, and synchronous threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.scheduler.bridges.blocking_session import get_loop
from plait.scheduler.bridges.loop_thread import LoopThread

Array = np.ndarray[Any, Any]

BAD = 1000
runs: list[list[float]] = []
entered, leave = threading.Event(), threading.Event()


@pl.operator(name="test_micro_batches_elsewhere.noted")
def noted(x: Array) -> Array:
    runs.append(x[:, 0].tolist())
    if (x == -1).any():
        entered.set()
        assert leave.wait(WAIT_S)
    if (x >= BAD).any():
        raise ValueError("bad")
    return 2 * x


def planned(max_in_flight: int = 2) -> pl.Plan:
    builder = pl.GraphBuilder("doubling")
    builder.output("y", builder.call(noted, builder.input("x", "float32", (4, 2))))
    return pl.plan(builder.build(), ["cpu"], max_in_flight=max_in_flight)


def row(value: float) -> dict[str, Array]:
    return {"x": np.full((1, 2), value, "float32")}


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    runs.clear()
    entered.clear()
    leave.clear()


def test_tasks_of_asyncio_get_their_own_rows() -> None:
    numbers = [*range(17), BAD]

    async def main() -> list[Any]:
        async with (
            pl.AsyncioSession(planned()) as session,
            pl.MicroBatches(session, size=4) as batches,
        ):
            asked = [batches.run(row(n), deadline_s=WAIT_S, client=n % 3) for n in numbers]
            found = await asyncio.gather(*asked, return_exceptions=True)
            with pytest.raises(pl.FeedError, match="no value for input 'x'"):
                await batches.run({})
            assert (await session.run({"x": np.ones((4, 2), "float32")}))["y"].sum() == 16
        assert batches.status().items == len(numbers)
        return found

    *found, failed = asyncio.run(main())
    assert [one["y"].tolist() for one in found] == [[[2 * n] * 2] for n in range(17)]
    assert isinstance(failed, pl.KernelError)


def test_a_task_of_asyncio_that_is_cancelled_disturbs_no_other() -> None:
    async def main() -> Any:
        async with (
            pl.AsyncioSession(planned(1)) as session,
            pl.MicroBatches(session, size=4) as batches,
        ):
            first = asyncio.create_task(batches.run(row(-1)))
            await asyncio.to_thread(entered.wait, WAIT_S)
            others = [asyncio.create_task(batches.run(row(n))) for n in range(4)]
            while batches.status().waiting < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
            others[1].cancel()
            await asyncio.wait((others[1],))
            assert others[1].cancelled()
            leave.set()
            await first
            return [(await others[n])["y"].tolist() for n in (0, 2, 3)]

    assert asyncio.run(main()) == [[[2 * n] * 2] for n in (0, 2, 3)]
    assert sorted(set(runs[1])) == [0, 2, 3]


def test_closing_fails_tasks_of_asyncio_that_wait() -> None:
    async def main() -> list[Any]:
        async with pl.AsyncioSession(planned(1)) as session:
            async with pl.MicroBatches(session, size=4) as batches:
                asked = [asyncio.create_task(batches.run(row(n))) for n in (-1, 1, 2)]
                await asyncio.to_thread(entered.wait, WAIT_S)
                leave.set()
            found = await asyncio.gather(*asked, return_exceptions=True)
            with pytest.raises(pl.SessionError, match="closed"):
                await batches.run(row(1))
            assert (await session.run({"x": np.ones((4, 2), "float32")}))["y"].sum() == 16
        return found

    for one in asyncio.run(main()):
        assert isinstance(one, dict) or type(one) is pl.SessionError


def test_threads_get_their_own_rows() -> None:
    numbers = [*range(31), BAD]
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        try:
            found[number] = batches.run(row(number), client=number % 2)["y"].tolist()
        except pl.KernelError as error:
            found[number] = error

    with (
        pl.BlockingSession(planned()) as session,
        pl.BlockingMicroBatches(session, size=4, max_delay_s=0.001) as batches,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(ask, numbers))
        assert session.status().failed == 1
    assert isinstance(found.pop(BAD), pl.KernelError)
    assert found == {n: [[2 * n] * 2] for n in range(31)}
    assert batches.status().items == 32
    with pytest.raises(pl.SessionError, match="closed"):
        batches.run(row(1))


def test_threads_in_the_queue_fail_when_it_is_closed() -> None:
    found: list[Any] = []

    def ask(number: int) -> None:
        try:
            found.append(batches.run(row(number)))
        except pl.SessionError as error:
            found.append(error)

    with pl.BlockingSession(planned(1)) as session:
        with pl.BlockingMicroBatches(session, size=4) as batches:
            threads = [threading.Thread(target=ask, args=(n,)) for n in (-1, 1, 2)]
            threads[0].start()
            assert entered.wait(WAIT_S)
            for thread in threads[1:]:
                thread.start()
            leave.set()
        for thread in threads:
            thread.join()
    assert len(found) == 3
    assert all(isinstance(one, dict) or type(one) is pl.SessionError for one in found)


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
def test_a_graph_that_takes_no_batches_is_refused_and_the_session_goes_on(kind: str) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(planned()) as session:
            with pytest.raises(pl.SessionError, match="5 items do not fit into a batch of 4"):
                await pl.MicroBatches(session, size=5).__aenter__()
            await session.run({"x": np.ones((4, 2), "float32")})

    if kind == "asyncio":
        asyncio.run(main())
        return
    with pl.BlockingSession(planned()) as session:
        with pytest.raises(pl.SessionError, match="5 items do not fit into a batch of 4"):
            pl.BlockingMicroBatches(session, size=5).__enter__()
        session.run({"x": np.ones((4, 2), "float32")})


def test_batches_that_block_are_not_for_trio_tasks_and_open_once() -> None:
    async def main() -> None:
        with pytest.raises(pl.SessionError, match="would block the trio task"):
            pl.BlockingMicroBatches(session, size=4).__enter__()

    with pl.BlockingSession(planned()) as session:
        trio.run(main)
        with pl.BlockingMicroBatches(session, size=4) as batches:
            with pytest.raises(pl.SessionError, match="open already"):
                batches.__enter__()
        with pytest.raises(pl.SessionError, match="not open"):
            pl.BlockingMicroBatches(session, size=4).status()


def test_items_that_come_together_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, called = threading.Event(), list[object]()
    call_soon = LoopThread.call_soon

    def count(self: LoopThread[Any], function: Callable[[], object]) -> None:
        called.append(function)
        call_soon(self, function)

    def read(session: pl.BlockingSession) -> Iterator[dict[str, Array]]:
        get_loop(session).call_soon(gate.wait)
        called.clear()
        for number in range(32):
            yield row(number)
        gate.set()
        assert len(called) == 1

    monkeypatch.setattr(LoopThread, "call_soon", count)
    with pl.BlockingSession(planned()) as session:
        with session.stream(read(session), batch=4, max_in_flight=40) as results:
            assert [item["y"][0, 0] for item in results] == [2 * n for n in range(32)]
