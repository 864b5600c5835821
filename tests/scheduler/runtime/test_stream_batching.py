"""Items that run together in batches, and come out one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.runtime.items.item import ItemRun
from plait.scheduler.runtime.streaming.batching import Batch, find_batching
from trio.testing import wait_all_tasks_blocked

Array = np.ndarray[Any, Any]

runs: list[tuple[int, ...]] = []
first_column: list[list[float]] = []
"""What `noted` was called with."""


@pl.operator(name="test_stream_batching.noted")
def noted(x: Array) -> Array:
    runs.append(x.shape)
    first_column.append(x[:, 0].tolist())
    if (x == 13).any():
        raise ValueError("thirteen")
    return 2 * x


def doubling(length: int | str = "batch", width: int | str = "w") -> pl.Graph:
    builder = pl.GraphBuilder("doubling")
    builder.output("y", builder.call(noted, builder.input("x", "float32", (length, width))))
    return builder.build()


def affine() -> pl.Graph:
    """Two inputs and two outputs, each row by itself."""
    builder = pl.GraphBuilder("affine")
    x = builder.input("x", "float32", ("n", "w"))
    a = builder.input("a", "float32", ("n", 1))
    builder.output("sum", builder.op("Add", x, a))
    builder.output("product", builder.op("Mul", x, a))
    return builder.build()


def row(value: float, width: int = 2, rows: int = 1) -> dict[str, Array]:
    return {"x": np.full((rows, width), value, np.float32)}


async def collect(session: pl.Session, source: Any, **options: Any) -> list[Any]:
    async with session.stream(source, **options) as results:
        return [one.error or one["y"].tolist() async for one in results]


@pytest.fixture(autouse=True)
def _no_runs_yet() -> None:
    runs.clear()
    first_column.clear()


async def test_items_run_together_and_come_out_alone() -> None:
    async with pl.Session(pl.plan(doubling())) as session:
        got = await collect(session, [row(v) for v in range(10)], batch=4)
    assert got == [[[2 * v, 2 * v]] for v in range(10)]
    assert runs == [(4, 2), (4, 2), (2, 2)]


async def test_as_many_batches_are_in_flight_as_the_plan_has_slots() -> None:
    pulled = 0

    def counting() -> Any:
        nonlocal pulled
        for value in range(100):
            pulled += 1
            yield row(value)

    device = SteppedDevice("stepped")
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n", 2))))
    async with pl.Session(pl.plan(builder.build(), device, max_in_flight=3)) as session:
        async with session.stream(counting(), batch=4):
            await trio.to_thread.run_sync(lambda: None)
            while len(device.queue) < 3:
                await trio.lowlevel.checkpoint()
            assert pulled == 12
            while device.queue:
                device.step()


@pytest.mark.parametrize(("items", "rows"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 12)])
async def test_a_batch_that_is_not_full_is_padded_to_few_lengths(items: int, rows: int) -> None:
    async with pl.Session(pl.plan(doubling())) as session:
        got = await collect(session, [row(v) for v in range(items)], batch=12)
    assert got == [[[2 * v, 2 * v]] for v in range(items)]
    assert runs == [(rows, 2)]


async def test_a_graph_of_fixed_length_gets_batches_of_that_length() -> None:
    async with pl.Session(pl.plan(doubling(4, 2))) as session:
        got = await collect(session, [row(v) for v in range(6)], batch=4)
        assert got == [[[2 * v, 2 * v]] for v in range(6)]
        got = await collect(session, [row(0, rows=3), row(1, rows=2), row(2, rows=5)], batch=2)
    assert runs == [(4, 2)] * 4
    assert [len(one) for one in got[:2]] == [3, 2]
    assert isinstance(got[2], pl.FeedError)
    assert "5 rows does not fit into a batch of 4" in str(got[2])


async def test_a_batch_stays_within_bounds() -> None:
    plan = pl.plan(doubling(width=2), bounds={"batch": (3, 6)})
    async with pl.Session(plan) as session:
        for lengths in ((1,), (1, 1, 1, 1, 1), (2, 3, 2), (6, 1), (4, 3, 7, 3)):
            items = [row(v, rows=length) for v, length in enumerate(lengths)]
            got = await collect(session, items, batch=6)
            fitting = [[[2 * v, 2 * v]] * n for v, n in enumerate(lengths) if n < 7]
            assert [one for one in got if isinstance(one, list)] == fitting
        with pytest.raises(pl.SessionError, match="7 items do not fit into a batch of 6"):
            await collect(session, [], batch=7)
    padded = [3, 5, 5, 3, 6, 3, 4, 6]
    assert [rows for rows, _ in runs] == padded
    assert isinstance(got[2], pl.FeedError)
    assert got[2].what == "an item of 7 rows does not fit into a batch of 6"


async def test_a_batch_that_has_all_its_rows_waits_for_no_more(
    autojump_clock: trio.abc.Clock,
) -> None:
    send, receive = trio.open_memory_channel[dict[str, Array]](1)
    async with pl.Session(pl.plan(doubling(width=2), bounds={"batch": 6})) as session:
        async with session.stream(receive, batch=6, max_delay_s=1000) as results:
            await send.send(row(1, rows=6))
            assert len((await anext(results))["y"]) == 6
            assert trio.current_time() < 1000


async def test_what_is_padded_is_never_left_to_chance() -> None:
    """Repetitions of the last row, or zeros if there is none."""
    async with pl.Session(pl.plan(doubling(4, 2))) as session:
        assert await collect(session, [row(7)], batch=2) == [[[14, 14]]]
        assert await collect(session, [row(7, rows=0)], batch=2) == [[]]
    assert first_column == [[7, 7, 7, 7], [0, 0, 0, 0]]


async def test_items_of_other_shapes_begin_a_new_batch() -> None:
    source = [row(v, width) for v, width in enumerate([2, 2, 3, 3, 3, 2])]
    async with pl.Session(pl.plan(doubling())) as session:
        got = await collect(session, source, batch=4)
    assert got == [(2 * one["x"]).tolist() for one in source]
    assert runs == [(2, 2), (4, 3), (1, 2)]


async def test_wrong_items_fail_alone() -> None:
    wrong: list[Any] = [
        {},
        {"x": np.zeros((1, 2), np.int8)},
        {"x": np.float32(1)},
        {"x": np.zeros(1, np.float32)},
    ]
    async with pl.Session(pl.plan(doubling())) as session:
        got = await collect(session, [row(0), *wrong, row(5)], batch=8)
    assert (got[0], got[-1]) == ([[0, 0]], [[10, 10]])
    assert all(isinstance(error, pl.FeedError) for error in got[1:-1])
    assert "has no axis to batch along" in str(got[3])


async def test_inputs_of_one_item_have_as_many_rows() -> None:
    uneven = {"x": np.ones((2, 3), np.float32), "a": np.ones((1, 1), np.float32)}
    async with pl.Session(pl.plan(affine())) as session:
        async with session.stream([uneven], batch=2) as results:
            error = (await anext(results)).error
    assert "different number of rows in each input: 'x': 2, 'a': 1" in str(error)


async def test_what_fails_in_a_batch_fails_all_of_it_and_no_more() -> None:
    async with pl.Session(pl.plan(doubling())) as session:
        got = await collect(session, [row(v) for v in (1, 13, 3, 4)], batch=2)
    assert [isinstance(one, pl.KernelError) for one in got] == [True, True, False, False]


async def test_the_error_of_a_batch_tells_each_item_its_own_number() -> None:
    async with pl.Session(pl.plan(doubling())) as session:
        source = [row(13), row(1)]
        async with session.stream(source, batch=2, on_error="raise") as results:
            for number in (0, 1):
                with pytest.raises(pl.KernelError, match="thirteen") as caught:
                    await anext(results)
                assert caught.value.item == number
                assert isinstance(caught.value.__cause__, ValueError)


async def test_a_batch_waits_no_longer_than_it_may(autojump_clock: trio.abc.Clock) -> None:
    async def arriving() -> AsyncIterator[dict[str, Array]]:
        for value, pause in enumerate([0.0, 1.0, 1.5, 9.0, 0.0, 0.0, 0.0]):
            await trio.sleep(pause)
            yield row(value)

    async def work() -> None:
        while True:
            await trio.sleep(0.01)
            if device.queue:
                device.step()

    device = SteppedDevice("stepped", private=False)  # no thread: the clock would jump meanwhile
    plan = pl.plan(doubling(4, 2), device)
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        nursery.start_soon(work)
        got = await collect(session, arriving(), batch=4, max_delay_s=2.0)
        nursery.cancel_scope.cancel()
    assert got == [[[2 * v, 2 * v]] for v in range(7)]
    assert first_column == [[0, 1, 1, 1], [2, 2, 2, 2], [3, 4, 5, 6]]


async def test_a_batch_goes_as_it_is_when_no_more_can_come_to_it() -> None:
    """The item that failed waits for its turn behind the batch that waits for one more item."""
    source = [row(0), row(1), {}, row(3)]
    async with pl.Session(pl.plan(doubling())) as session:
        got = await collect(session, source, batch=3, max_in_flight=3)
    assert (got[:2], got[3]) == ([[[0, 0]], [[2, 2]]], [[6, 6]])


async def test_without_patience_a_batch_takes_what_is_there() -> None:
    send, receive = trio.open_memory_channel[dict[str, Array]](9)
    async with pl.Session(pl.plan(doubling(), max_in_flight=2)) as session:
        async with session.stream(receive, batch=8, max_delay_s=0.0) as results:
            for value in range(3):
                send.send_nowait(row(value))
            assert [(await anext(results)).index for _ in range(3)] == [0, 1, 2]
            send.close()
            assert [one async for one in results] == []


@pytest.mark.parametrize(
    ("joins_s", "runs_s"),
    [(1.0, 2.5), (5.0, 6.0)],
    ids=["late together with others", "late before others come"],
)
async def test_one_late_item_does_not_stop_its_batch(
    autojump_clock: trio.abc.Clock, joins_s: float, runs_s: float
) -> None:
    device = SteppedDevice("stepped", private=False)
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2, 2))))

    async def arriving() -> AsyncIterator[dict[str, Array]]:
        yield row(0)
        await trio.sleep(joins_s)
        yield row(1)

    async def work() -> None:
        await trio.sleep(runs_s)
        device.step()

    async with pl.Session(pl.plan(builder.build(), device)) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            got = await collect(session, arriving(), batch=2, deadline_s=2.0)
    assert isinstance(got[0], pl.DeadlineError)
    assert got[1] == [[1, 1]]


@pytest.mark.parametrize("full", [False, True])
async def test_a_batch_of_late_items_is_given_up(
    full: bool, autojump_clock: trio.abc.Clock
) -> None:
    device = SteppedDevice("stepped", private=False)
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2, 2))))

    async def arriving() -> AsyncIterator[dict[str, Array]]:
        yield row(0)
        if full:
            yield row(1)
        await trio.sleep(5.0)  # from 0.0 on; if two are alive, from 2.0 on

    async with pl.Session(pl.plan(builder.build(), device)) as session:
        async with session.stream(arriving(), batch=2, deadline_s=2.0) as results:
            late = [one.error async for one in results]
            ended, left = trio.current_time(), len(device.queue)
            while device.queue:
                device.step()
    assert (ended, left) == ((7.0, 1) if full else (5.0, 0))
    assert all(isinstance(error, pl.DeadlineError) for error in late)


async def test_views_into_a_batch_are_held_until_the_last_is_released() -> None:
    async with pl.Session(pl.plan(doubling(), max_in_flight=2)) as session:
        async with session.stream([row(v) for v in range(12)], batch=3, copy=False) as results:
            async for one in results:
                await wait_all_tasks_blocked()
                assert one["y"].tolist() == [[2 * one.index] * 2]
                assert one["y"].base is not None
        assert (await session.run(row(4)))["y"].tolist() == [[8, 8]]


async def test_leaving_a_stream_of_batches_leaves_the_session_usable() -> None:
    async with pl.Session(pl.plan(doubling())) as session:
        for n_taken in range(4):
            async with session.stream((row(v) for v in range(99)), batch=3) as results:
                for _ in range(n_taken):
                    await anext(results)
        assert await collect(session, [row(1)], batch=3) == [[[2, 2]]]


def scalar_input() -> pl.Graph:
    builder = pl.GraphBuilder("scalar")
    x = builder.input("x", "float32", ("n", 2))
    builder.output("y", builder.op("Mul", x, builder.input("rate", "float32", ())))
    return builder.build()


def two_lengths() -> pl.Graph:
    builder = pl.GraphBuilder("lengths")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", ("n", 2))))
    builder.output("z", builder.op("Relu", builder.input("b", "float32", ("m", 2))))
    return builder.build()


def summed() -> pl.Graph:
    builder = pl.GraphBuilder("summed")
    x = builder.input("x", "float32", (4, 2))
    builder.output("y", builder.op("ReduceSum", x, np.array([0]), keepdims=1))
    return builder.build()


def total() -> pl.Graph:
    builder = pl.GraphBuilder("total")
    builder.output("y", builder.op("ReduceSum", builder.input("x", "float32", (4, 2)), keepdims=0))
    return builder.build()


@pytest.mark.parametrize(
    ("graph", "size", "message"),
    [
        (scalar_input(), 2, r"'rate', an input of this graph, is float32\[\] and has no axis"),
        (two_lengths(), 2, "inputs 'x' and 'b' cannot be batched(.|\n)*are n and m"),
        (doubling(4), 5, "5 items do not fit into a batch of 4(.|\n)*have 4 at most"),
        (summed(), 2, r"output 'y' is of shape \[1, 2\]"),
        (total(), 2, "'y', an output of this graph, is float32"),
    ],
)
async def test_graphs_that_take_no_batches_are_told_so(
    graph: pl.Graph, size: int, message: str
) -> None:
    async with pl.Session(pl.plan(graph)) as session:
        with pytest.raises(pl.PlaitError, match=message):
            async with session.stream([], batch=size, max_in_flight=9):
                pytest.fail("it opened")


async def test_an_output_that_turns_out_not_to_be_divisible_fails_its_items() -> None:
    builder = pl.GraphBuilder("first")
    x = builder.input("x", "float32", ("n", 2))
    builder.output("y", builder.op("Slice", x, np.array([0]), np.array([1]), np.array([0])))
    async with pl.Session(pl.plan(builder.build())) as session:
        got = await collect(session, [row(1), row(2)], batch=2)
    assert all("its first axis is not that of the batch" in str(error) for error in got)


lengths_and_widths = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), max_size=12)


@settings(max_examples=40)
@given(lengths_and_widths, st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_batch_divides_into_what_went_in(
    drawn: Sequence[tuple[int, int]], size: int, random: Any
) -> None:
    """Stack with one implementation, run row by row, and compare with items run alone."""
    batching = find_batching(affine(), size)
    rng = np.random.default_rng(random.getrandbits(32))
    items = [
        {
            "x": rng.standard_normal((length, width), np.float32),
            "a": rng.standard_normal((length, 1), np.float32),
        }
        for length, width in drawn
    ]
    waiting = list(items)
    while waiting:
        batch, members = Batch(batching, lambda _: None), []
        while waiting and not batch.is_full:
            item_run = ItemRun()
            if not batch.add(item_run, waiting[0]):
                break
            members.append((item_run, waiting.pop(0)))
        assert members
        fed = batch.stacked()
        rows = sum(len(one["x"]) for _, one in members)
        assert len(fed["x"]) in (1, 2, 4, 8, 16, size, rows) if rows else not len(fed["x"])
        found = {"sum": fed["x"] + fed["a"], "product": fed["x"] * fed["a"]}
        batch.item_run.land(batch.item_run.take(found, {}), None, lambda: None)
        for item_run, one in members:
            assert item_run.done.is_set()
            np.testing.assert_array_equal(item_run.results["sum"], one["x"] + one["a"])
            np.testing.assert_array_equal(item_run.results["product"], one["x"] * one["a"])
