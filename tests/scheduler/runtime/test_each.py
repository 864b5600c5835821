"""Rows in batches across items: their order, errors, cancellation and refusals."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from moments import cancel_at_each_moment
from plait.devices.errors import KernelError
from plait.scheduler.errors import PlanError
from plait.scheduler.runtime.streaming.row_batches import QueueServer
from trio.testing import MockClock, wait_all_tasks_blocked

Array = np.ndarray[Any, Any]
ROWS = pl.TensorSpec("float32", ("r", 2))
BAD = 99

runs: list[list[float]] = []
gates: list[threading.Event] = []
begun = threading.Semaphore(0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    runs.clear()
    gates.clear()
    while begun.acquire(blocking=False):
        pass


@pl.operator(ROWS, inputs=[ROWS], name="test_each.doubled")
def doubled(rows: Array) -> Array:
    runs.append(rows[:, 0].tolist())
    begun.release()
    for gate in gates:
        assert gate.wait(30)
    if (rows == BAD).any():
        raise ValueError("a bad row")
    return rows * 2


@pl.operator(ROWS, inputs=[ROWS], name="test_each.sent", effects=True)
def sent(rows: Array) -> Array:
    return rows


def body(function: Callable[..., Any] = doubled, rows: Any = "rows") -> pl.Graph:
    b = pl.GraphBuilder("body")
    x = b.input("x", "float32", (rows, 2))
    b.output("y", b.op("Add", b.call(function, x, name="double"), 1.0, name="add"))
    return b.build()


def graph(values: int | str = "n", **options: Any) -> pl.Graph:
    b = pl.GraphBuilder("rows")
    made = b.each(b.input("x", "float32", (values, 2)), body(), name="rec", **options)
    for index, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
        b.output(f"y{index}", tensor)
    return b.build()


def planned(max_in_flight: int = 4, devices: Any = "cpu", **options: Any) -> pl.Plan:
    made = graph(**{"batch": 4, **options})
    return pl.plan(made, devices, bounds={"n": 16}, max_in_flight=max_in_flight)


def rows(*numbers: float) -> dict[str, Array]:
    return {"x": np.repeat(np.array(numbers, "float32"), 2).reshape(-1, 2)}


async def run(session: pl.Session, ended: dict[float, Any], *numbers: float) -> None:
    try:
        outputs = await session.run(rows(*numbers))
    except pl.PlaitError as error:
        ended[numbers[0]] = error
    else:
        ended[numbers[0]] = outputs["y0"][:, 0].tolist()


async def test_rows_of_several_items_run_together_and_one_item_in_several_batches() -> None:
    ended: dict[float, Any] = {}
    async with pl.Session(planned(max_delay_s=600.0)) as session:
        async with trio.open_nursery() as nursery:
            for numbers in ((1, 2, 3), (4, 5, 6, 7, 8), (9, 10), (11, 12)):
                nursery.start_soon(run, session, ended, *numbers)
        figures = session.profile().row_batches["rec"]
    assert sorted(chain(*runs)) == [*range(1, 13)]
    assert [len(one) for one in runs] == [4, 4, 4]
    assert ended == {1: [3, 5, 7], 4: [9, 11, 13, 15, 17], 9: [19, 21], 11: [23, 25]}
    assert (figures.batches, figures.rows) == (3, 12)


async def test_a_batch_that_is_not_full_starts_when_its_first_row_has_waited(
    autojump_clock: MockClock,
) -> None:
    async with pl.Session(planned(max_delay_s=5.0)) as session:
        outputs = await session.run(rows(1, 2))
    assert outputs["y0"][:, 0].tolist() == [3, 5]
    assert trio.current_time() == 5.0
    assert session.profile().row_batches["rec"].waited_s == 10.0


async def test_only_wrong_rows_fail_and_take_their_items_with_them() -> None:
    ended: dict[float, Any] = {}
    async with pl.Session(planned(max_delay_s=600.0)) as session, trio.open_nursery() as nursery:
        for numbers in ((1, 2), (3, BAD), (4, 5, 6, 7)):
            nursery.start_soon(run, session, ended, *numbers)
    assert ended[1] == [3, 5]
    assert ended[4] == [9, 11, 13, 15]
    assert isinstance(ended[3], KernelError)
    assert "row 1, at node 'double'" in str(ended[3])
    assert "a bad row" in str(ended[3])


def test_rows_that_fail_are_zeros_and_not_ok_where_errors_stay_with_them() -> None:
    plan = planned(on_error="value")
    for numbers in ((1, BAD, 3, 4, 5), (BAD, BAD)):
        outputs = pl.run(plan, rows(*numbers))
        good = [number != BAD for number in numbers]
        assert outputs["y1"].tolist() == good
        wanted = [2 * number + 1 if number != BAD else 0 for number in numbers]
        assert outputs["y0"][:, 0].tolist() == wanted


async def test_who_leaves_a_batch_leaves_it_to_the_others_and_the_last_one_cancels_it() -> None:
    gates.append(threading.Event())
    ended: dict[float, Any] = {}
    async with pl.Session(planned(max_delay_s=600.0)) as session:
        async with trio.open_nursery() as nursery:
            leaving = await nursery.start(_start_leaving, session)
            nursery.start_soon(run, session, ended, 3, 4)
            await trio.to_thread.run_sync(begun.acquire)
            leaving.cancel()
            await wait_all_tasks_blocked()
            assert session.status().in_flight == 1
            gates[0].set()
        assert ended == {3: [7, 9]}
        gates[0].clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, rows(5, 6, 7, 8))
            await trio.to_thread.run_sync(begun.acquire)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await wait_all_tasks_blocked()
            gates[0].set()
        await wait_all_tasks_blocked()
        assert session.status().in_flight == 0
        assert (await session.run(rows(1, 2, 3, 4)))["y0"][0, 0] == 3


async def _start_leaving(
    session: pl.Session, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await session.run(rows(1, 2))


async def test_rows_of_who_has_left_do_not_run() -> None:
    ended: dict[float, Any] = {}
    async with pl.Session(planned(max_delay_s=600.0)) as session:
        async with trio.open_nursery() as nursery:
            leaving = await nursery.start(_start_leaving, session)
            await wait_all_tasks_blocked()
            leaving.cancel()
            await wait_all_tasks_blocked()
            nursery.start_soon(run, session, ended, 3, 4)
            await wait_all_tasks_blocked()
            assert runs == []
            nursery.start_soon(run, session, ended, 5, 6)
        assert [sorted(one) for one in runs] == [[3, 4, 5, 6]]
        gates.append(threading.Event())
        async with trio.open_nursery() as nursery:
            # The second batch waits for the first one's lane.
            nursery.start_soon(run, session, ended, 7, 8, 9, 10)
            await trio.to_thread.run_sync(begun.acquire)
            await trio.to_thread.run_sync(begun.acquire)
            async with trio.open_nursery() as leaving_nursery:
                leaving_nursery.start_soon(session.run, rows(11, 12, 13, 14))
                await wait_all_tasks_blocked()
                leaving_nursery.cancel_scope.cancel()
            gates[0].set()
    assert runs[1:] == [[7, 8, 9, 10]]


@pytest.mark.slow
async def test_whoever_is_cancelled_at_any_moment_disturbs_nobody() -> None:
    async with pl.Session(planned(on_error="value")) as session:
        kept: dict[str, Any] = {}

        async def stay() -> None:
            with trio.CancelScope(shield=True):
                kept.update(await session.run(rows(1, BAD, 2)))

        async def work() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stay)
                nursery.start_soon(session.run, rows(3, 4, 5, 6, BAD))

        async def check() -> None:
            assert kept.pop("y1").tolist() == [True, False, True]
            assert kept.pop("y0")[:, 0].tolist() == [3, 0, 5]
            assert session.status().in_flight == 0
            assert (await session.run(rows(7)))["y0"][0, 0] == 15

        assert await cancel_at_each_moment(work, check) > 5


@pytest.mark.parametrize(("drop", "lost"), [("oldest", [9, 10]), ("newest", [15, 16])])
async def test_rows_beyond_those_that_are_kept_are_dropped_and_counted(
    drop: str, lost: list[int]
) -> None:
    gates.append(threading.Event())
    made = graph(4, batch=4, on_error="value", keep=6, drop=drop)
    found: dict[int, bool] = {}

    async def run_item(first: int) -> None:
        numbers = range(first, first + 4)
        outputs = await session.run(rows(*numbers))
        assert np.array_equal(outputs["y0"][:, 0] > 0, outputs["y1"])
        found.update(zip(numbers, outputs["y1"].tolist(), strict=True))

    async with pl.Session(pl.plan(made, max_in_flight=4)) as session:
        async with trio.open_nursery() as nursery:
            for first in (1, 5, 9, 13):  # two batches are under way, eight rows wait
                nursery.start_soon(run_item, first)
                await wait_all_tasks_blocked()
            gates[0].set()
        profile = session.profile()
    assert found == {number: number not in lost for number in range(1, 17)}
    figures = profile.row_batches["rec"]
    assert (figures.rows, figures.dropped) == (14, 2)
    assert "2 more were dropped" in profile.table()


async def test_a_session_that_is_left_fails_the_rows_that_wait() -> None:
    ended: dict[float, Any] = {}
    async with trio.open_nursery() as nursery:
        async with pl.Session(planned(max_delay_s=600.0)) as session:
            nursery.start_soon(run, session, ended, 1, 2)
            await wait_all_tasks_blocked()
    assert isinstance(ended[1], pl.SessionError)
    assert runs == []


async def test_a_hundred_thousand_rows_leave_nothing_behind() -> None:
    b = pl.GraphBuilder("negated")
    b.output("y", b.op("Neg", b.input("x", "float32", ("rows", 2))))
    outer = pl.GraphBuilder("rows")
    fed = outer.input("x", "float32", (100, 2))
    outer.output("y", outer.each(fed, b.build(), batch=16, name="each"))
    x = np.arange(200, dtype="float32").reshape(100, 2)
    kept: list[int] = []
    async with pl.Session(pl.plan(outer.build(), max_in_flight=4), trace=False) as session:
        async with session.stream({"x": x + n} for n in range(1000)) as results:
            async for item in results:
                assert np.array_equal(item["y"], -(x + item.index))
                if item.index in (200, 999):
                    del item
                    gc.collect()
                    kept.append(len(gc.get_objects()))
        assert session.profile().row_batches["each"].rows == 100_000
    # Batches of all sizes were bound before; one object an item would be 799.
    assert kept[1] - kept[0] < 700


@pytest.mark.parametrize("devices", ["cpu", "formal", ["cpu:0..1", "worker:0"]])
@pytest.mark.parametrize("numbers", [(), (1,), (1, 2, 3, 4, 5)])
def test_results_are_those_of_the_graph_on_all_rows(devices: Any, numbers: Any) -> None:
    plan = pl.plan(graph(batch=2, on_error="value"), devices, bounds={"n": (0, 8)})
    outputs = pl.run(plan, rows(*numbers))
    assert np.array_equal(outputs["y0"], rows(*numbers)["x"] * 2 + 1)
    assert outputs["y1"].tolist() == [True] * len(numbers)


def test_rows_of_rows_and_a_graph_for_one_row() -> None:
    inner = pl.GraphBuilder("inner")
    pairs = inner.input("v", "float32", (2, 2))
    inner.output("o", inner.each(pairs, body(), batch=5, max_delay_s=600.0, name="deep"))
    b = pl.GraphBuilder("outer")
    b.output("y", b.each(b.input("x", "float32", ("n", 2, 2)), inner.build(), name="walk"))
    x = np.arange(20, dtype="float32").reshape(5, 2, 2)
    assert np.array_equal(pl.run(b.build(), {"x": x})["y"], x * 2 + 1)
    # The loop is unrolled, and its rows wait in one queue.
    assert [len(one) for one in runs] == [5, 5]

    runs.clear()
    middle = pl.GraphBuilder("middle")
    fed = middle.input("x", "float32", ("rows", 2))
    middle.output("y", middle.each(fed, body(), batch=2, name="deep"))
    b = pl.GraphBuilder("outer")
    b.output("y", b.each(b.input("x", "float32", (5, 2)), middle.build(), batch=3, name="walk"))
    plan = pl.plan(b.build())
    assert np.array_equal(pl.run(plan, {"x": x[:, 0]})["y"], x[:, 0] * 2 + 1)
    assert {*plan.bodies} == {"walk", "deep"}
    assert sorted(len(one) for one in runs) == [1, 2, 2]


def test_gradients_go_through_the_graph_of_the_rows() -> None:
    product = pl.GraphBuilder("product")
    product.output("y", product.op("Mul", *(product.input(n, "float32", ("r", 2)) for n in "ab")))
    b = pl.GraphBuilder("slopes")
    x, w = (b.input(name, "float32", (5, 2)) for name in "xw")
    total = b.op("ReduceSum", b.each([x, w], product.build(), batch=2), keepdims=0)
    b.output("slope", pl.gradients(b, total, x))
    weights = np.arange(10, dtype="float32").reshape(5, 2)
    outputs = pl.run(b.build(), {"x": weights + 1, "w": weights})
    assert np.array_equal(outputs["slope"], weights)


def test_plans_of_rows_are_kept_reported_and_obey_pins(tmp_path: Any) -> None:
    pins = {"rec/add": "worker:0"}
    plan = pl.plan(graph(batch=4), ["cpu", "worker:0"], bounds={"n": 8}, pin=pins)
    plan.save(tmp_path / "rows.plan")
    loaded = pl.load_plan(tmp_path / "rows.plan")
    for one in (plan, loaded):
        assert one.bodies["rec"].assignment["add"] == "worker:0"
        assert "rows of rec: in batches of up to 4" in one.report()
        assert one.to_dict()["bodies"]["rec"]["max_in_flight"] == 2
    assert pl.run(loaded, rows(1, 2))["y0"][:, 0].tolist() == [3, 5]


def test_networks_for_rows_are_steps_under_their_name_and_count_as_computing() -> None:
    b = pl.GraphBuilder("both")
    x = b.input("x", "float32", ("n", 2))
    for name in ("read", "name"):
        b.output(name, b.each(x, body(), name=name, batch=4))
    plan = pl.plan(b.build(), "cpu", bounds={"n": 8}, max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        for _ in range(3):
            session.run(rows(1, 2, 3))
        profile = session.profile()
    for one in (profile, pl.simulate(plan, items=3).profile):
        kinds = {step["step"]: step["kind"] for step in one.steps()}
        of_rows = {name for name in kinds if "/" in name}
        assert {name.split("/")[0] for name in of_rows} == {"read", "name"}
        assert {kinds[name] for name in of_rows} == {"subgraph"}
        assert {kinds["read"], kinds["name"]} == {"wait for rows"}
        assert set(one.waits) == {"read", "name"}
        assert one.attribution().compute_ns > 0
        assert ": waited" not in one.table()


def test_what_cannot_be_batched_is_refused_when_the_graph_is_built() -> None:
    b = pl.GraphBuilder("rows")
    x = b.input("x", "float32", ("n", 2))
    with pytest.raises(pl.GraphError, match=r"any number of rows(.|\n)*first axis"):
        b.each(x, body(rows=4), batch=2)
    with pytest.raises(pl.GraphError, match="has effects"):
        b.each(x, body(sent), batch=2)
    with pytest.raises(pl.GraphError, match="batch=8"):
        b.each(x, body(), max_delay_s=1.0)
    for options in ({"keep": 1, "on_error": "value"}, {"keep": 2}):
        with pytest.raises(pl.GraphError, match="keep a batch or more"):
            b.each(x, body(), batch=2, **options)
    with pytest.raises(pl.ShapeError, match="3 and 4 rows"):
        both = pl.GraphBuilder("both")
        both.output("y", both.op("Add", *(both.input(n, "float32", ("rows",)) for n in "ab")))
        b.each([b.constant(np.zeros(n, "float32")) for n in (3, 4)], both.build(), batch=2)
    ranged = pl.GraphBuilder("ranged")
    (y, _, _) = ranged.op(
        "DynamicQuantizeLinear", ranged.input("x", "float32", ("r", 2)), outputs=3
    )
    ranged.output("y", y)
    with pytest.raises(pl.GraphError, match=r"depends on the others(.|\n)*batch=1"):
        b.each(x, ranged.build(), batch=2)
    summed = pl.GraphBuilder("summed")
    total = summed.op("ReduceSum", summed.input("x", "float32", ("rows", 2)), np.array([0]))
    summed.output("y", total)
    with pytest.raises(pl.ShapeError, match="a row for each row"):
        b.each(b.constant(np.zeros((4, 2), "float32")), summed.build(), batch=1)
    assert b.outputs == ()


def test_a_queue_is_for_the_rows_of_one_graph() -> None:
    inner = pl.GraphBuilder("inner")
    fed = inner.input("x", "float32", ("rows", 2))
    inner.output("y", inner.each(fed, body(), batch=2, name="rec"))
    b = pl.GraphBuilder("outer")
    x = b.input("x", "float32", (4, 2))
    b.output("y", b.each(x, inner.build(), batch=2, name="rec"))
    with pytest.raises(PlanError, match="rows of two graphs"):
        pl.plan(b.build())
    assert pl.plan(b.build(), "formal").bodies == {}
    twice = pl.GraphBuilder("twice")
    x = twice.input("x", "float32", (4, 2))
    for name in ("a", "b"):
        (y,) = twice.include(graph(4, batch=2), {"x": x}, prefix=name).values()
        twice.output(name, y)
    assert {*pl.plan(twice.build()).bodies} == {"rec"}


def test_lengths_of_rows_need_bounds() -> None:
    b = pl.GraphBuilder("wide")
    x = pl.GraphBuilder("body")
    x.output("y", x.op("Neg", x.input("x", "float32", ("rows", "width"))))
    b.output("y", b.each(b.input("x", "float32", ("n", "wide")), x.build(), batch=2))
    with pytest.raises(PlanError, match="leave 'wide' open"):
        pl.plan(b.build())


def test_lengths_that_the_graph_of_the_rows_does_not_tell_are_named_with_what_helps() -> None:
    def planned(*told: int) -> pl.Plan:
        body = pl.GraphBuilder("body")
        x = body.input("x", "float32", ("rows", 4))
        lengths = body.op("Add", body.op("Shape", x), body.op("Cast", x.min() - 1.0, to="int64"))
        made = body.op("Reshape", x, lengths)
        body.output("y", body.op("Reshape", made, np.array(told)) if told else made)
        b = pl.GraphBuilder("rows")
        b.output("y", b.each(b.input("x", "float32", ("n", 4)), body.build(), batch=1, name="y"))
        return pl.plan(b.build(), bounds={"n": 3})

    with pytest.raises(PlanError, match=r"Reshape(.|\n)*bounds=\{'y.shape\[1\]': 64\}"):
        planned()
    ones = np.ones((3, 4), "float32")
    assert np.array_equal(pl.run(planned(0, 4), {"x": ones})["y"], ones)


@pytest.mark.parametrize("batch", [1, 2])
def test_lengths_that_a_graph_computes_from_shapes_need_not_be_told(batch: int) -> None:
    body = pl.GraphBuilder("body")
    x = body.input("x", "float32", ("rows", 4, 1))
    flat = body.op("Flatten", x)
    body.output("y", body.op("Reshape", flat, body.op("Shape", x)))
    b = pl.GraphBuilder("rows")
    made = b.each(b.input("x", "float32", ("n", 4, 1)), body.build(), batch=batch, name="y")
    assert str(b.spec(made)) == "float32[n, 4, 1]"
    b.output("y", made)
    ones = np.arange(12, dtype="float32").reshape(3, 4, 1)
    assert np.array_equal(pl.run(pl.plan(b.build(), bounds={"n": 3}), {"x": ones})["y"], ones)


def test_a_graph_with_a_number_of_rows_written_down_is_refused() -> None:
    body = pl.GraphBuilder("body")
    x = body.input("x", "float32", ("rows", 4, 2))
    body.output("y", body.op("Reshape", x, np.array([1, -1, 2])))
    b = pl.GraphBuilder("rows")
    with pytest.raises(pl.ShapeError, match=r"\[1, 8, 2\] for 2 rows(.|\n)*a row for each row"):
        b.each(b.input("x", "float32", ("n", 4, 2)), body.build(), batch=2)


async def test_rows_may_be_read_for_a_moment_after_the_node_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane may hold the inputs of a batch until its thread continues."""
    held: list[Any] = []
    run_blocks = QueueServer.run

    async def run_holding(self: QueueServer, values: Any, *args: Any) -> Any:
        held.append([value[:] for value in values])
        return await run_blocks(self, values, *args)

    monkeypatch.setattr(QueueServer, "run", run_holding)
    async with pl.Session(planned()) as session:
        for number in range(4):
            found = await session.run(rows(number, number + 1))
            np.testing.assert_array_equal(found["y0"][:, 0], [2 * number + 1, 2 * number + 3])
