"""Items that are submitted: futures, in the order of submission (`BlockingSession.submit`)."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.dispatch.ready import ReadyQueue
from plait.scheduler.runtime.opened.lanes import OpenLanes
from small_graphs import X, unary

STUCK = -1.0


class Gate:
    """Holds up the items whose first number says so, on the lane that they run on."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.seen: list[float] = []

    def __call__(self, x: Array) -> Array:
        self.seen.append(float(x.flat[0]))
        if x.flat[0] == STUCK:
            self.reached.set()
            assert self.opened.wait(WAIT_S)
        return x + x


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def session(gate: Gate, forget_operators: None) -> Iterator[pl.BlockingSession]:
    @pl.operator(name="test_submitted_items.pass_gate")
    def pass_gate(x: Array) -> Array:
        return gate(x)

    builder = pl.GraphBuilder("gated")
    builder.output("y", builder.call(pass_gate, builder.input("x", "float32", (2,))))
    with pl.BlockingSession(pl.plan(builder.build(), max_in_flight=2)) as opened:
        yield opened
        gate.opened.set()


def feeds(value: float) -> dict[str, Any]:
    return {"x": np.array([value, 0], "float32")}


def test_results_are_those_of_run(session: pl.BlockingSession) -> None:
    pending = [session.submit(feeds(i)) for i in range(20)]
    assert all(isinstance(item, Future) for item in pending)
    assert [item.result(WAIT_S)["y"][0] for item in pending] == [2 * i for i in range(20)]
    assert all(item.done() and not item.cancelled() for item in pending)
    assert session.submit(feeds(3), "y").result(WAIT_S).tolist() == [6, 0]
    assert session.status().done == 21


def test_items_run_in_the_order_of_submission(session: pl.BlockingSession, gate: Gate) -> None:
    pending = [session.submit(feeds(i)) for i in range(200)]
    concurrent.futures.wait(pending, WAIT_S)
    assert gate.seen == list(range(200))


def test_items_that_assign_do_so_in_the_order_of_submission() -> None:
    builder = pl.GraphBuilder("digits")
    held = builder.variable("held", np.zeros((), "float64"))
    x = builder.input("x", "float64", ())
    builder.assign(held, builder.op("Add", builder.op("Mul", held, np.float64(2)), x))
    builder.output("y", held)
    bits = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0] * 5
    with pl.BlockingSession(pl.plan(builder.build())) as session:
        concurrent.futures.wait([session.submit({"x": np.float64(bit)}) for bit in bits], WAIT_S)
        held_at_the_end = float(session.variables["held"])
    assert held_at_the_end == int("".join(f"{bit:.0f}" for bit in bits), 2)


def test_arrays_may_be_changed_at_once(session: pl.BlockingSession) -> None:
    given = feeds(4)
    item = session.submit(given)
    given["x"].fill(99)
    assert item.result(WAIT_S)["y"][0] == 8


def test_a_failure_is_raised_by_the_result_and_touches_no_other(
    session: pl.BlockingSession,
) -> None:
    wrong = session.submit({"x": np.zeros(3, "float32")})
    unknown = session.submit(feeds(1), "nowhere")
    right = session.submit(feeds(1))
    assert isinstance(wrong.exception(WAIT_S), pl.FeedError)
    with pytest.raises(pl.FetchError):
        unknown.result(WAIT_S)
    assert right.result(WAIT_S)["y"][0] == 2


def test_waiting_for_a_result_can_be_given_up(session: pl.BlockingSession, gate: Gate) -> None:
    item = session.submit(feeds(STUCK))
    with pytest.raises(concurrent.futures.TimeoutError):
        item.result(timeout=0)
    gate.opened.set()
    assert item.result(WAIT_S)["y"][0] == 2 * STUCK


def test_an_item_that_waits_can_be_cancelled_and_those_behind_it_go_on(
    session: pl.BlockingSession, gate: Gate
) -> None:
    """Two are under way, one of them held up; the third has no slot."""
    pending = [session.submit(feeds(STUCK)) for _ in range(2)]
    assert gate.reached.wait(WAIT_S)
    third, fourth = session.submit(feeds(3)), session.submit(feeds(4))
    assert third.cancel()
    assert third.cancelled()
    assert third.done()
    with pytest.raises(CancelledError):
        third.result()
    session.status()  # the loop has heard of it by then
    gate.opened.set()
    assert fourth.result(WAIT_S)["y"][0] == 8
    assert [item.result(WAIT_S)["y"][0] for item in pending] == [2 * STUCK] * 2
    assert gate.seen == [STUCK, STUCK, 4]
    assert not fourth.cancel()


def test_an_item_under_way_can_be_cancelled(session: pl.BlockingSession, gate: Gate) -> None:
    item = session.submit(feeds(STUCK))
    assert gate.reached.wait(WAIT_S)
    assert item.cancel()
    gate.opened.set()
    assert session.run(feeds(1))["y"][0] == 2
    assert item.cancelled()


