"""Random pipelines whose rows are folded into values, beside a loop over numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
ITEM = pl.TensorSpec("float32", ("numbers",))
ROWS = (pl.TensorSpec("float32", ("values", 2)), pl.TensorSpec("int64", ("values",)))
STATE, ROW = pl.TensorSpec("float32", (2,)), pl.TensorSpec("float32", (2,))
COUNT = pl.TensorSpec("int64", ())
MOST = 12
STOP, BAD = 7.0, 11.0
"""What a generator, and what a function that folds, refuses."""

closed: list[str] = []


def row_of(number: float) -> list[float]:
    return [number, -number]


@pl.operator(ROWS, inputs=[ITEM], name="test_reduced.yielded")
def yielded(numbers: Array) -> Iterator[tuple[Array, int]]:
    buffer = np.empty(2, np.float32)  # yielded again and again
    try:
        for place, number in enumerate(numbers):
            if number == STOP:
                raise OSError("no more")
            buffer[:] = row_of(number)
            yield buffer, place
    finally:
        buffer.fill(np.nan)
        closed.append("yielded")


@pl.operator(ROWS, inputs=[ITEM], name="test_reduced.awaited")
async def awaited(numbers: Array) -> AsyncIterator[tuple[Array, int]]:
    try:
        for place, number in enumerate(numbers):
            await trio.lowlevel.checkpoint()
            if number == STOP:
                raise OSError("no more")
            yield np.array(row_of(number), np.float32), place
    finally:
        closed.append("awaited")


@pl.operator((STATE, COUNT), inputs=[STATE, COUNT, ROW, COUNT], name="test_reduced.faded")
def faded(state: Array, count: Array, row: Array, place: Array) -> tuple[Array, Array]:
    """Fold in a way that depends on the order."""
    assert place == count
    if row[0] == BAD:
        raise ValueError("a bad row")
    return state / 2 + row, count + 1


@pl.operator(STATE, inputs=[STATE, ROW], name="test_reduced.latest")
def latest(state: Array, row: Array, *, keep: bool = False) -> Array:
    """Return what it was given."""
    return state if keep else row


doubling = pl.GraphBuilder("doubling")
doubling.output("y", doubling.input("x", "float32", ("rows", 2)) * 2.0)
DOUBLING = doubling.build()


class Shape(NamedTuple):
    """A pipeline: its generator, whether rows are collected as well, or go through a graph."""

    source: str
    collects: bool
    batch: int | None
    max_in_flight: int

    def expected(self, numbers: Sequence[float]) -> dict[str, Any] | None:
        """Return what an item has, None if it fails."""
        if STOP in numbers or BAD in numbers:
            return None
        faded: Array = np.zeros(2, np.float32)
        for number in numbers:
            faded = faded / np.float32(2) + np.array(row_of(number), np.float32)
        last = row_of(numbers[-1]) if numbers else [-1.0, -1.0]
        found: dict[str, Any] = {"faded": faded.tolist(), "count": len(numbers)}
        if self.collects:
            found["latest"] = last
            found["rows"] = [row_of(number) for number in numbers]
        if self.batch is not None:
            found["doubled"] = [2 * one for one in last] if numbers else [-1.0, -1.0]
        return found


@lru_cache
def planned(shape: Shape) -> pl.Plan:
    b = pl.GraphBuilder("pipeline")
    source = {"yielded": yielded, "awaited": awaited}[shape.source]
    rows, places = b.call(source, b.input("numbers", "float32", ("numbers",)), name="source")
    zeros = np.zeros(2, "float32")
    state, count = b.reduce([rows, places], faded, [zeros, np.int64(0)], name="fade")
    b.output("faded", state)
    b.output("count", count)
    if shape.collects:
        b.output("latest", b.reduce(rows, latest, zeros - 1, name="last"))
        b.output("rows", rows)
    if shape.batch is not None:
        made = b.each(rows, DOUBLING, name="double", batch=shape.batch)
        b.output("doubled", b.reduce(made, latest, zeros - 1, name="last doubled"))
    is_alone = not shape.collects and shape.batch is None
    # What is folded as it is yielded is the length of nothing.
    bounds = {"numbers": MOST} | ({} if is_alone else {"values": MOST})
    plan = pl.plan(b.build(), bounds=bounds, max_in_flight=shape.max_in_flight)
    assert (len(plan.graph.nodes) == 1) == is_alone
    return plan


shapes = st.builds(
    Shape,
    st.sampled_from(["yielded", "awaited"]),
    st.booleans(),
    st.sampled_from([None, None, 1, 3]),
    st.sampled_from([1, 4]),
)
numbers = st.sampled_from([0.0, 1.0, 2.0, -3.0, 0.5, STOP, BAD])
items = st.lists(st.lists(numbers, max_size=MOST), min_size=1, max_size=6)


def check(shape: Shape, item: pl.Item, fed: Sequence[float]) -> None:
    wanted = shape.expected(fed)
    if wanted is None:
        assert isinstance(item.error, pl.PlaitError)
        assert "no more" in str(item.error) or "a bad row" in str(item.error)
        return
    assert item.error is None
    assert {name: item[name].tolist() for name in item} == wanted


def feeds(items: Sequence[Sequence[float]]) -> Iterator[dict[str, Array]]:
    # An array of no numbers is no item of such a graph: one that is refused stands for it.
    return ({"numbers": np.array(fed or [0], np.float32)} for fed in items)


@settings(max_examples=30)
@given(shape=shapes, items=items, ordered=st.booleans())
def test_rows_are_folded_in_their_order_whoever_yields_them(
    shape: Shape, items: list[list[float]], ordered: bool
) -> None:
    closed.clear()

    async def stream() -> list[int]:
        seen = []
        async with (
            pl.Session(planned(shape)) as session,
            session.stream(feeds(items), ordered=ordered) as results,
        ):
            async for item in results:
                seen.append(item.index)
                check(shape, item, items[item.index] or [0])
        return seen

    seen = trio.run(stream)
    assert sorted(seen) == [*range(len(items))]
    assert closed == [shape.source] * len(items)


@settings(max_examples=30)
@given(shape=shapes, items=items, turns=st.integers(0, 30))
def test_streams_that_are_left_at_any_moment_close_their_generators(
    shape: Shape, items: list[list[float]], turns: int
) -> None:
    async def leave() -> None:
        async with pl.Session(planned(shape)) as session:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(consume, session)
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert session.status().in_flight == 0
            closed.clear()
            for number, fed in enumerate(items[:2]):
                try:
                    item = pl.Item(0, await session.run(next(feeds([fed]))), None)
                except pl.PlaitError as error:
                    item = pl.Item(0, None, error)
                check(shape, item, fed or [0])
                assert closed == [shape.source] * (number + 1)

    async def consume(session: pl.Session) -> None:
        async with session.stream(feeds(items)) as results:
            async for item in results:
                check(shape, item, items[item.index] or [0])

    trio.run(leave)
