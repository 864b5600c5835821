"""Batches that the thread or task of a consumer stacks: all items yield their results alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.scheduler.dispatch import way_choice
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.dispatch.way_choice import WayChoice
from plait.scheduler.runtime.streaming.admission import AdmissionQueue
from plait.scheduler.runtime.streaming.stacked_items import StackedItems

Array = np.ndarray[Any, Any]


@pl.operator(name="test_stacked_items.refuse_negative")
def refuse_negative(x: Array) -> Array:
    if (x < 0).any():
        raise ValueError("negative")
    return 2 * x


def make_graph() -> pl.Graph:
    b = pl.GraphBuilder("rows")
    b.output("y", b.call(refuse_negative, b.input("x", "float32", ("n", "w")), name="double") + 1.0)
    return b.build()


PLANS = [
    pl.plan(make_graph(), devices, bounds=bounds, max_in_flight=slots)
    for devices in ("cpu", "cpu:0..1")
    for bounds in (None, {"n": 8, "w": 3})
    for slots in (1, 3)
]
WRONG: list[Any] = [{"x": np.zeros((1, 1), np.int8)}, {}, {"x": np.float32(1)}]
rows = st.builds(
    lambda value, count, width: {"x": np.full((count, width), value, np.float32)},
    st.integers(0, 50),
    st.integers(0, 3),
    st.integers(1, 2),
)


def reuse(items: list[Any]) -> Iterator[Any]:
    """Yield items in one array, as far as their shapes allow."""
    room = np.empty(64, np.float32)
    for item in items:
        array = item.get("x")
        if array is None or array.dtype != np.float32 or array.ndim != 2:
            yield item
            continue
        shared = room[: array.size].reshape(array.shape)
        shared[...] = array
        yield {"x": shared}


def compute(item: dict[str, Array]) -> Array:
    return item["x"] * np.float32(2) + np.float32(1)


@pytest.fixture
def refusals() -> Iterator[Random]:
    """Have items refused now and then, so that they change between threads and the loop."""
    chance, run = Random(0), StackedItems.run
    with pytest.MonkeyPatch.context() as patch:

        def refuse(items: StackedItems, *arguments: Any, **options: Any) -> Any:
            return None if chance.random() < 0.3 else run(items, *arguments, **options)

        patch.setattr(StackedItems, "run", refuse)
        patch.setattr(Estimates, "are_brief", lambda *_, **__: True)
        patch.setattr(way_choice, "LEAST_PATIENCE", 1)
        patch.setattr(way_choice, "MOST_PATIENCE", 2)
        yield chance


Take = Callable[[Any], None]


def stream_here(plan: pl.Plan, take: Take, source: Any, **options: Any) -> int:
    """Pass the items of a stream on, and return how many the session has counted."""
    with pl.BlockingSession(plan) as session:
        for item in session.stream(source, **options):
            take(item)
        return session.status().done


def stream_in_trio(plan: pl.Plan, take: Take, source: Any, **options: Any) -> int:
    async def main() -> int:
        async with pl.Session(plan) as session:
            async with session.stream(source, **options) as results:
                async for item in results:
                    take(item)
            return session.status().done

    return trio.run(main)


def stream_in_asyncio(plan: pl.Plan, take: Take, source: Any, **options: Any) -> int:
    async def main() -> int:
        async with pl.AsyncioSession(plan) as session:
            async with session.stream(source, **options) as results:
                async for item in results:
                    take(item)
            return (await session.status()).done

    return asyncio.run(main())


DOORS = [stream_here, stream_in_trio, stream_in_asyncio]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.lists(st.one_of(rows, rows, rows, st.sampled_from(WRONG)), max_size=40),
    negatives=st.sets(st.integers(0, 39), max_size=2),
    door=st.sampled_from(DOORS),
    plan=st.sampled_from(PLANS),
    batch=st.integers(1, 8),
    more=st.integers(0, 9),
    ordered=st.booleans(),
    error=st.booleans(),
    seed=st.integers(0, 999),
)
def test_each_item_yields_what_it_yields_alone(
    refusals: Random,
    items: list[Any],
    negatives: set[int],
    door: Callable[..., int],
    plan: pl.Plan,
    batch: int,
    more: int,
    ordered: bool,
    error: bool,
    seed: int,
) -> None:
    refusals.seed(seed)
    for place in negatives & set(range(len(items))):
        items[place] = {"x": np.full((1, 1), -1, np.float32)}

    def source() -> Iterator[Any]:
        yield from reuse(items)
        if error:
            raise RuntimeError("the source broke")

    found: dict[int, Any] = {}

    def take(item: Any) -> None:
        assert item.index not in found
        found[item.index] = item.error or item["y"]

    with pytest.raises(RuntimeError, match="the source broke") if error else nullcontext():
        options: Any = {"batch": batch, "max_in_flight": batch + more, "ordered": ordered}
        assert door(plan, take, source(), **options) == len(items)
    assert ordered is False or list(found) == sorted(found)
    assert sorted(found) == list(range(len(items)))
    for place, item in enumerate(items):
        if any(item is one for one in WRONG):
            assert isinstance(found[place], pl.FeedError)
        elif place in negatives:
            assert isinstance(found[place], pl.KernelError)
        elif isinstance(found[place], pl.PlaitError):  # its batch had a negative one
            assert isinstance(found[place], pl.KernelError)
            assert negatives
        else:
            np.testing.assert_array_equal(found[place], compute(item))


@pytest.mark.parametrize("door", DOORS)
def test_items_that_are_stacked_are_not_handed_over(
    door: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, handed, run, stacked = AdmissionQueue.put, [], StackedItems.run, []

    async def count(queue: AdmissionQueue, *arguments: Any) -> None:
        handed.append(arguments)
        await put(queue, *arguments)

    def run_noted(items: StackedItems, *arguments: Any) -> Any:
        stacked.append(len(items.pulled))
        return run(items, *arguments)

    monkeypatch.setattr(StackedItems, "run", run_noted)
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    monkeypatch.setattr(WayChoice, "advance", lambda *_: None)
    monkeypatch.setattr(WayChoice, "refuse", lambda *_: None)
    monkeypatch.setattr(AdmissionQueue, "put", count)
    b = pl.GraphBuilder("rows")
    b.output("y", b.input("x", "float32", (8, 2)) * 2.0 + 1.0)
    items = [{"x": np.full((1, 2), value, np.float32)} for value in range(42)]
    found: list[Array] = []
    door(pl.plan(b.build(), "cpu"), lambda item: found.append(item["y"]), items, batch=8)
    np.testing.assert_array_equal(found, [compute(item) for item in items])
    assert stacked == [8, 8, 8, 8, 8, 2]
    assert not handed


def test_a_slow_batch_may_wait_for_a_time_on_the_loop_alone() -> None:
    items = [{"x": np.full((1, 2), value, np.float32)} for value in range(5)]
    with pl.BlockingSession(pl.plan(make_graph(), "cpu", bounds={"n": 8, "w": 2})) as session:
        stream = session.stream(items, batch=8, max_in_flight=16, max_delay_s=0.0)
        np.testing.assert_array_equal([one["y"] for one in stream], list(map(compute, items)))


def test_an_interrupt_in_the_source_closes_the_stream() -> None:
    def source() -> Iterator[Any]:
        yield {"x": np.ones((1, 2), np.float32)}
        raise KeyboardInterrupt

    with pl.BlockingSession(pl.plan(make_graph(), "cpu")) as session:
        results = session.stream(source(), batch=4)
        with pytest.raises(KeyboardInterrupt):
            next(results)
        assert list(results) == []
        assert session.run({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[3, 3]]
