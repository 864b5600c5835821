"""Deadlines that are none, refused alike by every way of running items."""

from __future__ import annotations

import asyncio
from typing import Any

import plait as pl
import pytest
import trio
from small_graphs import X, unary

FEEDS = {"x": X}


def run_under_trio(plan: pl.Plan, deadline_s: Any) -> None:
    async def main() -> None:
        async with pl.Session(plan) as session:
            await session.run(FEEDS, deadline_s=deadline_s)

    trio.run(main)


def stream_under_trio(plan: pl.Plan, deadline_s: Any) -> None:
    async def main() -> None:
        async with pl.Session(plan) as session:
            async with session.stream([FEEDS], deadline_s=deadline_s) as results:
                assert [item async for item in results]

    trio.run(main)


def run_blocking(plan: pl.Plan, deadline_s: Any) -> None:
    with pl.BlockingSession(plan) as session:
        session.run(FEEDS, deadline_s=deadline_s)


def stream_blocking(plan: pl.Plan, deadline_s: Any) -> None:
    with pl.BlockingSession(plan) as session:
        assert list(session.stream([FEEDS], deadline_s=deadline_s))


def submit(plan: pl.Plan, deadline_s: Any) -> None:
    with pl.BlockingSession(plan) as session:
        try:
            session.submit(FEEDS, deadline_s=deadline_s)
        finally:
            assert session.submit(FEEDS).result(60.0)["y"].shape == X.shape


def run_under_asyncio(plan: pl.Plan, deadline_s: Any) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            await session.run(FEEDS, deadline_s=deadline_s)

    asyncio.run(main())


def stream_under_asyncio(plan: pl.Plan, deadline_s: Any) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            async with session.stream([FEEDS], deadline_s=deadline_s) as results:
                assert [item async for item in results]

    asyncio.run(main())


DOORS = (
    run_under_trio, stream_under_trio, run_blocking, stream_blocking, submit, run_under_asyncio,
    stream_under_asyncio,
)  # fmt: skip


@pytest.mark.parametrize("deadline_s", [-1, 0.0, float("nan"), "1"])
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_what_is_no_time_after_now_is_refused(door: Any, deadline_s: Any) -> None:
    with pytest.raises(pl.SessionError, match=f"deadline_s is {deadline_s!r}") as caught:
        door(pl.plan(unary("Relu")), deadline_s)
    assert caught.value.fix == "give more than 0 seconds"


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_what_never_comes_is_a_deadline(door: Any) -> None:
    door(pl.plan(unary("Relu")), float("inf"))
