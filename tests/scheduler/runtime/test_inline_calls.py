"""Items that run where they are asked for: counted calls, since times depend on the machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.runtime.items.item import ItemRun
from plait.scheduler.runtime.opened import shape_plan_cache
from plait.scheduler.runtime.opened.feeds import check_feeds

ITEMS, WARMING = 40, 20
MOST_OF_RUN, MORE_STREAMED, MOST_OF_FUNCTION = 32, 7, 3
"""Calls for an item of one step, for one that is streamed, and for a function of objects."""


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every item is taken to be brief, and no other task has a turn, on any machine."""
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    monkeypatch.setattr("plait.scheduler.runtime.virtual_time.TURN", 1 << 60)
    monkeypatch.setattr("plait.scheduler.bridges.asyncio_results.TURN", 1 << 60)


class Calls:
    """Counts the calls of plait's functions on this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_globals.get("__name__", "")
        self.count += event == "call" and name.startswith("plait.")


@contextmanager
def counted(calls: Calls) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(calls)
    try:
        yield
    finally:
        sys.setprofile(before)


async def test_items_that_never_run_at_once_are_looked_up_once(
    forget_operators: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @pl.operator(name="test_inline_calls.acts", effects=True)
    def acts(x: np.ndarray) -> np.ndarray:
        return x

    b = pl.GraphBuilder("acts")
    b.output("y", b.call(acts, b.input("x", "float32", (2,))))
    checked: list[object] = []

    def note(graph: pl.Graph, unneeded: frozenset[str], inputs: Any) -> Mapping[str, Any]:
        checked.append(inputs)
        return check_feeds(graph, unneeded, inputs)

    monkeypatch.setattr(shape_plan_cache, "check_feeds", note)
    async with pl.Session(pl.plan(b.build(), ["cpu"])) as session:
        await session.run(FEEDS)
        checked.clear()
        for _ in range(3):
            await session.run(FEEDS)
    assert len(checked) == 3


async def test_inputs_of_items_that_are_not_brief_are_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[object] = []

    def note(graph: pl.Graph, unneeded: frozenset[str], inputs: Any) -> Mapping[str, Any]:
        checked.append(inputs)
        return check_feeds(graph, unneeded, inputs)

    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: False)
    monkeypatch.setattr(shape_plan_cache, "check_feeds", note)
    async with pl.Session(plan()) as session:
        await session.run(FEEDS)  # only now it is known
        checked.clear()
        for _ in range(3):
            await session.run(FEEDS)
        assert len(checked) == 3
        async with session.stream([FEEDS] * 3, max_in_flight=1) as results:
            assert [item["y"][0] async for item in results] == [-1, -1, -1]
    assert len(checked) == 6


async def test_a_plan_that_was_opened_anew_is_asked_again_whether_it_is_brief() -> None:
    async with pl.Session(plan()) as session:
        assert session._runtime is not None
        whole = session._runtime._fetch_plans.whole
        whole.not_brief = Estimates([1.0]), 1
        await session._runtime.admit(FEEDS, 1, item_run := ItemRun())
        await item_run.done.wait()
        assert whole.not_brief is None


async def test_a_plan_whose_items_have_become_brief_is_not_asked_twice() -> None:
    async with pl.Session(plan()) as session:
        assert session._runtime is not None
        whole = session._runtime._fetch_plans.whole
        whole.not_brief = Estimates([1.0]), 1
        await session.run(FEEDS)
        assert whole.not_brief is None


def plan() -> pl.Plan:
    b = pl.GraphBuilder("brief")
    b.output("y", b.op("Neg", b.input("x", "float32", (2,))))
    return pl.plan(b.build(), ["cpu"])


FEEDS = {"x": np.ones(2, np.float32)}
SOURCE = [FEEDS] * (WARMING + ITEMS + 1)


async def counted_awaits(step: Callable[[], Any]) -> float:
    calls = Calls()
    for _ in range(WARMING):
        await step()
    with counted(calls):
        for _ in range(ITEMS):
            await step()
    return calls.count / ITEMS


def in_trio() -> tuple[float, float]:
    async def main() -> tuple[float, float]:
        async with pl.Session(plan()) as session:
            run = await counted_awaits(lambda: session.run(FEEDS))
            async with session.stream(SOURCE) as results:
                return run, await counted_awaits(results.__anext__)

    return trio.run(main)


def in_asyncio() -> tuple[float, float]:
    async def main() -> tuple[float, float]:
        async with pl.AsyncioSession(plan()) as session:
            run = await counted_awaits(lambda: session.run(FEEDS))
            async with session.stream(SOURCE) as results:
                return run, await counted_awaits(results.__anext__)

    return asyncio.run(main())


def blocking() -> tuple[float, float]:
    def counted_calls(step: Callable[[], Any]) -> float:
        calls = Calls()
        for _ in range(WARMING):
            step()
        with counted(calls):
            for _ in range(ITEMS):
                step()
        return calls.count / ITEMS

    with pl.BlockingSession(plan()) as session:
        run = counted_calls(lambda: session.run(FEEDS))
        with session.stream(SOURCE) as results:
            return run, counted_calls(results.__next__)


@pytest.mark.parametrize("door", [in_trio, in_asyncio, blocking])
def test_a_streamed_item_takes_few_calls_more_than_one_that_is_run(
    door: Callable[[], tuple[float, float]],
) -> None:
    run, streamed = door()
    assert run <= MOST_OF_RUN
    assert streamed <= run + MORE_STREAMED, (run, streamed)


def test_a_function_of_objects_takes_few_calls_more() -> None:
    def count(number: int) -> float:
        pipe = pl.pipeline(*[lambda value: [value]] * number, example=0)
        with pipe, pipe.open(pipe.plan("cpu")):
            results = pipe.stream(range(WARMING + ITEMS + 1))
            for _ in range(WARMING):
                next(results)
            calls = Calls()
            with counted(calls):
                for _ in range(ITEMS):
                    next(results)
            return calls.count / ITEMS

    assert count(4) - count(2) <= 2 * MOST_OF_FUNCTION + 1
