"""Streams whose items run partly where they are asked for, partly through the lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random
from typing import Any, TypeAlias

import numpy as np
import plait as pl
import pytest
import trio
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.runtime.running.inline_runner import InlineRunner

COUNT = 60
FAILING = frozenset({0, 7, 8, 30, COUNT - 1})
Found: TypeAlias = list[tuple[int, float | None]]


class Source:
    """A generator of items, which says whether it was closed, and fails in the end if asked to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.pulled = 0
        self.is_closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            for number in range(COUNT):
                self.pulled += 1
                yield {"x": np.full(2, number, np.float32)}
            if self.fails:
                raise ValueError("the source broke")
        finally:
            self.is_closed = True


def plan(max_in_flight: int = 1) -> pl.Plan:
    """Return a plan that doubles; for some numbers it fails."""

    @pl.operator(name="test_inline_streams.picky")
    def picky(x: np.ndarray) -> np.ndarray:
        if int(x[0]) in FAILING:
            raise RuntimeError("no such number")
        return x

    builder = pl.GraphBuilder("picky")
    picked = builder.call(picky, builder.input("x", "float32", (2,)))
    builder.output("y", builder.op("Mul", picked, np.float32(2)))
    return pl.plan(builder.build(), ["cpu"], max_in_flight=max_in_flight)


def value_of(item: Any) -> float | None:
    return None if item.error is not None else float(item["y"][0])


def in_trio(source: Source, options: dict[str, Any], most: int) -> tuple[Found, Any]:
    return trio.run(on_loop, pl.Session, source, options, most)


async def on_loop(
    opened: type[pl.Session | pl.AsyncioSession],
    source: Source,
    options: dict[str, Any],
    most: int,
) -> tuple[Found, Any]:
    found: Found = []
    async with opened(plan(options["max_in_flight"])) as session:
        async with session.stream(iter(source), **options) as results:
            async for item in results:
                found.append((item.index, value_of(item)))
                assert source.pulled <= len(found) + options["max_in_flight"]
                if len(found) == most:
                    break
        assert source.is_closed
        await session.run({"x": np.full(2, 1, np.float32)})
        return found, session.profile()


def blocking(source: Source, options: dict[str, Any], most: int) -> tuple[Found, Any]:
    found: Found = []
    with pl.BlockingSession(plan(options["max_in_flight"])) as session:
        with session.stream(iter(source), **options) as results:
            for item in results:
                found.append((item.index, value_of(item)))
                assert source.pulled <= len(found) + options["max_in_flight"]
                if len(found) == most:
                    break
        assert source.is_closed
        session.run({"x": np.full(2, 1, np.float32)})
        return found, session.profile()


def in_asyncio(source: Source, options: dict[str, Any], most: int) -> tuple[Found, Any]:
    return asyncio.run(on_loop(pl.AsyncioSession, source, options, most))


Door: TypeAlias = Callable[[Source, dict[str, Any], int], tuple[Found, Any]]
DOORS: tuple[Door, ...] = (in_trio, blocking, in_asyncio)


@pytest.fixture(params=["always", "never", "in turns", "at random"])
def brief(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, forget_operators: None
) -> None:
    """Items are taken to be brief by a pattern, whatever they take."""
    random = Random(0)
    patterns: dict[str, Iterator[bool]] = {
        "always": cycle([True]),
        "never": cycle([False]),
        "in turns": cycle([True] * 6 + [False] * 5),
        "at random": iter(lambda: random.random() < 0.6, None),
    }
    pattern = patterns[request.param]
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: next(pattern))


def expected(count: int = COUNT) -> Found:
    return [(index, None if index in FAILING else 2.0 * index) for index in range(count)]


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_in_flight", [1, 2, 5])
@pytest.mark.parametrize("door", DOORS)
def test_all_items_come_once_with_their_own_results(
    door: Door, max_in_flight: int, ordered: bool
) -> None:
    options = {"max_in_flight": max_in_flight, "ordered": ordered}
    found, profile = door(Source(), options, COUNT + 1)
    assert (found if ordered else sorted(found)) == expected()
    streamed = [record for record in profile.records if record.marks.stream]
    assert len(streamed) == COUNT
    assert sum(record.failed for record in streamed) == len(FAILING)
    assert len({record.marks.stream for record in streamed}) == 1
    for record in streamed:
        marks = record.marks
        assert 0 < marks.asked_ns <= marks.given_ns <= marks.admitted_ns <= marks.fed_ns
        assert marks.landed_ns <= marks.taken_ns <= marks.released_ns


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("max_in_flight", [1, 3])
@pytest.mark.parametrize("door", DOORS)
def test_what_the_source_raises_comes_after_all_results(door: Door, max_in_flight: int) -> None:
    found: Found = []
    source = Source(fails=True)
    with pytest.raises(ValueError, match="the source broke"):
        found, _ = door(source, {"max_in_flight": max_in_flight}, COUNT + 1)
    assert source.pulled == COUNT
    assert source.is_closed
    assert not found  # it was raised


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("most", [1, 2, 10])
@pytest.mark.parametrize("door", DOORS)
def test_a_consumer_may_leave_at_any_time(door: Door, most: int) -> None:
    found, _ = door(Source(), {"max_in_flight": 2}, most)
    assert found == expected(most)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("door", DOORS)
def test_items_are_fetched_in_the_form_that_is_asked_for(door: Door) -> None:
    found, _ = door(Source(), {"max_in_flight": 2, "fetches": ["y"]}, COUNT + 1)
    assert found == expected()


async def test_items_on_lanes_show_how_long_an_item_takes(
    monkeypatch: pytest.MonkeyPatch, forget_operators: None
) -> None:
    monkeypatch.setattr(InlineRunner, "run", lambda *_: None)  # the lanes never rest
    feeds = [{"x": np.ones(2, np.float32)}] * 3
    async with pl.Session(plan(2)) as session, session.stream(feeds) as results:
        async for _ in results:
            assert results._ways._read_item_ns() > 0
