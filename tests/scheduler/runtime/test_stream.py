from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from plait.devices.errors import KernelError
from plait.graph.core.ir import Graph
from trio.testing import wait_all_tasks_blocked


@pl.operator(name="test_stream.picky")
def picky(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if x[0] < 0:
        raise ValueError("negative")
    return x + 1


def graph(rank: int = 1) -> Graph:
    builder = pl.GraphBuilder("stream")
    x = builder.input("x", "float32", ("n",) * rank)
    builder.output("y", builder.call(picky, x) if rank == 1 else builder.op("Relu", x))
    return builder.build()


def item(value: float, n: int = 2) -> dict[str, Any]:
    return {"x": np.full(n, value, np.float32)}


def items(count: int) -> Iterator[dict[str, Any]]:
    for value in range(count):
        yield item(value)


async def items_later(count: int) -> AsyncIterator[dict[str, Any]]:
    for value in range(count):
        await trio.lowlevel.checkpoint()
        yield item(value)


async def collect(session: pl.Session, source: Any, limit: int = 3) -> list[Any]:
    async with session.stream(source, max_in_flight=limit) as results:
        return [it.error if it.error is not None else float(it["y"][0]) async for it in results]


@pytest.mark.parametrize("limit", [1, 2, 5, 50])
async def test_results_come_in_order_from_a_list(limit: int) -> None:
    async with pl.Session(pl.plan(graph())) as session:
        assert await collect(session, list(items(20)), limit) == [v + 1.0 for v in range(20)]


async def test_a_result_that_is_asked_for_by_a_wrong_name_is_guessed() -> None:
    async with pl.Session(pl.plan(graph())) as session, session.stream(items(1)) as results:
        async for it in results:
            with pytest.raises(KeyError, match="no result 'yy'; did you mean 'y'"):
                it["yy"]
            with pytest.raises(KeyError, match="no result 'scores'; there are: y"):
                it["scores"]


async def test_generators_async_generators_and_channels_are_sources() -> None:
    send, receive = trio.open_memory_channel[dict[str, Any]](5)
    for value in range(5):
        send.send_nowait(item(value))
    send.close()
    async with pl.Session(pl.plan(graph())) as session:
        for source in (items(5), items_later(5), receive):
            assert await collect(session, source) == [1, 2, 3, 4, 5]


async def test_an_empty_source_gives_an_empty_stream() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        assert await collect(session, []) == []


async def test_items_know_their_index_and_their_outputs() -> None:
    async with pl.Session(pl.plan(graph())) as session, session.stream(items(3)) as results:
        seen = [(it.index, list(it), it.error) async for it in results]
    assert seen == [(0, ["y"], None), (1, ["y"], None), (2, ["y"], None)]


async def test_a_failing_item_keeps_its_place_and_the_rest_go_on() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        got = await collect(session, [item(0), item(-1), item(2)])
        assert (got[0], got[2]) == (1, 3)
        assert isinstance(got[1], KernelError)
        assert await collect(session, items(2)) == [1, 2]


async def test_a_failed_item_raises_when_its_outputs_are_asked_for() -> None:
    async with pl.Session(pl.plan(graph())) as session, session.stream([item(-1)]) as results:
        async for it in results:
            with pytest.raises(KernelError, match="negative"):
                it["y"]
            assert "error" in repr(it)


async def test_wrong_feeds_fail_their_item_only() -> None:
    bad = {"x": np.zeros(2, np.int8)}
    async with pl.Session(pl.plan(graph())) as session:
        got = await collect(session, [item(0), bad, {}, item(3)])
    assert (got[0], got[3]) == (1, 4)
    assert isinstance(got[1], pl.FeedError)
    assert isinstance(got[2], pl.FeedError)


async def test_items_of_different_shapes_come_in_order() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        source = [item(value, n=1 + value % 7) for value in range(40)]
        async with session.stream(source, max_in_flight=4) as results:
            shapes = [it["y"].shape async for it in results]
    assert shapes == [(1 + value % 7,) for value in range(40)]


async def test_what_the_source_raises_comes_after_what_it_gave() -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from items(3)
        raise LookupError("the camera is gone")

    async with pl.Session(pl.plan(graph())) as session:
        got: list[float] = []
        with pytest.raises(LookupError, match="camera"):
            async with session.stream(failing(), max_in_flight=2) as results:
                async for it in results:
                    got.append(float(it["y"][0]))  # noqa: PERF401 - it raises in between
        assert got == [1, 2, 3]
        assert await collect(session, items(2)) == [1, 2]


async def test_what_the_consumer_raises_is_raised_as_it_is() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        with pytest.raises(LookupError, match="mine"):
            async with session.stream(items(9)) as results:
                async for _ in results:
                    raise LookupError("mine")


async def test_a_source_that_is_none_is_refused() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        with pytest.raises(pl.SessionError, match="expected a source of items, got int"):
            async with session.stream(3):  # type: ignore[arg-type]
                pytest.fail("it opened")


async def test_an_item_is_no_source_of_items() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        with pytest.raises(pl.SessionError, match="dict is one item, not a source"):
            async with session.stream(item(1)):
                pytest.fail("it opened")


async def test_at_least_one_item_must_be_in_flight() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        with pytest.raises(pl.SessionError, match="max_in_flight is 0"):
            session.stream([], max_in_flight=0)


@pytest.mark.parametrize("limit", [1, 3])
async def test_no_item_is_pulled_while_the_limit_is_reached(limit: int) -> None:
    pulled = 0

    def counting() -> Iterator[dict[str, Any]]:
        nonlocal pulled
        for value in range(10):
            pulled += 1
            yield item(value)

    plan = pl.plan(graph(), shapes={"x": (2,)}, max_in_flight=limit)  # no slot is made on the way
    async with pl.Session(plan) as session:
        async with session.stream(counting()) as results:
            consumed = 0
            async for _ in results:
                consumed += 1
                await wait_all_tasks_blocked()
                # The one in the consumer's hands counts too.
                assert pulled == min(consumed - 1 + limit, 10)


async def test_a_slow_consumer_does_not_keep_slots_from_other_callers() -> None:
    async with pl.Session(pl.plan(graph(), max_in_flight=2)) as session:
        async with session.stream(items(6), max_in_flight=2) as results:
            async for it in results:
                await wait_all_tasks_blocked()
                other = await session.run(item(it.index + 10))
                assert other["y"][0] == it.index + 11


async def test_two_streams_share_a_session() -> None:
    async with pl.Session(pl.plan(graph(), max_in_flight=2)) as session:
        async with session.stream(items(9)) as first, session.stream(items(9)) as second:
            for value in range(9):
                assert (await anext(first))["y"][0] == value + 1
                assert (await anext(second))["y"][0] == value + 1


async def test_leaving_early_closes_the_source_and_drains() -> None:
    closed = False

    def watched() -> Iterator[dict[str, Any]]:
        nonlocal closed
        try:
            yield from items(1000)
        finally:
            closed = True

    async with pl.Session(pl.plan(graph())) as session:
        async with session.stream(watched(), max_in_flight=4) as results:
            async for it in results:
                if it.index == 3:
                    break
        assert closed
        assert await collect(session, items(2)) == [1, 2]


async def test_leaving_early_raises_what_closing_the_source_raises() -> None:
    async def source() -> AsyncIterator[dict[str, Any]]:
        try:
            while True:
                yield item(1)
        finally:
            raise LookupError("no such file")

    async with pl.Session(pl.plan(graph())) as session:
        with pytest.raises(LookupError, match="no such file"):
            async with session.stream(source()) as results:
                await anext(results)
        assert await collect(session, items(1))


async def test_leaving_early_waits_for_what_runs() -> None:
    device = SteppedDevice("stepped")
    builder = pl.GraphBuilder("waits")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2,))))

    async def go_on() -> None:
        await wait_all_tasks_blocked()
        assert device.queue, "the stream may not be left while work is queued"
        while device.queue:
            device.step()
            await wait_all_tasks_blocked()

    async with pl.Session(pl.plan(builder.build(), device, max_in_flight=2)) as session:
        async with trio.open_nursery() as nursery:
            async with session.stream(items(5)):
                await wait_all_tasks_blocked()
                nursery.start_soon(go_on)
            assert not device.queue


async def test_cancelling_at_any_checkpoint_leaves_the_session_usable() -> None:
    """Cancel the consumer after n checkpoints, for n up to well past the end of the stream."""

    async def consume(session: pl.Session) -> None:
        async with session.stream(items_later(4), max_in_flight=2) as results:
            async for _ in results:
                await trio.lowlevel.checkpoint()

    async with pl.Session(pl.plan(graph(), max_in_flight=2)) as session:
        for moment in range(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, nursery.cancel_scope, moment)
                nursery.start_soon(consume, session)
            assert await collect(session, items(3), 2) == [1, 2, 3]


async def _cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_cancelled_wait_for_a_result_does_not_lose_it() -> None:
    async with pl.Session(pl.plan(graph())) as session:
        async with session.stream(items(4), max_in_flight=2) as results:
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(results)
            assert [float(it["y"][0]) async for it in results] == [1, 2, 3, 4]
