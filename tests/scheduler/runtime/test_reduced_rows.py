"""Rows that are folded as they are yielded: none is kept, and what is wrong is told."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from moments import cancel_at_each_moment
from patience import WAIT_S
from plait.devices.errors import KernelError
from plait.devices.worker.device import WorkerDevice
from plait.scheduler.errors import PlanError

Array = np.ndarray[Any, Any]
COUNT = pl.TensorSpec("int64", ())
ROWS = pl.TensorSpec("float32", ("n", 256))
ROW = pl.TensorSpec("float32", (256,))

alive: set[int] = set()
most_alive = 0
opened: list[str] = []
closed: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    opened.clear()
    closed.clear()


@pl.operator(ROWS, inputs=[COUNT], name="test_reduce.counted")
def counted(count: Array) -> Iterator[Array]:
    """Yield a new array for each row, and count those that are alive."""
    global most_alive
    most_alive = 0
    try:
        for number in range(int(count)):
            row = np.full(256, number, np.float32)
            alive.add(number)
            weakref.finalize(row, alive.discard, number)
            most_alive = max(most_alive, len(alive))
            yield row
    finally:
        closed.append("counted")


@pl.operator(ROWS, inputs=[COUNT], name="test_reduce.counted_async")
async def counted_async(count: Array) -> AsyncIterator[Array]:
    opened.append("counted_async")
    try:
        for number in range(int(count)):
            await trio.lowlevel.checkpoint()
            yield np.full(256, number, np.float32)
    finally:
        closed.append("counted_async")


@pl.operator(ROW, inputs=[ROW, ROW], name="test_reduce.larger")
def larger(so_far: Array, row: Array) -> Array:
    return np.maximum(so_far, row)


@pl.operator((ROW, COUNT), inputs=[ROW, COUNT, ROW, ROW], name="test_reduce.peak_of")
def peak_of(so_far: Array, count: Array, row: Array, same: Array) -> tuple[Array, Array]:
    assert np.array_equal(row, same)
    return np.maximum(so_far, row), count + 1


@pl.operator(ROW, inputs=[ROW, ROW], name="test_reduce.wrong")
def wrong(so_far: Array, row: Array) -> Any:
    return row[:3] if row[0] == 2 else so_far


@pl.operator(ROW, inputs=[ROW, ROW], name="test_reduce.writes")
def writes(so_far: Array, row: Array) -> Array:
    so_far += row
    return so_far


@pl.operator((ROW, ROW), inputs=[ROW, ROW], name="test_reduce.two")
def two(so_far: Array, row: Array) -> Any:
    return so_far, row


@pl.operator(ROW, inputs=[ROW, ROW], name="test_reduce.later")
async def later(so_far: Array, row: Array) -> Array:
    return row


@pl.operator(ROW, inputs=[ROW, ROW], name="test_reduce.kept")
class Kept:
    def run(self, so_far: Array, row: Array) -> Array:
        return so_far


@pl.operator(pl.TensorSpec("float64", (256,)), inputs=[ROW, ROW], name="test_reduce.wider")
def wider(so_far: Array, row: Array) -> Array:
    return row.astype("float64")


@pl.operator(ROWS, inputs=[COUNT], name="test_reduce.odd")
def odd(count: Array) -> Iterator[Array]:
    yield np.zeros(256, np.float32)
    yield np.zeros(int(count), np.float32)


ZEROS = np.zeros(256, "float32")


def graph(source: Any = counted, fold: Any = larger, collects: bool = False) -> pl.Graph:
    b = pl.GraphBuilder("rows")
    rows = b.call(source, b.input("count", "int64", ()), name="source")
    b.output("peak", b.reduce(rows, fold, ZEROS, name="peak"))
    if collects:
        b.output("rows", rows)
    return b.build()


@pytest.mark.parametrize("device", ["cpu", "compiled", "worker:0"])
def test_any_number_of_rows_takes_the_memory_of_one(device: str) -> None:
    plan = pl.plan(graph(), device)
    assert plan.memory is not None
    planned = sum(region.nbytes for region in plan.memory.regions)
    assert planned < 4 * ROW.nbytes
    peak = pl.run(plan, {"count": np.int64(5000)})["peak"]
    assert peak.tolist() == [4999.0] * 256
    if device != "worker:0":
        gc.collect()
        assert most_alive <= 3, "that which is made, that which is folded, and the value so far"


def test_the_rows_are_kept_where_somebody_else_reads_them_or_other_devices_fold() -> None:
    with pytest.raises(PlanError, match="'n': 64"):
        pl.plan(graph(collects=True))
    for plan in (
        pl.plan(graph(collects=True), bounds={"n": 9}),
        pl.plan(graph(), bounds={"n": 9}, passes=["-reduce_yielded"]),
        pl.plan(
            graph(),
            ["cpu:0", "cpu:1"],
            bounds={"n": 9},
            pin={"source": "cpu:0", "peak": "cpu:1"},
        ),
    ):
        assert plan.graph.node("source").op == "test_reduce.counted" or plan.computed
        assert pl.run(plan, {"count": np.int64(7)})["peak"].tolist() == [6.0] * 256
        assert pl.run(plan, {"count": np.int64(0)})["peak"].tolist() == [0.0] * 256


def test_what_is_fetched_alone_is_folded_as_it_is_yielded() -> None:
    plan = pl.plan(graph(collects=True), bounds={"n": 9}).fetching("peak")
    assert [node.op for node in plan.graph.nodes] == ["ReducedCall"]
    assert pl.run(plan, {"count": np.int64(50)})["peak"].tolist() == [49.0] * 256


def test_a_bound_of_rows_that_nobody_keeps_is_no_mistake() -> None:
    plan = pl.plan(graph(), bounds={"n": 3})
    assert pl.run(plan, {"count": np.int64(50)})["peak"].tolist() == [49.0] * 256


def test_several_are_folded_from_what_is_equal_at_the_beginning() -> None:
    b = pl.GraphBuilder("both")
    for side in ("left", "right"):
        rows = b.call(counted, b.input(side, "int64", ()), name=side)
        peak, count = b.reduce([rows, rows], peak_of, [ZEROS.copy(), 0], name=f"of {side}")
        b.output(f"{side} peak", peak)
        b.output(f"{side} count", count)
    found = pl.run(b.build(), {"left": np.int64(3), "right": np.int64(5)})
    assert [found[f"{side} count"].item() for side in ("left", "right")] == [3, 5]
    assert [found[f"{side} peak"][0] for side in ("left", "right")] == [2, 4]


def test_saved_graphs_fold_as_well(tmp_path: Any) -> None:
    pl.save(graph(), tmp_path / "rows.plait")
    loaded = pl.load(tmp_path / "rows.plait")
    assert pl.run(loaded, {"count": np.int64(4)})["peak"].tolist() == [3.0] * 256


def test_functions_that_cannot_fold_are_refused_when_the_graph_is_built() -> None:
    with pytest.raises(pl.GraphError, match="returns 2 values, not 1"):
        graph(fold=two)
    for fold, what in ((later, "is async"), (counted, "yields its results"), (Kept, "is a class")):
        with pytest.raises(pl.GraphError, match=what):
            graph(fold=fold)
    with pytest.raises(pl.ShapeError, match=r"value 0 is float32\[256\] at first, and float64"):
        graph(fold=wider)
    b = pl.GraphBuilder("rows")
    x, y = (b.input(name, "float32", (length, 256)) for name, length in (("x", 2), ("y", 3)))
    with pytest.raises(pl.ShapeError, match="2 and 3 rows"):
        b.reduce([x, y], peak_of, [ZEROS, 0])
    with pytest.raises(pl.ShapeError, match="input 0"):
        b.reduce(x, larger, np.zeros(3, "float32"))
    assert [*b.specs] == ["x", "y"]


def test_what_is_wrong_at_run_time_names_the_node_and_closes_the_generator() -> None:
    messages = {wrong: r"float32\[3\], declared was float32\[256\]", writes: "read-only"}
    for fold, message in messages.items():
        with pytest.raises(KernelError, match=rf"{message}(.|\n)*node 'peak'"):
            pl.run(pl.plan(graph(fold=fold)), {"count": np.int64(3)})
    assert closed == ["counted"] * 2
    with pytest.raises(
        KernelError, match=r"value 1 is float32\[5\], a row of it is float32\[256\]"
    ):
        pl.run(pl.plan(graph(odd)), {"count": np.int64(5)})


async def test_whoever_is_cancelled_at_any_moment_closes_the_generator() -> None:
    async with pl.Session(pl.plan(graph(counted_async))) as session:

        async def work() -> None:
            await session.run({"count": np.int64(3)})

        async def check() -> None:
            assert session.status().in_flight == 0
            assert closed == opened
            outputs = await session.run({"count": np.int64(2)})
            assert outputs["peak"].tolist() == [1.0] * 256

        assert await cancel_at_each_moment(work, check) > 5


async def test_a_worker_that_is_killed_folds_its_items_from_the_beginning() -> None:
    worker = WorkerDevice("worker:0")

    def source() -> Iterator[dict[str, Any]]:
        for count in range(1, 61):
            if count in (10, 40):
                assert worker.pid is not None
                with suppress(ProcessLookupError):  # it may not be back yet
                    os.kill(worker.pid, signal.SIGKILL)
            yield {"count": np.int64(count)}

    plan = pl.plan(graph(), worker, max_in_flight=4)
    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session, session.stream(source()) as results:
            found = [item["peak"][0] async for item in results]
    assert found == [*range(60)]


def test_profiles_and_predictions_have_the_call_as_one_node() -> None:
    plan = pl.plan(graph())
    with pl.BlockingSession(plan, measure=True) as session:
        session.run({"count": np.int64(100)})
        profile = session.profile()
    assert "peak" in profile.table()
    once = pl.simulate(plan).makespan_s
    for name in ("peak", "test_reduce.counted"):
        assert pl.simulate(plan, faster={name: 2}).makespan_s < once
