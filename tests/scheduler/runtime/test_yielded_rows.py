"""Rows that a generator yields run in batches while it goes on."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from moments import cancel_at_each_moment
from plait.devices.errors import KernelError
from trio.testing import MockClock, wait_all_tasks_blocked

Array = np.ndarray[Any, Any]
NUMBERS = pl.TensorSpec("float32", ("count",))
ROWS = (pl.TensorSpec("float32", ("n", 2)), pl.TensorSpec("int64", ("n",)))
ROW = pl.TensorSpec("float32", ("rows", 2))
TAG = pl.TensorSpec("int64", ("rows",))
WIDTH = 1024
WIDE = pl.TensorSpec("float32", ("n", WIDTH))
BAD, STOP = 99, -1

runs: list[list[float]] = []
ran = threading.Semaphore(0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    runs.clear()
    while ran.acquire(blocking=False):
        pass


def row_of(number: float) -> tuple[Array, int]:
    return np.array([number, -number], np.float32), int(number)


@pl.operator(ROWS, inputs=[NUMBERS], name="test_yielded.waits")
def waits(numbers: Array) -> Iterator[tuple[Array, int]]:
    """Yield a row, and the next one when a batch has run since."""
    for number in numbers:
        yield row_of(number)
        assert ran.acquire(timeout=30)
    ran.release()


@pl.operator(ROWS, inputs=[NUMBERS], name="test_yielded.waits_async")
async def waits_async(numbers: Array) -> AsyncIterator[tuple[Array, int]]:
    for number in numbers:
        yield row_of(number)
        await trio.to_thread.run_sync(ran.acquire)


@pl.operator(ROWS, inputs=[NUMBERS], name="test_yielded.paced")
async def paced(numbers: Array) -> AsyncIterator[tuple[Array, int]]:
    """Yield a row each second; fail at STOP."""
    for number in numbers:
        if number == STOP:
            raise OSError("no more")
        yield row_of(number)
        await trio.sleep(1)


@pl.operator((ROW, TAG), inputs=[ROW, TAG], name="test_yielded.doubled")
def doubled(rows: Array, tags: Array) -> tuple[Array, Array]:
    assert np.array_equal(rows[:, 0], tags), "rows of both results belong together"
    runs.append(tags.tolist())
    ran.release()
    if (tags == BAD).any():
        raise ValueError("a bad row")
    return rows * 2, tags + 1


def planned(
    function: Callable[..., Any], devices: Any = "cpu", *, consumers: int = 1, **options: Any
) -> pl.Plan:
    body = pl.GraphBuilder("body")
    x, tag = body.input("x", "float32", ("rows", 2)), body.input("tag", "int64", ("rows",))
    for name, tensor in zip(("y", "next"), body.call(doubled, x, tag), strict=True):
        body.output(name, body.op("Identity", tensor))
    graph = body.build()
    b = pl.GraphBuilder("rows")
    made = b.call(function, b.input("numbers", "float32", ("count",)), name="cut")
    for one in range(consumers):
        found = b.each(list(made), graph, name=f"rec{one or ''}", **{"batch": 4, **options})
        for index, tensor in enumerate(found):
            b.output(f"y{one or ''}{index}", tensor)
    pins = {} if devices == "cpu" else {"cut": "cpu:0", "rec/*": "cpu:1"}
    bounds = {"count": 8, "n": 8}
    return pl.plan(b.build(), devices, bounds=bounds, pin=pins, max_in_flight=4)


def fed(*numbers: float) -> dict[str, Array]:
    return {"numbers": np.array(numbers, "float32")}


@pytest.mark.parametrize(
    ("function", "devices"), [(waits, ["cpu:0", "cpu:1"]), (waits_async, "cpu")]
)
async def test_the_first_rows_run_before_the_next_one_is_asked_for(
    function: Callable[..., Any], devices: Any
) -> None:
    async with pl.Session(planned(function, devices)) as session:
        with trio.fail_after(30):
            outputs = await session.run(fed(1, 2, 3))
        assert runs == [[1], [2], [3]]
        assert outputs["y0"].tolist() == [[2, -2], [4, -4], [6, -6]]
        assert outputs["y1"].tolist() == [2, 3, 4]
        assert session.profile().row_batches["rec"].rows == 3


async def test_rows_wait_from_when_each_was_yielded(autojump_clock: MockClock) -> None:
    async with pl.Session(planned(paced, max_delay_s=1.5)) as session:
        outputs = await session.run(fed(1, 2, 3))
    # The first has waited for 1.5 s when the second has for 0.5 s; the third runs at 3.5 s.
    assert sorted(runs) == [[1, 2], [3]]  # on two threads
    assert trio.current_time() == 3.5
    assert outputs["y1"].tolist() == [2, 3, 4]


async def test_every_consumer_gets_the_rows_and_items_share_batches(
    autojump_clock: MockClock,
) -> None:
    found: dict[int, list[int]] = {}

    async def run(session: pl.Session, *numbers: int) -> None:
        outputs = await session.run(fed(*numbers))
        assert outputs["y1"].tolist() == outputs["y11"].tolist()
        found[numbers[0]] = outputs["y1"].tolist()

    plan = planned(paced, consumers=2, max_delay_s=0.5)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        for numbers in ((1, 2), (3, 4), (5, 6)):
            nursery.start_soon(run, session, *numbers)
    assert found == {1: [2, 3], 3: [4, 5], 5: [6, 7]}
    assert sorted(map(sorted, runs)) == [[1, 3, 5]] * 2 + [[2, 4, 6]] * 2


async def test_rows_of_a_generator_that_fails_or_is_left_do_not_run(
    autojump_clock: MockClock,
) -> None:
    async with pl.Session(planned(paced, max_delay_s=5.0)) as session:
        with pytest.raises(KernelError, match="no more"):
            await session.run(fed(1, STOP))
        with trio.move_on_after(1.5):
            await session.run(fed(3, 4, 5))
        await wait_all_tasks_blocked()
        assert runs == []
        assert (await session.run(fed(6)))["y1"].tolist() == [7]
        assert runs == [[6]]


async def test_bad_rows_fail_by_policy_whenever_they_were_yielded(
    autojump_clock: MockClock,
) -> None:
    async with pl.Session(planned(paced)) as session:
        with pytest.raises(KernelError, match=r"row 1, at node(.|\n)*a bad row"):
            await session.run(fed(1, BAD, 3))
    async with pl.Session(planned(paced, on_error="value")) as session:
        outputs = await session.run(fed(BAD, 2, BAD, 4))
        assert outputs["y2"].tolist() == [False, True, False, True]
        assert outputs["y1"].tolist() == [0, 3, 0, 5]
        assert (await session.run(fed(BAD)))["y0"].tolist() == [[0, 0]]


async def test_whoever_is_cancelled_at_any_moment_leaves_no_row_behind() -> None:
    async with pl.Session(planned(waits_async)) as session:

        async def work() -> None:
            await session.run(fed(3, 4))

        async def check() -> None:
            await wait_all_tasks_blocked()
            ran.release(2)
            assert (await session.run(fed(7)))["y1"].tolist() == [8]
            assert session.status().in_flight == 0
            while ran.acquire(blocking=False):
                pass

        assert await cancel_at_each_moment(work, check) > 5


@pl.operator(WIDE, inputs=[NUMBERS], name="test_yielded.widened")
def widened(numbers: Array) -> Iterator[Array]:
    for number in numbers:
        yield np.full(WIDTH, number, np.float32)


async def test_rows_take_the_memory_that_was_planned_and_no_more_however_many_there_are() -> None:
    body = pl.GraphBuilder("body")
    x = body.input("x", "float32", ("rows", WIDTH))
    body.output("y", body.op("ReduceMax", x, np.array([1]), keepdims=0))
    b = pl.GraphBuilder("rows")
    made = b.call(widened, b.input("numbers", "float32", ("count",)), name="cut")
    b.output("y", b.each(made, body.build(), name="rec", batch=8))
    plan = pl.plan(b.build(), bounds={"count": 50, "n": 50}, max_in_flight=4)
    taken: list[tuple[int, Any]] = []
    tracemalloc.start()
    try:
        async with pl.Session(plan, trace=False) as session:
            for _ in range(5):  # 400 rows each, of 4 KB
                async with session.stream(fed(*range(n, n + 50)) for n in range(8)) as results:
                    async for item in results:
                        assert item["y"].tolist() == [*range(item.index, item.index + 50)]
                del item
                gc.collect()
                taken.append((tracemalloc.get_traced_memory()[0], session.status().memory))
            assert session.profile().row_batches["rec"].rows == 2000
    finally:
        tracemalloc.stop()
    (first, memory), *_, (last, memory_then) = taken[1:]  # all sizes of batches were bound by then
    assert last - first < 25 * 4 * WIDTH, "1,200 rows more, and not one in 48 is still there"
    assert memory_then == memory
