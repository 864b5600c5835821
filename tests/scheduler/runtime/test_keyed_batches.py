"""Streams by key in batches: which items run together, and the graphs that can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.dispatch.way_choice import WayChoice
from plait.scheduler.runtime.streaming import keyed_queue
from plait.scheduler.runtime.streaming.batching import Batch, Pace
from plait.scheduler.runtime.streaming.keyed_queue import KeyedQueue

ROWS = pl.TensorSpec("float32", ("rows", 2))
BAD = -1.0

ran: list[list[float]] = []
threads: list[int] = []
gates: dict[float, threading.Event] = {}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    ran.clear()
    gates.clear()
    yield
    gates.clear()


@pl.operator(ROWS, inputs=[ROWS], name="test_keyed_batches.note", ordered=False)
def note(x: Array) -> Array:
    """Note the rows of a call, wait for the gate of one, and fail if one is bad."""
    values = [float(value) for value in x[:, 0]]
    ran.append(values)
    threads.append(threading.get_ident())
    for value in values:
        assert value not in gates or gates[value].wait(WAIT_S)
    if BAD in values:
        raise ValueError("a bad row")
    return x + 0


def make_graph() -> pl.Graph:
    """Return a graph of the sum so far; half of the input goes to a second variable."""
    b = pl.GraphBuilder("sums")
    x = b.call(note, b.input("x", "float32", (1, 2)), name="note")
    halves = b.variable("halves", np.zeros((2, 1, 2), "float32"))
    total = b.variable("total", np.zeros((1, 2), "float32"))
    both = b.op("Concat", b.op("Unsqueeze", x, np.array([0])), halves[:1], axis=0)
    b.output("before", halves.assign(both * 0.5))
    b.output("sum", total.assign(total + x))
    return b.build()


def feed(*items: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"x": np.full((1, 2), value, np.float32), "key": key} for value, key in items]


def get_sums(session: pl.BlockingSession, *items: tuple[float, str], **options: Any) -> list[Any]:
    """Return the sums, and the texts of errors."""
    results = session.stream(feed(*items), key="key", **{"batch": 4} | options)
    return [str(one.error) if one.error else float(one["sum"][0, 0]) for one in results]


ITEMS = [(1.0, "a"), (2.0, "b"), (3.0, "a"), (4.0, "c"), (5.0, "b"), (6.0, "d"), (7.0, "a")]
SUMS = [1, 2, 4, 4, 7, 6, 11]


def test_results_and_state_are_those_of_single_items() -> None:
    with pl.BlockingSession(make_graph()) as session:
        assert get_sums(session, *ITEMS) == SUMS
        assert session.list_keys() == ("c", "b", "d", "a")
        assert session.fetch_variables(key="a")["halves"][:, 0, 0].tolist() == [3.5, 0.75]
        assert session.variables["total"][0, 0] == 0
        assert get_sums(session, (1, "a"), (1, "b"), batch=1) == [12, 8]
        assert get_sums(session, (1, "a"), (1, "b"), batch=None) == [13, 9]
        session.drop_keys(["a"])
        session.assign({"total": np.full((1, 2), 100, np.float32)}, key="b")
        assert get_sums(session, (1, "a"), (1, "b"), copy=True) == [1, 101]


async def test_a_batch_takes_the_items_that_are_ready() -> None:
    gates[1.0] = threading.Event()
    send, receive = trio.open_memory_channel[dict[str, Any]](10)
    found: list[tuple[int, float]] = []

    async def consume(session: pl.Session) -> None:
        async with session.stream(receive, key="key", batch=3, ordered=False) as results:
            async for item in results:
                assert item.error is None
                found.append((item.index, float(item["sum"][0, 0])))

    with trio.fail_after(WAIT_S):
        async with pl.Session(make_graph()) as session, trio.open_nursery() as nursery:
            nursery.start_soon(consume, session)
            for item in feed((1, "a")):  # alone, and at once
                await send.send(item)
            while not ran:  # noqa: ASYNC110
                await trio.sleep(0.001)
            for item in feed((2, "a"), (3, "b"), (4, "b"), (5, "c")):
                await send.send(item)
            await trio.testing.wait_all_tasks_blocked()
            gates[1.0].set()
            while len(found) < 5:  # noqa: ASYNC110
                await trio.sleep(0.001)
            send.close()
    assert ran[0] == [1]
    assert ran[1] == [2, 3, 5]
    assert ran[2] == [4]
    assert sorted(found) == [(0, 1), (1, 3), (2, 3), (3, 7), (4, 5)]


async def test_a_full_batch_starts_beside_another() -> None:
    gates[1.0] = threading.Event()
    plan = pl.plan(make_graph(), ["cpu:0"])

    async def source() -> AsyncIterator[dict[str, Any]]:
        for item in feed((1, "a")):
            yield item
        while not ran:  # noqa: ASYNC110
            await trio.sleep(0.001)
        for item in feed((2, "b"), (3, "c")):
            yield item
        await trio.testing.wait_all_tasks_blocked()
        gates[1.0].set()

    with trio.fail_after(WAIT_S):
        async with pl.Session(plan) as session:
            async with session.stream(source(), key="key", batch=2) as results:
                assert [float(item["sum"][0, 0]) async for item in results] == [1, 2, 3]
    assert ran == [[1], [2, 3]]


async def test_items_that_come_faster_than_they_run_fill_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = KeyedQueue._end_batch

    def end_slowly(queue: KeyedQueue, batch: Batch) -> None:
        end(queue, batch)
        queue._keyed.pace.row_ns = 1 << 60

    monkeypatch.setattr(KeyedQueue, "_end_batch", end_slowly)
    monkeypatch.setattr(keyed_queue, "IDLE_TURNS", 50)
    items = feed(*[(1.0, str(n % 40)) for n in range(400)])
    async with pl.Session(make_graph()) as session:
        async with session.stream(items, key="key", batch=20) as results:
            assert [float(item["sum"][0, 0]) async for item in results] == [
                1 + n // 40 for n in range(400)
            ]
    assert {len(values) for values in ran[1:-2]} == {20}


def test_the_thread_that_asks_runs_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    monkeypatch.setattr(WayChoice, "advance", lambda ways, *_: ways._use(True))
    monkeypatch.setattr(Pace, "row_ns", 1 << 60)
    monkeypatch.setattr(Pace, "note", lambda *_: None)
    with pl.BlockingSession(pl.plan(make_graph(), "cpu")) as session:
        for _ in range(9):  # plans for each number of rows are opened
            assert get_sums(session, *ITEMS) == SUMS
            get_sums(session, (1.0, "a"), (1.0, "b"))
            session.drop_keys()
            ran.clear()
            threads.clear()
        get_sums(session, *((1.0, key) for key in "abcd" * 3), (BAD, "a"), *ITEMS[:3])
    assert {*threads} == {threading.get_ident()}
    assert [len(one) for one in ran[:3]] == [4, 4, 4]
    assert ran[3:] == [[BAD, 2], [BAD], [2], [1], [3]]


def test_a_delay_fills_batches() -> None:
    def source() -> Iterator[dict[str, Any]]:
        yield from feed((1, "a"), (2, "b"), (3, "c"))

    with pl.BlockingSession(make_graph()) as session:
        items = session.stream(source(), key="key", batch=3, max_delay_s=WAIT_S)
        assert [float(item["sum"][0, 0]) for item in items] == [1, 2, 3]
    assert ran == [[1, 2, 3]]


@pytest.mark.parametrize("n_bad", [1, 2])
def test_only_the_guilty_items_of_a_batch_fail(n_bad: int) -> None:
    items = [(1.0, "a"), (BAD, "b"), (2.0, "c"), (BAD if n_bad == 2 else 4.0, "d"), (3.0, "a")]
    with pl.BlockingSession(make_graph()) as session:
        found = get_sums(session, *items, (5.0, "b"), (6.0, "d"), max_delay_s=WAIT_S)
        guilty = [index for index, one in enumerate(found) if isinstance(one, str)]
        assert guilty == [index for index, (value, _) in enumerate(items) if value == BAD]
        assert all("a bad row" in found[index] for index in guilty)
        assert found[4:] == [4, 5, 6 if n_bad == 2 else 10]
        with pytest.raises(pl.KernelError, match="a bad row"):
            get_sums(session, (BAD, "a"), on_error="raise")
        assert get_sums(session, (1, "a")) == [5]


def test_wrong_feeds_fail_alone_and_leave_no_key() -> None:
    fed = feed((1, "a"), (2, "b"), (3, "c"))
    fed[1]["x"] = np.ones((2, 2), np.float32)
    with pl.BlockingSession(make_graph()) as session:
        items = [*session.stream(fed, key="key", batch=4)]
        assert [type(item.error) for item in items] == [type(None), pl.FeedError, type(None)]
        assert session.list_keys() == ("a", "c")
        (item,) = session.stream([{"x": fed[0]["x"]}], key="key", batch=4)
        assert "the item has no 'key'" in str(item.error)


def test_an_item_that_misses_its_deadline_leaves_no_trace() -> None:
    gates[2.0] = threading.Event()
    opening = threading.Timer(0.3, gates[2.0].set)

    def source() -> Iterator[dict[str, Any]]:
        for value, fed in enumerate(feed(*[(float(n), "ab"[n % 2]) for n in range(8)])):
            if value == 2:
                opening.start()
            yield fed

    with pl.BlockingSession(make_graph()) as session:
        items = [*session.stream(source(), key="key", batch=2, deadline_s=0.1)]
        for key in "ab":
            fine = [one.index for one in items if one.error is None and "ab"[one.index % 2] == key]
            assert session.fetch_variables(key=key)["total"][0, 0] == sum(fine)
    opening.join()
    assert isinstance(items[2].error, pl.DeadlineError)


async def test_callers_drop_and_assign_keys_between_items() -> None:
    sums: list[float] = []

    async def consume(session: pl.Session) -> None:
        items = feed(*[(1.0, "ab"[index % 2]) for index in range(40)])
        async with session.stream(items, key="key", batch=4) as results:
            async for item in results:
                assert item.error is None
                sums.append(float(item["sum"][0, 0]))

    with trio.fail_after(WAIT_S):
        async with pl.Session(make_graph()) as session, trio.open_nursery() as nursery:
            nursery.start_soon(consume, session)
            while len(sums) < 5:  # noqa: ASYNC110
                await trio.sleep(0.001)
            await session.drop_keys(["a"])
            await session.assign({"total": np.full((1, 2), 1000, np.float32)}, key="b")
    begun_again = sums[::2].index(1, 1)
    assert sums[::2] == [*range(1, begun_again + 1), *range(1, 21 - begun_again)]
    assigned = next(index for index, value in enumerate(sums[1::2]) if value > 1000)
    assert sums[1::2] == [*range(1, assigned + 1), *range(1001, 1021 - assigned)]


async def test_a_stream_that_is_left_holds_up_nobody() -> None:
    gates[3.0] = threading.Event()
    with trio.fail_after(WAIT_S):
        async with pl.Session(make_graph()) as session:
            async with session.stream(feed(*ITEMS), key="key", batch=2, ordered=False) as results:
                first = await anext(results)
                assert first["sum"][0, 0] in (1, 2)
                gates[3.0].set()
            state = await session.fetch_variables(key="a")
            assert state["total"][0, 0] in (1, 4, 11)
            await session.drop_keys()
            async with session.stream(feed(*ITEMS), key="key", batch=2) as results:
                assert [float(item["sum"][0, 0]) async for item in results] == SUMS


async def test_streams_of_the_same_keys_take_turns() -> None:
    async def count(session: pl.Session, batch: int | None) -> None:
        items = feed(*[(1.0, "abc"[index % 3]) for index in range(90)])
        async with session.stream(items, key="key", batch=batch) as results:
            async for item in results:
                assert item.error is None

    async def run(session: pl.Session) -> None:
        for _ in range(30):
            await session.run({"x": np.ones((1, 2), np.float32)})

    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(make_graph(), "cpu", max_in_flight=3)) as session:
            async with trio.open_nursery() as nursery:
                for batch in (2, None, 3):
                    nursery.start_soon(count, session, batch)
                nursery.start_soon(run, session)
            for key in "abc":
                assert (await session.fetch_variables(key=key))["total"][0, 0] == 90
            assert session.variables["total"][0, 0] == 30


def test_every_door_has_batches_of_keys() -> None:
    async def main() -> list[float]:
        async with pl.AsyncioSession(make_graph()) as session:
            async with session.stream(feed(*ITEMS), key="key", batch=3) as results:
                return [float(item["sum"][0, 0]) async for item in results]

    assert asyncio.run(main()) == SUMS
    with pl.BlockingSession(make_graph()) as session:
        done = session.map(feed(*ITEMS), key="key", batch=3)
        assert [float(one["sum"][0, 0]) for one in done] == SUMS
    with pl.pipeline(measure, make_graph(), example="a") as pipe:
        with pytest.raises(pl.SessionError, match="no axis for rows"):
            pipe.map(["a", "bb"], key=len, batch=2)


def measure(word: str) -> Array:
    return np.full((1, 2), len(word), np.float32)


def test_fetches_and_views() -> None:
    with pl.BlockingSession(make_graph()) as session:
        items = session.stream(feed(*ITEMS), key="key", batch=4, fetches=["sum"])
        assert [float(item.fetched[0][0, 0]) for item in items] == SUMS
        assert not session.fetch_variables(key="a")["halves"].any()

    async def main() -> None:
        async with pl.Session(make_graph()) as session:
            async with session.stream(feed(*ITEMS), key="key", batch=4, copy=False) as results:
                found = [(float(item["sum"][0, 0]), item["before"].shape) async for item in results]
        assert found == [(one, (2, 1, 2)) for one in SUMS]

    trio.run(main)


@pytest.mark.parametrize("fetches", [None, "twice", "three", ["x", "sum"], ["w", "sum"]])
@pytest.mark.parametrize("devices", [["cpu"], ["ort", "cpu"]])
def test_outputs_of_every_kind_are_those_of_single_items(devices: list[str], fetches: Any) -> None:
    b = pl.GraphBuilder("outputs")
    x = b.input("x", "float32", (1, 2))
    total = b.variable("total", np.zeros((1, 2), "float32"))
    b.output("sum", total.assign(total + x @ b.variable("w", np.ones((2, 2), "float32"))))
    b.output("twice", x * 2.0)
    b.output("three", b.constant(np.arange(3)))
    b.output("before", total)
    fed = feed(*ITEMS)
    with pl.BlockingSession(pl.plan(b.build(), devices)) as session:
        wanted = [dict(item.outputs) for item in session.stream(fed, key="key", fetches=fetches)]
        session.drop_keys()
        items = session.stream(fed, key="key", batch=3, fetches=fetches)
        for item, one in zip(items, wanted, strict=True):
            assert item.outputs.keys() == one.keys()
            for name, array in one.items():
                np.testing.assert_array_equal(item[name], array, strict=True)


def test_items_of_other_lengths_go_into_other_batches() -> None:
    b = pl.GraphBuilder("lengths")
    x = b.input("x", "float32", (1, "samples"))
    total = b.variable("total", np.zeros((1, 1), "float32"))
    b.output("sum", total.assign(total + x.sum(axis=1, keepdims=True)))
    fed = [{"x": np.ones((1, 1 + n % 3), np.float32), "key": n % 4} for n in range(24)]
    for bounds in (None, {"samples": 4}):
        with pl.BlockingSession(pl.plan(b.build(), "cpu", bounds=bounds)) as session:
            items = session.stream(fed, key="key", batch=4)
            found = [float(item["sum"][0, 0]) for item in items]
    totals = [0.0] * 4
    for index, sum_now in enumerate(found):
        totals[index % 4] += 1 + index % 3
        assert sum_now == totals[index % 4]


@pl.operator(ROWS, inputs=[ROWS], name="test_keyed_batches.tell", effects=True)
def tell(x: Array) -> Array:
    return x + 0


@pl.operator(ROWS, inputs=[ROWS], name="test_keyed_batches.Tracker", ordered=True)
class Tracker:
    def run(self, x: Array) -> Array:
        return x + 0


ROW = pl.TensorSpec("float32", (1, 2))


@pl.operator(ROW, inputs=[ROW], name="test_keyed_batches.of_one", ordered=False)
def of_one(x: Array) -> Array:
    return x + 0


def build(axis_free: bool = False, **outputs: Any) -> pl.Graph:
    """Return a graph of a sum and an output that a function makes of it."""
    shape = (2,) if axis_free else (1, 2)
    b = pl.GraphBuilder("refused")
    x = b.input("x", "float32", shape)
    total = b.variable("total", np.zeros(shape, "float32"))
    now = total.assign(total + x)
    for name, make in outputs.items():
        b.output(name, make(b, now))
    return b.build()


@pytest.mark.parametrize(
    ("graph", "message", "node"),
    [
        (build(y=lambda b, x: x.sum(axis=0, name="mixer")), "depends on the others", "mixer"),
        (build(y=lambda b, x: b.call(tell, x, name="f")), "for one item after", "f"),
        (build(y=lambda b, x: b.call(Tracker, x, name="f")), "for one item after", "f"),
        (build(y=lambda b, x: b.call(of_one, x, name="f")), "must be float32.1, 2., got", "f"),
        (
            build(y=lambda b, x: b.op("RandomNormalLike", x, name="noise")),
            "draws random numbers",
            "noise",
        ),
        (build(y=lambda b, x: b.op("NonZero", x, name="found")), "it is not known", "found"),
        (
            build(True, y=lambda b, x: x.softmax(axis=0, name="soft")),
            "is not elementwise, and what is fed has no axis of 1",
            "soft",
        ),
        (
            build(y=lambda b, x: b.op("Reshape", x, np.array([2]), name="flat")),
            "with rows in place of an axis of 1",
            "flat",
        ),
    ],
)
def test_graphs_that_mix_items_are_refused(graph: pl.Graph, message: str, node: str) -> None:
    fed = {name: np.ones(graph.tensors[name].static_shape, np.float32) for name in graph.inputs}
    with pl.BlockingSession(pl.plan(graph, "cpu")) as session:
        with pytest.raises(pl.SessionError, match=message) as caught:
            session.stream([fed], key=lambda _: 1, batch=4)
        assert node in str(caught.value.at)
        assert "leave batch= out" in str(caught.value.fix)
        (item,) = session.stream([fed], key=lambda _: 1)
        assert item.error is None or node == "found"  # of a length that depends on values
