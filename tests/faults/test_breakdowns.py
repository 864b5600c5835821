"""Exceptions of plait's own: they break their session and reach all callers that wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.bridges.loop_thread import LoopThread
from plait.scheduler.dispatch.ready import ItemProgress
from plait.scheduler.runtime.opened.lanes import OpenLane
from plait.scheduler.runtime.running.completion import ItemCompletion
from resources import held, left_since

FAULTS: dict[str, tuple[type, str]] = {
    "where a step ends": (ItemProgress, "complete"),
    "where a lane is given its next step": (OpenLane, "take"),
    "where results are taken": (ItemCompletion, "take"),
    "where an item lands on the loop": (ItemCompletion, "land"),
}
N_ITEMS = 12


class Gate:
    """Holds up items, so that several are in flight and others wait."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, x: Array) -> Array:
        self.reached.set()
        assert self.opened.wait(WAIT_S)
        return x + 1


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def plan(gate: Gate, forget_operators: None) -> pl.Plan:
    @pl.operator(name="test_breakdowns.wait")
    def wait(x: Array) -> Array:
        return gate(x)

    b = pl.GraphBuilder("g")
    held = b.call(wait, b.input("x", "float32", ("n", 4)), name="wait")
    b.output("y", b.op("Relu", held, name="relu"))
    return pl.plan(b.build(), ["cpu:0..1"], bounds={"n": 4}, max_in_flight=4)


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes a method of plait fail from now on."""
    owner, name = FAULTS[request.param]

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("injected")

    return lambda: monkeypatch.setattr(owner, name, fail)


@pytest.fixture(autouse=True)
def _leaves_nothing(plan: pl.Plan, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    before = held()
    with caplog.at_level(logging.CRITICAL + 1, "plait"):
        yield
    assert not left_since(before)


def make_feeds(value: float = 1.0) -> dict[str, Any]:
    return {"x": np.full((1, 4), value, "float32")}


def check(error: BaseException | None) -> None:
    assert isinstance(error, pl.InternalError)
    assert "injected" in error.what
    assert isinstance(error.__cause__, AssertionError)


def test_it_reaches_all_items_that_were_submitted_and_all_later_calls(
    plan: pl.Plan, gate: Gate, fault: Callable[[], None]
) -> None:
    with pl.BlockingSession(plan) as session, ThreadPoolExecutor(2) as threads:
        pending: list[Future[Any]] = [session.submit(make_feeds()) for _ in range(N_ITEMS)]
        waiting = [threads.submit(session.run, make_feeds()) for _ in range(2)]
        assert gate.reached.wait(WAIT_S)
        fault()
        gate.opened.set()
        for item in (*pending, *waiting):
            check(item.exception(WAIT_S))
        with pytest.raises(pl.InternalError, match="injected"):
            session.run(make_feeds())
        with pytest.raises(pl.InternalError, match="injected"):
            session.submit(make_feeds()).result(WAIT_S)
        with pytest.raises(pl.InternalError, match="injected"):
            list(session.stream(make_feeds() for _ in range(3)))


def test_it_ends_streams_and_does_not_drain_their_sources(
    plan: pl.Plan, gate: Gate, fault: Callable[[], None]
) -> None:
    drawn = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield make_feeds()

    with pl.BlockingSession(plan) as session:
        opener = threading.Thread(target=partial(_open, gate, fault))
        opener.start()
        with pytest.raises(pl.InternalError, match="injected"):
            for item in session.stream(source()):
                check(item.error)
        opener.join()
    assert drawn < 100


def _open(gate: Gate, fault: Callable[[], None]) -> None:
    assert gate.reached.wait(WAIT_S)
    fault()
    gate.opened.set()


def test_it_reaches_micro_batches(plan: pl.Plan, gate: Gate, fault: Callable[[], None]) -> None:
    with (
        ThreadPoolExecutor(N_ITEMS) as threads,
        pl.BlockingSession(plan) as session,
        pl.BlockingMicroBatches(session, size=2) as batches,
    ):
        pending = [threads.submit(batches.run, make_feeds()) for _ in range(N_ITEMS)]
        _open(gate, fault)
        for item in pending:
            check(item.exception(WAIT_S))


def test_it_reaches_tasks_of_a_trio_session(
    plan: pl.Plan, gate: Gate, fault: Callable[[], None]
) -> None:
    failures: list[BaseException] = []

    async def run(session: pl.Session) -> None:
        try:
            await session.run(make_feeds())
        except pl.InternalError as error:
            failures.append(error)

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan) as session:
                async with trio.open_nursery() as nursery:
                    for _ in range(N_ITEMS):
                        nursery.start_soon(run, session)
                    await trio.to_thread.run_sync(_open, gate, fault)
                with pytest.raises(pl.InternalError, match="injected"):
                    async with session.stream([make_feeds()]) as results:
                        async for _ in results:
                            pass

    trio.run(main)
    assert len(failures) == N_ITEMS
    for error in failures:
        check(error)


def test_a_call_that_fails_on_the_loop_of_a_blocking_session_fails_its_jobs(
    plan: pl.Plan, gate: Gate
) -> None:
    with pl.BlockingSession(plan) as session:
        pending = [session.submit(make_feeds()) for _ in range(N_ITEMS)]
        assert gate.reached.wait(WAIT_S)
        loop = cast("LoopThread[Any]", session._loop)
        loop.call_soon(_fail)
        for item in pending:
            check(item.exception(WAIT_S))
        gate.opened.set()
        with pytest.raises(pl.InternalError, match="injected"):
            session.run(make_feeds())


def _fail() -> None:
    raise AssertionError("injected")


class Idle:
    """Stands in for a session that owns nothing."""

    async def __aenter__(self) -> Idle:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def test_a_loop_that_crashes_leaves_no_job_waiting() -> None:
    loop: LoopThread[Any] = LoopThread(cast(Any, Idle()), owner := Idle())
    loop.open()
    jobs = [loop.start(trio.sleep_forever) for _ in range(N_ITEMS)]
    loop.call_soon(partial(trio.lowlevel.spawn_system_task, _fail_later))
    for job in jobs:
        assert job.outcome.exception(WAIT_S) is not None
    with pytest.raises(trio.TrioInternalError):
        loop.close()
    with pytest.raises(pl.SessionError, match="closed"):
        loop.start(trio.sleep_forever)
    del owner


async def _fail_later() -> None:
    raise AssertionError("injected")


def test_a_callback_that_raises_what_ends_programs_ends_no_session(
    plan: pl.Plan, gate: Gate
) -> None:
    def callback(_: Future[Any]) -> None:
        raise SystemExit(3)

    with pl.BlockingSession(plan) as session:
        gate.opened.set()
        item = session.submit(make_feeds())
        item.add_done_callback(callback)
        assert item.result(WAIT_S)["y"].tolist() == [[2] * 4]
        assert session.submit(make_feeds(2)).result(WAIT_S)["y"].tolist() == [[3] * 4]