@pytest.mark.parametrize("moment", range(12))
def test_whichever_are_cancelled_all_others_have_their_results(
    session: pl.BlockingSession, moment: int
) -> None:
    pending = [session.submit(feeds(i)) for i in range(12)]
    for item in pending[moment::3]:
        item.cancel()
    concurrent.futures.wait(pending, WAIT_S)
    for i, item in enumerate(pending):
        assert item.cancelled() or item.result()["y"][0] == 2 * i
        assert not item.cancelled() or i in range(moment, 12, 3)


def test_the_deadline_holds_in_the_queue_too(session: pl.BlockingSession, gate: Gate) -> None:
    """Both slots are taken, one item waits for the next; the last has not got that far."""
    for _ in range(2):
        session.submit(feeds(STUCK))
    assert gate.reached.wait(WAIT_S)
    session.submit(feeds(3))
    late = session.submit(feeds(4), deadline_s=0.01)
    assert isinstance(late.exception(WAIT_S), pl.DeadlineError)
    gate.opened.set()
    assert session.submit(feeds(5)).result(WAIT_S)["y"][0] == 10


def test_closing_fails_what_is_not_done(session: pl.BlockingSession, gate: Gate) -> None:
    pending = [session.submit(feeds(value)) for value in (STUCK, STUCK, 3, 4)]
    assert gate.reached.wait(WAIT_S)
    closing = threading.Thread(target=session.close)
    closing.start()
    for item in pending[2:]:
        assert isinstance(item.exception(WAIT_S), pl.SessionError)
    gate.opened.set()
    closing.join(WAIT_S)
    for item in pending[:2]:  # the first one runs, and may end before it is cancelled
        error = item.exception(WAIT_S)
        assert isinstance(error, pl.SessionError) or (error, item) == (None, pending[0])
    with pytest.raises(pl.SessionError, match="closed"):
        session.submit(feeds(1))


def test_a_session_that_is_dropped_lasts_until_its_items_are_done() -> None:
    before = threading.active_count()
    item = pl.BlockingSession(pl.plan(unary("Relu"))).submit({"x": X})
    gc.collect()
    assert np.array_equal(item.result(WAIT_S)["y"], np.maximum(X, 0))
    for thread in threading.enumerate():
        if thread.name == "plait-session":
            thread.join(WAIT_S)
    assert threading.active_count() <= before + 1  # one of trio's own may stay for a while


def test_a_trio_task_may_submit(session: pl.BlockingSession) -> None:
    async def main() -> Any:
        item = session.submit(feeds(2))
        return await trio.to_thread.run_sync(item.result, WAIT_S)

    assert trio.run(main)["y"][0] == 4


def test_who_is_called_back_may_submit_more(session: pl.BlockingSession) -> None:
    following: list[Future[Any]] = []
    called = threading.Event()

    def follow(item: Future[Any]) -> None:
        following.append(session.submit({"x": item.result()["y"]}))
        called.set()

    session.submit(feeds(1)).add_done_callback(follow)
    assert called.wait(WAIT_S)
    assert following[0].result(WAIT_S)["y"][0] == 4


def test_nothing_is_kept_of_items_that_are_done(session: pl.BlockingSession) -> None:
    gc.collect()
    gc.disable()  # so that it is no collection that frees them
    try:
        item = session.submit(feeds(1))
        item.result(WAIT_S)
        session.run(feeds(1))  # the loop is through with it
        count = sum(isinstance(each, Future) for each in gc.get_objects())
        del item
        assert sum(isinstance(each, Future) for each in gc.get_objects()) < count
    finally:
        gc.enable()


def test_items_of_a_higher_priority_go_first(session: pl.BlockingSession, gate: Gate) -> None:
    stuck = session.submit(feeds(STUCK))
    assert gate.reached.wait(WAIT_S)
    # One more has a slot, and waits for the lane.
    pending = [session.submit(feeds(value)) for value in (1, 2)]
    pending += [session.submit(feeds(value), priority=-1) for value in (3, 4)]
    pending += [session.submit(feeds(value), priority=7) for value in (5, 6)]
    session.submit(feeds(9), priority=9).cancel()
    gate.opened.set()
    assert [one.result(WAIT_S)["y"][0] for one in (stuck, *pending)] == [-2, 2, 4, 6, 8, 10, 12]
    # The second may have been first in the queue before the others came.
    assert [value for value in gate.seen if value not in (2, 9)] == [STUCK, 1, 5, 6, 3, 4]
    assert gate.seen.index(2) < gate.seen.index(3)


def test_steps_of_a_higher_priority_go_first_where_they_meet() -> None:
    lanes = OpenLanes[str]()
    low, high, late = lanes.next_age(), lanes.next_age(3), lanes.next_age()
    queue = ReadyQueue[str]()
    assert queue.offer(low, 0, "under way")
    for age, name in ((late, "late"), (low, "low"), (high, "high")):
        queue.offer(age, 1, name)
    assert [queue.take() for _ in range(4)] == ["high", "low", "late", None]


@pytest.mark.parametrize("priority", [1001, -1001, 0.5, True, "high"])
def test_a_priority_is_a_small_whole_number(session: pl.BlockingSession, priority: Any) -> None:
    with pytest.raises(pl.SessionError, match="priority is"):
        session.submit(feeds(1), priority=priority)
