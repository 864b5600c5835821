"""Streams of asyncio whose items run on threads, each on a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from threading import Event
from typing import Any, TypeVar

import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import WAIT_S
from plait.scheduler.dispatch.inline_policy import Estimates
from stream_threads import (
    Called,
    Item,
    is_on_threads,
    make_items,
    make_operator,
    send_items_to_threads,
)

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_item_runs_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    send_items_to_threads(monkeypatch)
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, may_wait=False: may_wait)


def run(main: Coroutine[Any, Any, T]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(main, WAIT_S)

    return asyncio.run(within())


def make_plan(*functions: Called, ordered: bool = False, lanes: int = 2) -> pl.Plan:
    builder = pl.GraphBuilder("called")
    called = builder.input("x", "float32", (2,))
    for function in functions:
        called = builder.call(make_operator(function, ordered=ordered), called)
    builder.output("y", called)
    return pl.plan(builder.build(), [f"cpu:0..{lanes - 1}"])


async def yield_later(number: int) -> AsyncIterator[Item]:
    for item in make_items(number):
        await asyncio.sleep(0)
        yield item


@given(
    st.integers(0, 30),
    st.integers(1, 9),
    st.integers(2, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sets(st.integers(0, 29)),
)
def test_each_item_has_its_result_in_order_if_asked_for(
    number: int,
    in_flight: int,
    lanes: int,
    ordered: bool,
    waits: bool,
    in_turn: bool,
    failing: set[int],
) -> None:
    function, last = Called(), Called()
    function.raise_at = set(map(float, failing))

    async def main() -> list[tuple[int, float | None]]:
        async with pl.AsyncioSession(
            make_plan(function, last, ordered=in_turn, lanes=lanes)
        ) as session:
            source = yield_later(number) if waits else make_items(number)
            async with session.stream(source, max_in_flight=in_flight, ordered=ordered) as results:
                return [
                    (one.index, None if one.error else float(one["y"][1])) async for one in results
                ]

    found = run(main())
    wanted = [(n, None if n in failing else n + 2.0) for n in range(number)]
    assert (found if ordered else sorted(found)) == wanted
    assert is_on_threads(function) or not number


def test_closing_early_cancels_items_and_waits_for_those_that_run() -> None:
    function, last = Called(), Called()
    opened = Event()
    function.wait_at[3] = opened

    async def main() -> None:
        async with pl.AsyncioSession(make_plan(function, last)) as session:
            async with session.stream(make_items(100), max_in_flight=6) as results:
                async for one in results:
                    if one.index == 2:
                        break
                opened.set()
            ended = len(function.threads)
            assert (await session.run(next(make_items(1))))["y"][0] == 2
            assert len(function.threads) == ended + 1

    run(main())
    assert len(last.threads) < 12


def test_a_session_that_is_closed_ends_the_stream() -> None:
    async def main() -> None:
        session = pl.AsyncioSession(make_plan(Called()))
        await session.__aenter__()
        async with session.stream(make_items(10**9)) as results:
            count = 0
            with pytest.raises(pl.SessionError):
                async for one in results:
                    count += 1
                    if count == 20:
                        await session.__aexit__(None, None, None)
                    if one.error is not None:
                        raise one.error

    run(main())


def test_an_error_of_the_source_comes_after_its_items() -> None:
    def failing() -> Any:
        yield from make_items(5)
        raise OSError("torn")

    async def main() -> list[float]:
        found = list[float]()
        async with pl.AsyncioSession(make_plan(Called())) as session:
            with pytest.raises(OSError, match="torn"):
                async with session.stream(failing()) as results:
                    async for one in results:
                        found.append(float(one["y"][0]))
        return found

    assert run(main()) == [1, 2, 3, 4, 5]
