"""The feeds of an item are checked once, be it on any way from its caller to its slot."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.runtime.opened import feeds as feeds_module
from plait.scheduler.runtime.opened.feeds import ItemFeeds, check_feeds
from plait.scheduler.runtime.streaming import keyed_batch  # noqa: F401  # checks feeds, too
from plait.scheduler.runtime.streaming.admission import AdmissionQueue

ROWS = pl.TensorSpec("float32", ("n", 2))
ITEMS = 6

gate = threading.Event()


@pl.operator(ROWS, inputs=[ROWS], name="test_checked_feeds.hold")
def hold(x: Array) -> Array:
    """Let one item wait until the gate opens; others have no slot then."""
    assert gate.wait(WAIT_S)
    return x + 0


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The number of checks by the value that an item begins with; a stack begins as an item."""
    found = Counter[int]()

    def note(graph: pl.Graph, unneeded: frozenset[str], inputs: Mapping[str, Any]) -> ItemFeeds:
        if getattr(inputs, "graph", None) is not graph:
            found[int(np.ravel(inputs["x"])[0])] += 1
        return check_feeds(graph, unneeded, inputs)

    own = (__name__, feeds_module.__name__)
    for name, module in [*sys.modules.items()]:
        if getattr(module, "__dict__", {}).get("check_feeds") is check_feeds and name not in own:
            monkeypatch.setattr(module, "check_feeds", note)
    return found


@pytest.fixture(params=[True, False], ids=["brief", "long"])
def brief(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items run where they are asked for, or do not, on any machine."""
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: request.param)


def make_graph(kind: str, *, holds: bool = False) -> pl.Graph:
    b = pl.GraphBuilder(kind)
    x = b.input("x", "float32", (2, 2) if kind == "static" else ("n", 2))
    x = b.call(hold, x) if holds else x
    b.output("y", b.op("NonZero", x) if kind == "staged" else b.op("Neg", x))
    return b.build()


def feed(number: int) -> dict[str, Any]:
    rows = np.full((2, 2), number + 1, np.float32)
    return {"x": rows.tolist() if number % 2 else rows}  # lists are converted, and not again


def pass_trio(plan: pl.Plan, source: Iterable[Any], arguments: dict[str, Any] | None) -> None:
    async def main() -> None:
        async with pl.Session(plan) as session:
            if arguments is None:
                for one in source:
                    await session.run(one)
            else:
                async with session.stream(source, **arguments) as results:
                    assert [item.error async for item in results] == [None] * ITEMS

    trio.run(main)


def pass_asyncio(plan: pl.Plan, source: Iterable[Any], arguments: dict[str, Any] | None) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            if arguments is None:
                for one in source:
                    await session.run(one)
            else:
                async with session.stream(source, **arguments) as results:
                    assert [item.error async for item in results] == [None] * ITEMS

    asyncio.run(main())


def pass_blocking(plan: pl.Plan, source: Iterable[Any], arguments: dict[str, Any] | None) -> None:
    with pl.BlockingSession(plan) as session:
        if arguments is None:
            for one in source:
                session.run(one)
        else:
            with session.stream(source, **arguments) as results:
                assert [item.error for item in results] == [None] * ITEMS


Door = Callable[[pl.Plan, Iterable[Any], dict[str, Any] | None], None]
doors = pytest.mark.parametrize("door", [pass_trio, pass_asyncio, pass_blocking])
kinds = pytest.mark.parametrize("kind", ["static", "open", "staged"])
ONCE = dict.fromkeys(range(1, ITEMS + 1), 1)


@doors
@kinds
@pytest.mark.parametrize("in_flight", [None, 1, 4])
@pytest.mark.usefixtures("brief")
def test_items_are_checked_once(
    checks: Counter[int], door: Door, kind: str, in_flight: int | None
) -> None:
    arguments = None if in_flight is None else {"max_in_flight": in_flight}
    door(pl.plan(make_graph(kind), ["cpu"]), map(feed, range(ITEMS)), arguments)
    assert checks == ONCE


@doors
@kinds
def test_items_that_wait_for_a_slot_are_checked_once(
    monkeypatch: pytest.MonkeyPatch, checks: Counter[int], door: Door, kind: str
) -> None:
    waiting: list[object] = []
    enqueue = AdmissionQueue._enqueue

    async def note(queue: AdmissionQueue, *item: Any) -> None:
        waiting.append(item)
        gate.set()  # the first item, which has the only slot, may end
        await enqueue(queue, *item)

    gate.clear()
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: False)
    monkeypatch.setattr(AdmissionQueue, "_enqueue", note)
    plan = pl.plan(make_graph(kind, holds=True), ["cpu"], max_in_flight=1)
    door(plan, map(feed, range(ITEMS)), {"max_in_flight": 4})
    assert waiting
    assert checks == ONCE


@doors
@pytest.mark.parametrize("pad", [None, "m"])
@pytest.mark.usefixtures("brief")
def test_items_of_batches_are_checked_once_and_their_stacks_never(
    checks: Counter[int], door: Door, pad: str | None
) -> None:
    b = pl.GraphBuilder("batches")
    b.output("y", b.op("Neg", b.input("x", "float32", ("n", "m"))))
    source = ({"x": np.full((1, 2 + i % 2), i + 1, np.float32)} for i in range(ITEMS))
    door(pl.plan(b.build(), ["cpu"]), source, {"batch": 2, "pad": pad})
    assert checks == ONCE


@doors
@pytest.mark.usefixtures("brief")
def test_items_of_batches_by_key_are_checked_once(checks: Counter[int], door: Door) -> None:
    b = pl.GraphBuilder("sums")
    total = b.variable("total", np.zeros((1, 2), "float32"))
    b.output("sum", total.assign(total + b.input("x", "float32", (1, 2))))
    source = ({"x": np.full((1, 2), i + 1, np.float32), "key": i % 3} for i in range(ITEMS))
    door(pl.plan(b.build(), ["cpu"]), source, {"key": "key", "batch": 2})
    assert checks == ONCE


@pytest.mark.usefixtures("brief")
async def test_items_of_micro_batches_are_checked_once(checks: Counter[int]) -> None:
    plan = pl.plan(make_graph("open"), ["cpu"])
    async with (
        pl.Session(plan) as session,
        pl.MicroBatches(session, size=4) as batches,
        trio.open_nursery() as nursery,
    ):
        for number in range(ITEMS):
            nursery.start_soon(partial(batches.run, feed(number)))
    assert checks == ONCE


def test_feeds_are_arranged_and_converted_in_place_for_one_graph() -> None:
    b = pl.GraphBuilder("two")
    b.output("y", b.op("Add", b.input("a", "float32", (1,)), b.input("b", "float32", (1,))))
    graph = b.build()
    given = ItemFeeds({"b": [2.0], "unread": 0, "a": np.ones(1, np.float32)})
    feeds = check_feeds(graph, frozenset({"unread"}), given)
    assert feeds is given
    assert [*feeds] == ["a", "b"]
    assert feeds["b"].dtype == np.float32
    assert check_feeds(graph, frozenset(), feeds) is feeds
    feeds["b"] = [3.0]  # as if it was not checked
    assert check_feeds(graph, frozenset(), feeds)["b"] == [3.0]
    assert isinstance(check_feeds(b.build(), frozenset(), feeds)["b"], np.ndarray)
    assert type(pickle.loads(pickle.dumps(feeds))) is dict
