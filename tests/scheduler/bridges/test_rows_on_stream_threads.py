"""Rows of streams whose items run on threads: in batches of their own item."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.runtime.running.inline_rows import InlineRows
from plait.scheduler.runtime.streaming.row_batches import QueueServer
from stream_threads import send_items_to_threads

Array = np.ndarray[Any, Any]
TABLE = np.arange(24, dtype="float32").reshape(8, 3)
BAD = 99
ROWS = pl.TensorSpec("int64", ("r",))

inline: list[str] = []
awaited: list[int] = []


@pytest.fixture(autouse=True)
def _items_go_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    run, run_blocks = InlineRows.run, QueueServer.run

    def run_noting(self: InlineRows, *args: Any) -> Any:
        inline.append(threading.current_thread().name)
        return run(self, *args)

    async def run_blocks_noting(self: QueueServer, values: Any, *args: Any) -> Any:
        awaited.append(len(values[0]))
        return await run_blocks(self, values, *args)

    send_items_to_threads(monkeypatch)
    monkeypatch.setattr(InlineRows, "run", run_noting)
    monkeypatch.setattr(QueueServer, "run", run_blocks_noting)
    inline.clear()
    awaited.clear()


@pl.operator(ROWS, inputs=[ROWS], name="test_rows_on_stream_threads.reversed")
def reversed_rows(rows: Array) -> Array:
    return rows[::-1].copy()


@pl.operator(ROWS, inputs=[ROWS], name="test_rows_on_stream_threads.yielded")
def yielded(rows: Array) -> Iterator[int]:
    yield from rows[::-1].tolist()


@pl.operator(
    pl.TensorSpec("float32", ("r", 3)),
    inputs=[pl.TensorSpec("float32", ("r", 3))],
    name="test_rows_on_stream_threads.negated",
)
def negated(rows: Array) -> Array:
    return -rows


def make_body(function: Any = None) -> pl.Graph:
    builder = pl.GraphBuilder("body")
    found = builder.op("Gather", TABLE, builder.input("x", "int64", ("rows",)))
    if function is not None:
        found = builder.call(function, found)
    builder.output("y", builder.op("Mul", found, 2.0))
    return builder.build()


def make_plan(source: Any = reversed_rows, function: Any = None, **options: Any) -> pl.Plan:
    builder = pl.GraphBuilder("rows")
    numbers = builder.call(source, builder.input("x", "int64", ("n",)))
    made = builder.each(numbers, make_body(function), **{"batch": 4, **options})
    for index, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
        builder.output(f"y{index}", tensor)
    return pl.plan(builder.build(), ["cpu:0..1"], bounds={"n": (0, 40)}, max_in_flight=2)


def find_rows(numbers: list[int]) -> Array:
    return TABLE[numbers[::-1]] * 2


def stream(session: Any, items: list[list[int]], **options: Any) -> list[Any]:
    feeds = ({"x": np.array(item, "int64")} for item in items)
    with session.stream(feeds, on_error="yield", **options) as results:
        found = {
            one.index: one.error or {name: one[name].copy() for name in one} for one in results
        }
    return [found[index] for index in range(len(items))]


def test_items_run_with_all_their_rows_on_the_stream_threads() -> None:
    items = [[n % 8] * n for n in range(3, 30)]
    with pl.BlockingSession(make_plan()) as session:
        stream(session, items[:12])
        turns, was_awaited = 0, True
        while was_awaited and turns < 20:  # until the loop has opened plans for all lengths
            inline.clear()
            awaited.clear()
            found = stream(session, items)
            turns, was_awaited = turns + 1, bool(awaited)
        figures = session.profile().row_batches
    for one, item in zip(found, items, strict=True):
        np.testing.assert_array_equal(one["y0"], find_rows(item))
    assert {name.split(":")[0] for name in inline} == {"plait-item"}
    assert not awaited
    wanted = sum(map(len, items[:12] + turns * items))
    assert sum(one.rows for one in figures.values()) == wanted


@pytest.mark.parametrize(("fixed_ns", "waits"), [(0, False), (10**9, True)])
def test_single_rows_join_those_of_other_items_where_that_saves_time(
    monkeypatch: pytest.MonkeyPatch, fixed_ns: int, waits: bool
) -> None:
    note_time = InlineRows._note_time

    def note_planned_time(self: InlineRows, length: int, _: int) -> None:
        note_time(self, length, fixed_ns + 1000 * length)

    monkeypatch.setattr(InlineRows, "_note_time", note_planned_time)
    items = [[n % 8] for n in range(24)]
    with pl.BlockingSession(make_plan()) as session:
        for _ in range(20):  # until the loop has opened plans for all lengths
            awaited.clear()
            found = stream(session, items)
            if bool(awaited) is waits and inline:
                break
    for one, item in zip(found, items, strict=True):
        np.testing.assert_array_equal(one["y0"], find_rows(item))
    assert bool(awaited) is waits


numbers = st.integers(0, 7) | st.just(BAD)


@pytest.mark.slow
@pytest.mark.parametrize("source", [reversed_rows, yielded], ids=["at once", "one by one"])
@given(
    items=st.lists(st.lists(numbers, max_size=13), max_size=12),
    batch=st.integers(1, 40),
    keeps_errors=st.booleans(),
    ordered=st.booleans(),
)
@settings(max_examples=60)
def test_results_are_those_of_the_rows_one_by_one(
    source: Any, items: list[list[int]], batch: int, keeps_errors: bool, ordered: bool
) -> None:
    on_error = "value" if keeps_errors else "item"
    with pl.BlockingSession(make_plan(source, batch=batch, on_error=on_error)) as session:
        stream(session, [[n % 8] * 2 * batch for n in range(3)] if batch < 20 else [[1] * 40])
        found = stream(session, items, ordered=ordered)
    for one, item in zip(found, items, strict=True):
        if BAD in item and not keeps_errors:
            assert isinstance(one, pl.PlaitError)
            assert item[::-1][int(str(one).split(",")[0].removeprefix("row "))] == BAD
            continue
        is_good = np.array([number != BAD for number in item[::-1]], bool)
        expected = find_rows([0 if number == BAD else number for number in item])
        expected[~is_good] = 0
        np.testing.assert_array_equal(one["y0"], expected)
        if keeps_errors:
            np.testing.assert_array_equal(one["y1"], is_good)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 2, "function": negated},
        {"batch": 2, "max_delay_s": 0.001},
        {"batch": 2, "keep": 40, "on_error": "value"},
    ],
    ids=["a function", "a delay", "some kept"],
)
def test_rows_wait_for_batches_where_others_have_to_join_or_zeros_would_be_seen(
    options: dict[str, Any],
) -> None:
    items = [[n % 8, 3, 5] for n in range(20)]
    sign = -1 if "function" in options else 1
    with pl.BlockingSession(make_plan(**options)) as session:
        for one, item in zip(stream(session, items), items, strict=True):
            np.testing.assert_array_equal(one["y0"], sign * find_rows(item))
    assert not inline
    assert len(awaited) == len(items)
