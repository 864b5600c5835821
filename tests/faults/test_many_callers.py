"""A thousand callers of one session, on threads that are switched at almost any instruction."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.graph.values.tensor import Array

THREADS = 8
PER_THREAD = 125
KINDS = {
    "one lane": ["cpu"],
    "replicas": ["cpu:0..1"],
    "onnxruntime beside numpy": ["ort:0..1", "cpu"],
}


@pytest.fixture(autouse=True)
def _switches_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=KINDS)
def plan(request: pytest.FixtureRequest) -> pl.Plan:
    if "ort" in KINDS[request.param][0]:
        pytest.importorskip("onnxruntime")
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", ("n", 8))
    b.output("y", (b.op("Neg", x) + 1.0).relu())
    return pl.plan(b.build(), KINDS[request.param], bounds={"n": 8}, max_in_flight=4)


def make_feeds(value: int) -> dict[str, Any]:
    return {"x": np.full((1, 8), value, "float32")}


def check(outputs: Any, value: int) -> None:
    assert outputs["y"].tolist() == [[max(1 - value, 0)] * 8]


def run_on_threads(work: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(work, number) for number in range(THREADS)]:
            done.result(WAIT_S)


def test_of_run_and_submit_and_streams(plan: pl.Plan) -> None:
    def call(session: pl.BlockingSession, number: int) -> None:
        chance = random.Random(number)
        for _ in range(PER_THREAD):
            value, way = chance.randrange(-3, 4), chance.random()
            if way < 0.4:
                check(session.run(make_feeds(value)), value)
            elif way < 0.8:
                check(session.submit(make_feeds(value)).result(WAIT_S), value)
            elif way < 0.95:
                check(session.run(make_feeds(value), deadline_s=WAIT_S), value)
            else:
                for item in session.stream([make_feeds(value)] * 3):
                    check(item, value)

    with pl.BlockingSession(plan) as session:
        run_on_threads(partial(call, session))
        assert not session.status().in_flight


def test_of_submit_without_waiting(plan: pl.Plan) -> None:
    def call(session: pl.BlockingSession, number: int) -> None:
        pending = [(session.submit(make_feeds(value)), value) for value in range(PER_THREAD)]
        for item, value in pending:
            check(item.result(WAIT_S), value)

    with pl.BlockingSession(plan) as session:
        run_on_threads(partial(call, session))


def test_of_micro_batches(plan: pl.Plan) -> None:
    def call(batches: pl.BlockingMicroBatches, number: int) -> None:
        for value in range(PER_THREAD // 2):
            check(batches.run(make_feeds(value % 5 - 2)), value % 5 - 2)

    with (
        pl.BlockingSession(plan) as session,
        pl.BlockingMicroBatches(session, size=4) as batches,
    ):
        run_on_threads(partial(call, batches))


def test_of_callbacks_that_submit_more(plan: pl.Plan) -> None:
    left, lock, done = [THREADS * PER_THREAD], threading.Lock(), threading.Event()
    wrong: list[BaseException] = []

    def submit(session: pl.BlockingSession, value: int) -> None:
        session.submit(make_feeds(value)).add_done_callback(partial(ended, session, value))

    def ended(session: pl.BlockingSession, value: int, item: Future[Any]) -> None:
        try:
            check(item.result(), value)
        except BaseException as error:
            wrong.append(error)
        with lock:
            left[0] -= 1
            is_last, goes_on = left[0] == 0, left[0] >= 2 * THREADS
        if is_last or wrong:
            done.set()
        elif goes_on:
            submit(session, (value + 1) % 4)

    def begin(session: pl.BlockingSession, number: int) -> None:
        for value in range(2):
            submit(session, value)

    with pl.BlockingSession(plan) as session:
        run_on_threads(partial(begin, session))
        assert done.wait(WAIT_S)
    assert not wrong


def test_items_that_assign_keep_the_order_in_which_one_thread_submitted_them() -> None:
    b = pl.GraphBuilder("count")
    held = b.variable("held", np.zeros((), "int64"))
    after = held + b.input("x", "int64", ())
    b.assign(held, after)
    b.output("y", after)
    with pl.BlockingSession(pl.plan(b.build())) as session:

        def call(number: int) -> list[int]:
            pending = [session.submit({"x": np.int64(1)}) for _ in range(PER_THREAD)]
            return [int(item.result(WAIT_S)["y"]) for item in pending]

        with ThreadPoolExecutor(THREADS) as threads:
            seen = list(threads.map(call, range(THREADS)))
    assert all(counts == sorted(counts) for counts in seen)
    assert sorted(chain(*seen)) == list(range(1, 1 + THREADS * PER_THREAD))


def test_functions_that_call_other_sessions_are_not_taken_for_callers_of_their_own(
    forget_operators: None,
) -> None:
    inner = pl.GraphBuilder("inner")
    inner.output("y", inner.input("x", "float32", (2,)) + 1.0)

    with pl.BlockingSession(pl.plan(inner.build())) as other:

        @pl.operator(name="test_many_callers.ask")
        def ask(x: Array) -> Array:
            found: Array = other.run({"x": x})["y"]
            return found

        b = pl.GraphBuilder("outer")
        b.output("y", b.call(ask, b.input("x", "float32", (2,))))
        with pl.BlockingSession(pl.plan(b.build(), max_in_flight=4)) as session:

            def call(number: int) -> None:
                for _ in range(PER_THREAD):
                    x = np.full(2, number, "float32")
                    assert session.run({"x": x})["y"].tolist() == [number + 1] * 2

            run_on_threads(call)


def test_the_thread_of_a_loop_does_not_wait_for_its_own_session(plan: pl.Plan) -> None:
    with pl.BlockingSession(plan) as session:

        async def ask() -> None:
            with pytest.raises(pl.SessionError, match="would wait for the session of that item"):
                session._loop.check_outside()

        session._loop.start(ask).result()
