"""Streams for synchronous code."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.scheduler.bridges.blocking_results import BlockingResults
from plait.scheduler.runtime.events import Observer

Array = np.ndarray[Any, Any]


@pl.operator(name="test_blocking_stream.picky")
def picky(x: Array) -> Array:
    if x[0, 0] < 0:
        raise ValueError("negative")
    return x + 1


def opened(max_in_flight: int = 1, **arguments: Any) -> pl.BlockingSession:
    builder = pl.GraphBuilder("picky")
    builder.output("y", builder.call(picky, builder.input("x", "float32", ("n", 2))))
    plan = pl.plan(builder.build(), max_in_flight=max_in_flight)
    return pl.BlockingSession(plan, **arguments)


def item(value: float) -> dict[str, Array]:
    return {"x": np.full((1, 2), value, np.float32)}


def values(results: BlockingResults) -> list[float]:
    return [float(one["y"][0, 0]) for one in results]


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_stream_is_a_plain_iterator(limit: int) -> None:
    with opened() as session:
        results = session.stream((item(v) for v in range(20)), max_in_flight=limit)
        assert values(results) == [v + 1 for v in range(20)]
        assert list(results) == []


def test_a_source_may_use_its_arrays_again_at_once() -> None:
    def source() -> Iterator[dict[str, Array]]:
        fed = item(0)
        for value in range(30):
            fed["x"].fill(value)
            yield fed

    with opened(4) as session:
        assert values(session.stream(source())) == [v + 1 for v in range(30)]


@pytest.mark.parametrize("observer", [None, lambda _: None], ids=["", "observed"])
def test_the_source_is_asked_on_the_thread_that_iterates_and_only_when_there_is_room(
    observer: Observer | None,
) -> None:
    """Items of which nobody is told may run when they are asked for, and not before."""
    pulled = 0

    def counting() -> Iterator[dict[str, Array]]:
        nonlocal pulled
        for value in range(10):
            assert threading.current_thread() is threading.main_thread()
            pulled += 1
            yield item(value)

    with opened(on_event=observer) as session:
        for one in session.stream(counting(), max_in_flight=3):
            most = min(one.index + 3, 10)
            assert one.index < pulled <= most
            assert observer is None or pulled == most


def test_an_item_that_is_released_makes_room() -> None:
    pulled: list[int] = []

    def noting() -> Iterator[dict[str, Array]]:
        for value in range(10):
            pulled.append(value)
            yield item(value)

    with opened() as session, session.stream(noting(), max_in_flight=2) as results:
        first = next(results)
        first.release()
        first.release()
        assert first["y"][0, 0] == 1
        second = next(results)
        assert (second.index, len(pulled)) == (1, 3)


def test_items_run_in_batches_too() -> None:
    with opened() as session:
        assert values(session.stream([item(v) for v in range(7)], batch=3)) == [1, 2, 3, 4, 5, 6, 7]


def test_failures_stay_with_their_item_or_are_raised() -> None:
    source = [item(0), item(-1), item(2)]
    with opened() as session:
        assert [type(one.error) for one in session.stream(source)] == [
            type(None),
            pl.KernelError,
            type(None),
        ]
        results = session.stream(source, on_error="raise")
        assert next(results).index == 0
        with pytest.raises(pl.KernelError, match="negative"):
            next(results)
        assert next(results).index == 2


def test_what_the_source_raises_comes_after_what_it_gave() -> None:
    def failing() -> Iterator[dict[str, Array]]:
        yield from (item(0), item(1))
        raise LookupError("the camera is gone")

    with opened() as session:
        results = session.stream(failing(), max_in_flight=5)
        assert [next(results).index, next(results).index] == [0, 1]
        with pytest.raises(LookupError, match="camera"):
            next(results)
        assert values(session.stream([item(5)])) == [6]


def test_a_stream_that_is_left_closes_its_source() -> None:
    closed = []

    def watched() -> Iterator[dict[str, Array]]:
        try:
            while True:
                yield item(1)
        finally:
            closed.append(True)

    with opened(2) as session:
        with session.stream(watched()) as results:
            next(results)
        assert closed == [True]
        with pytest.raises(StopIteration):
            next(results)
        for _ in session.stream(watched()):
            break
        gc.collect()
        assert closed == [True, True]
        assert session.run(item(1))["y"][0, 0] == 2


def test_a_source_that_fails_to_close_does_so_when_everything_has_ended() -> None:
    def source() -> Iterator[dict[str, Array]]:
        try:
            while True:
                yield item(1)
        finally:
            raise LookupError("no such file")

    with opened(3) as session:
        results = session.stream(source())
        next(results)
        with pytest.raises(LookupError, match="no such file"):
            results.close()
        assert results._bridge.closed.done()


def test_a_stream_keeps_its_session_open() -> None:
    assert values(opened().stream([item(v) for v in range(5)])) == [1, 2, 3, 4, 5]
    gc.collect()


def test_closing_the_session_ends_its_streams() -> None:
    session = opened()
    results = session.stream(item(v) for v in range(99))
    next(results)
    session.close()
    with pytest.raises(pl.SessionError, match="closed"):
        values(results)
    with pytest.raises(pl.SessionError, match="closed"):
        session.stream([])


def test_streams_that_cannot_be_are_refused() -> None:
    async def main(session: pl.BlockingSession) -> None:
        with pytest.raises(pl.SessionError, match="would block the trio task"):
            session.stream([])

    with opened() as session:
        with pytest.raises(pl.SessionError, match="expected a source of items, got int"):
            session.stream(3)  # type: ignore[arg-type]
        with pytest.raises(pl.SessionError, match="for its own loop"):
            session.stream([], copy=False)
        with pytest.raises(pl.SessionError, match="batch is 0"):
            session.stream([], batch=0)
        trio.run(main, session)


def test_what_opening_a_stream_raises_is_raised_at_once() -> None:
    builder = pl.GraphBuilder("fixed")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2, 2))))
    with pl.BlockingSession(pl.plan(builder.build())) as session:
        with pytest.raises(pl.SessionError, match="3 items do not fit into a batch of 2"):
            session.stream([], batch=3)
