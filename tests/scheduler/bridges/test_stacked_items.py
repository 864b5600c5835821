"""Batches that a blocking stream stacks itself: each item yields what it yields alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.scheduler.bridges.inline import StreamHere
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.dispatch.way_choice import WayChoice
from plait.scheduler.runtime.streaming.admission import AdmissionQueue

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
    chance = Random(0)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("run_stacked", "run_on"):
            run = getattr(StreamHere, name)

            def refuse(
                here: StreamHere, *arguments: Any, run: Any = run, on: bool = name == "run_on"
            ) -> Any:
                if chance.random() < 0.3:
                    if on:
                        here.are_threads_refused = True
                    elif here.is_due:
                        here.ways.refuse()
                    return None
                return run(here, *arguments)

            patch.setattr(StreamHere, name, refuse)
        patch.setattr(Estimates, "are_brief", lambda *_, **__: True)
        yield chance


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.lists(st.one_of(rows, rows, rows, st.sampled_from(WRONG)), max_size=40),
    negatives=st.sets(st.integers(0, 39), max_size=2),
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
    with pl.BlockingSession(plan) as session:
        with session.stream(
            source(), batch=batch, max_in_flight=batch + more, ordered=ordered
        ) as results:
            broken = pytest.raises(RuntimeError, match="the source broke")
            with broken if error else nullcontext():
                for item in results:
                    assert item.index not in found
                    found[item.index] = item.error or item["y"]
        assert session.status().done == len(items)
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


def test_items_that_are_stacked_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    put, handed = AdmissionQueue.put, []

    async def count(queue: AdmissionQueue, *arguments: Any) -> None:
        handed.append(arguments)
        await put(queue, *arguments)

    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    monkeypatch.setattr(WayChoice, "advance", lambda *_: None)
    monkeypatch.setattr(AdmissionQueue, "put", count)
    b = pl.GraphBuilder("rows")
    b.output("y", b.input("x", "float32", (8, 2)) * 2.0 + 1.0)
    items = [{"x": np.full((1, 2), value, np.float32)} for value in range(42)]
    with pl.BlockingSession(pl.plan(b.build(), "cpu")) as session:
        found = [item["y"] for item in session.stream(items, batch=8, max_in_flight=16)]
        assert {row["runs"] for row in session.profile().steps()} == {6}
    np.testing.assert_array_equal(found, [compute(item) for item in items])
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
