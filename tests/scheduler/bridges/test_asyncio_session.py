"""Sessions for asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_devices import SteppedDevice
from patience import until
from small_graphs import X, unary

Array = np.ndarray[Any, Any]


@pl.operator(name="test_asyncio_session.picky")
def picky(x: Array) -> Array:
    if x[0] < 0:
        raise ValueError("negative")
    return x + 1


def plan(max_in_flight: int = 1) -> pl.Plan:
    builder = pl.GraphBuilder("picky")
    builder.output("y", builder.call(picky, builder.input("x", "float32", (2,))))
    return pl.plan(builder.build(), max_in_flight=max_in_flight)


def stepped() -> tuple[SteppedDevice, pl.Plan]:
    device = SteppedDevice("stepped")
    return device, pl.plan(unary("Relu"), device)


def item(value: float) -> dict[str, Array]:
    return {"x": np.full(2, value, np.float32)}


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main, debug=True)


def test_items_run_from_tasks_at_once() -> None:
    async def main() -> list[dict[str, Array]]:
        async with pl.AsyncioSession(plan(2)) as session:
            return await asyncio.gather(*(session.run(item(value)) for value in range(20)))

    assert [outputs["y"][0] for outputs in run(main())] == [value + 1 for value in range(20)]


def test_a_failed_item_raises_what_went_wrong() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan()) as session:
            with pytest.raises(pl.KernelError, match="negative"):
                await session.run(item(-1))
            assert (await session.run(item(1)))["y"][0] == 2

    run(main())


def test_what_opening_raises_is_raised() -> None:
    async def main() -> None:
        with pytest.raises(pl.PlaitError, match="seed"):
            async with pl.AsyncioSession(plan(), seed=-1):
                pytest.fail("it opened")

    run(main())


def test_a_session_that_is_not_open_says_so() -> None:
    async def main() -> None:
        session = pl.AsyncioSession(plan())
        with pytest.raises(pl.SessionError, match="not open"):
            await session.run(item(1))
        async with session:
            await session.run(item(1))
            with pytest.raises(pl.SessionError, match="open already"):
                await session.__aenter__()
        assert len(session.profile().records) == 1

    run(main())


def test_cancelling_a_task_ends_its_item_first() -> None:
    async def main() -> None:
        device, planned = stepped()
        async with pl.AsyncioSession(planned) as session:
            task = asyncio.create_task(session.run({"x": X}))
            await until(lambda: device.queue)
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "its copy is still queued"
            device.step()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = asyncio.create_task(session.run({"x": X}))
            while not again.done():
                await until(lambda: device.queue or again.done())
                if device.queue:
                    device.step()
            assert (await again)["y"].shape == X.shape

    run(main())


def test_the_status_says_what_is_under_way() -> None:
    async def main() -> None:
        device, planned = stepped()
        async with pl.AsyncioSession(planned) as session:
            task = asyncio.create_task(session.run({"x": X}))
            await until(lambda: device.queue)
            status = await session.status()
            assert (status.done, status.in_flight) == (0, 1)
            while not task.done():
                await until(lambda: device.queue or task.done())
                if device.queue:
                    device.step()
            assert (await session.status()).done == 1
        with pytest.raises(pl.SessionError, match="not open"):
            await session.status()

    run(main())


def test_cancelling_while_it_opens_leaves_nothing() -> None:
    async def main() -> None:
        before = threading.active_count()

        async def use() -> None:
            async with pl.AsyncioSession(plan()) as session:
                await session.run(item(1))

        for moment in range(12):
            task = asyncio.create_task(use())
            for _ in range(moment):
                await asyncio.sleep(0)
            if task.cancel():  # else it was over by then: threads of its own are at work
                with pytest.raises(asyncio.CancelledError):
                    await task
        names = {thread.name for thread in threading.enumerate()}
        assert not any(name.startswith("plait") for name in names)
        assert before >= 1

    run(main())


async def items_later(count: int) -> AsyncIterator[dict[str, Array]]:
    for value in range(count):
        await asyncio.sleep(0)
        yield item(value)


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("later", [False, True])
def test_a_stream_gives_results_in_order(limit: int, later: bool) -> None:
    async def main() -> list[float]:
        source = items_later(20) if later else [item(value) for value in range(20)]
        async with pl.AsyncioSession(plan(limit)) as session:
            async with session.stream(source) as results:
                return [float(one["y"][0]) async for one in results]

    assert run(main()) == [value + 1 for value in range(20)]


def test_a_stream_has_the_options_that_it_has_under_trio() -> None:
    async def main() -> None:
        builder = pl.GraphBuilder("rows")
        builder.output("y", builder.op("Neg", builder.input("x", "float32", ("n",))))
        async with pl.AsyncioSession(pl.plan(builder.build())) as session:
            options: dict[str, Any] = {"batch": 2, "ordered": False, "max_in_flight": 6}
            async with session.stream(items_later(7), deadline_s=60.0, **options) as results:
                got = {one.index: one["y"].tolist() async for one in results}
            assert got == {value: [-value] * 2 for value in range(7)}
            with pytest.raises(pl.DeadlineError):
                await session.run({"x": np.ones(5, np.float32)}, deadline_s=1e-9)

    run(main())


def test_the_source_of_a_stream_waits_for_its_consumer() -> None:
    pulled = 0

    def counting() -> Iterator[dict[str, Array]]:
        nonlocal pulled
        for value in range(12):
            pulled += 1
            yield item(value)

    async def main() -> None:
        async with pl.AsyncioSession(plan(3)) as session:
            async with session.stream(counting()) as results:
                async for one in results:
                    for _ in range(5):
                        await asyncio.sleep(0)
                    assert pulled <= one.index + 3
        assert pulled == 12

    run(main())


def test_errors_of_items_and_of_the_source_come_in_their_places() -> None:
    async def failing() -> AsyncIterator[dict[str, Array]]:
        yield item(0)
        yield item(-1)
        yield item(2)
        raise LookupError("the camera is gone")

    async def main() -> None:
        async with pl.AsyncioSession(plan()) as session:
            async with session.stream(failing(), on_error="raise") as results:
                assert (await anext(results))["y"][0] == 1
                with pytest.raises(pl.KernelError, match="negative"):
                    await anext(results)
                assert (await anext(results))["y"][0] == 3
                with pytest.raises(LookupError, match="camera"):
                    await anext(results)
                with pytest.raises(StopAsyncIteration):
                    await anext(results)

    run(main())


def test_leaving_a_stream_closes_its_source_and_leaves_the_session_usable() -> None:
    closed = 0

    async def endless() -> AsyncIterator[dict[str, Array]]:
        nonlocal closed
        try:
            while True:
                await asyncio.sleep(0)
                yield item(1)
        finally:
            closed += 1

    async def main() -> None:
        async with pl.AsyncioSession(plan(2)) as session:
            for n_taken in range(4):
                async with session.stream(endless()) as results:
                    for _ in range(n_taken):
                        await anext(results)
            assert closed in (3, 4)  # a generator that was never begun has nothing to close
            assert (await session.run(item(1)))["y"][0] == 2

    run(main())


def test_a_consumer_may_be_cancelled_at_any_moment() -> None:
    async def consume(session: pl.AsyncioSession) -> None:
        async with session.stream(items_later(4), max_in_flight=2) as results:
            async for _ in results:
                await asyncio.sleep(0)

    async def main() -> None:
        async with pl.AsyncioSession(plan(2)) as session:
            for moment in range(40):
                task = asyncio.create_task(consume(session))
                for _ in range(moment):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.result() is None
            assert (await session.run(item(1)))["y"][0] == 2

    run(main())


def test_two_streams_and_runs_share_a_session() -> None:
    async def consume(session: pl.AsyncioSession) -> list[float]:
        async with session.stream(items_later(9), batch=None) as results:
            return [float(one["y"][0]) async for one in results]

    async def main() -> None:
        async with pl.AsyncioSession(plan(2)) as session:
            both = asyncio.gather(consume(session), consume(session))
            single = await session.run(item(5))
            assert list(await both) == [[value + 1 for value in range(9)]] * 2
            assert single["y"][0] == 6

    run(main())


def test_streams_that_cannot_be_are_refused() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan()) as session:
            with pytest.raises(pl.SessionError, match="expected a source of items, got int"):
                session.stream(3)  # type: ignore[arg-type]
            with pytest.raises(pl.SessionError, match="for its own loop"):
                session.stream([], copy=False)
            with pytest.raises(pl.SessionError, match="5 items do not fit into a batch of 2"):
                async with session.stream([], batch=5):
                    pytest.fail("it opened")
            results = session.stream([])
            with pytest.raises(pl.SessionError, match="not open"):
                await anext(results)
            async with results:
                with pytest.raises(pl.SessionError, match="open already"):
                    await results.__aenter__()

    run(main())


def test_closing_the_session_ends_its_streams() -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan()) as session:
            results = session.stream(items_later(99))
            await results.__aenter__()
            await anext(results)
        with pytest.raises(pl.SessionError, match="closed"):
            while True:
                await anext(results)
        await results.__aexit__(None, None, None)

    run(main())


def test_a_source_may_use_its_arrays_again_at_once() -> None:
    def source() -> Iterator[dict[str, Array]]:
        fed = item(0)
        for value in range(30):
            fed["x"].fill(value)
            yield fed

    async def main() -> list[float]:
        async with pl.AsyncioSession(plan(4)) as session, session.stream(source()) as results:
            return [one["y"][0] async for one in results]

    assert run(main()) == [value + 1 for value in range(30)]


def test_leaving_a_stream_raises_what_closing_its_source_raises() -> None:
    async def source() -> AsyncIterator[dict[str, Array]]:
        try:
            while True:
                yield item(1)
        finally:
            raise LookupError("no such file")

    async def main() -> None:
        async with pl.AsyncioSession(plan(3)) as session:
            with pytest.raises(LookupError, match="no such file"):
                async with session.stream(source()) as results:
                    await anext(results)
            assert (await session.run(item(1)))["y"][0] == 2

    run(main())


def test_an_opening_that_is_cancelled_logs_no_error() -> None:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    plan, logged = pl.plan(b.build(), "cpu"), list[object]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: logged.append(told))
        for pauses in range(4):
            opening = asyncio.ensure_future(pl.AsyncioSession(plan).__aenter__())
            for _ in range(pauses):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        gc.collect()

    asyncio.run(main())
    assert logged == []


def test_items_are_numbered_in_the_order_in_which_tasks_call_run() -> None:
    builder = pl.GraphBuilder("drawn")
    x = builder.input("x", "float32", (2,))
    builder.output("y", builder.call(picky, x + builder.op("RandomUniform", shape=(2,))))
    drawn = pl.plan(builder.build(), "cpu", max_in_flight=4)
    with pl.BlockingSession(drawn, seed=3) as blocking:
        wanted = [blocking.run(item(0))["y"].tolist() for _ in range(20)]

    async def main() -> list[list[float]]:
        async with pl.AsyncioSession(drawn, seed=3) as session:
            found = await asyncio.gather(
                *(session.run(item(0), deadline_s=600.0) for _ in range(20))
            )
            return [outputs["y"].tolist() for outputs in found]

    for _ in range(8):  # trio starts tasks in an order of its own, which may be this one
        assert run(main()) == wanted
