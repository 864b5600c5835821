"""Submitted items that run on threads of the session, one for each replica."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.graph.values.tensor import Array
from plait.scheduler.bridges import asyncio_session, submitted_items
from plait.scheduler.bridges.blocking_session import get_loop
from plait.scheduler.bridges.submitted_items import ItemSubmitter
from plait.scheduler.dispatch.inline_policy import InlineLimit

STUCK, WRONG = -1.0, -2.0
MANY = 100
NOTHING_IS_BRIEF = InlineLimit(0, 0, 0)


class Work:
    """Two functions, one after the other; the first holds up an item with the number STUCK."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Semaphore(0), threading.Event()
        self.seen: list[float] = []
        self.ended: list[float] = []
        self.threads = set[str]()

    def begin(self, x: Array) -> Array:
        number = float(x.flat[0])
        self.seen.append(number)
        self.threads.add(threading.current_thread().name)
        if number == STUCK:
            self.reached.release()
            assert self.opened.wait(WAIT_S)
        if number == WRONG:
            raise ValueError("wrong")
        return x + x

    def end(self, x: Array) -> Array:
        self.ended.append(float(x.flat[0]))
        return x + 1


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def graph(work: Work, forget_operators: None) -> pl.Graph:
    @pl.operator(name="test_submitted_threads.begin")
    def begin(x: Array) -> Array:
        return work.begin(x)

    @pl.operator(name="test_submitted_threads.end")
    def end(x: Array) -> Array:
        return work.end(x)

    b = pl.GraphBuilder("two steps")
    begun = b.call(begin, b.input("x", "float32", (2,)), name="begin")
    b.output("y", b.call(end, begun, name="end"))
    return b.build()


@pytest.fixture
def plan(graph: pl.Graph, monkeypatch: pytest.MonkeyPatch) -> pl.Plan:
    monkeypatch.setattr(submitted_items, "count_cores", lambda: 2)
    pins = {"begin": "cpu:0..1", "end": "cpu:2..3"}
    return pl.plan(graph, list(pins.values()), pin=pins, max_in_flight=4)


@pytest.fixture
def session(work: Work, plan: pl.Plan) -> Iterator[pl.BlockingSession]:
    with pl.BlockingSession(plan) as opened:
        use_threads(opened, work)
        yield opened
        work.opened.set()


def use_threads(session: pl.BlockingSession, work: Work) -> None:
    """Run items until threads run them."""
    while not any(name.startswith("plait-item") for name in work.threads):
        session.submit(make_feeds(0)).result(WAIT_S)
    for seen in (work.seen, work.ended, work.threads):
        seen.clear()


async def use_threads_of(session: pl.AsyncioSession, work: Work) -> None:
    while not any(name.startswith("plait-item") for name in work.threads):
        await session.run(make_feeds(0))
    for seen in (work.seen, work.ended, work.threads):
        seen.clear()


def make_feeds(value: float) -> dict[str, Any]:
    return {"x": np.array([value, 0], "float32")}


def test_items_run_on_threads(session: pl.BlockingSession, work: Work) -> None:
    pending = [session.submit(make_feeds(i)) for i in range(MANY)]
    assert [one.result(WAIT_S)["y"][0] for one in pending] == [2 * i + 1 for i in range(MANY)]
    assert {name.partition(":")[0] for name in work.threads} == {"plait-item"}
    assert sorted(work.seen) == list(range(MANY))
    assert session.status().done >= MANY


def test_lanes_overlap_long_items_where_cores_are_left(
    plan: pl.Plan, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitted_items, "count_cores", lambda: 4)
    monkeypatch.setattr(submitted_items, "ON_LOOP", NOTHING_IS_BRIEF)
    with pl.BlockingSession(plan) as session:
        for i in range(MANY):
            assert session.submit(make_feeds(i)).result(WAIT_S)["y"][0] == 2 * i + 1
    assert not any(name.startswith("plait-item") for name in work.threads)


def test_devices_without_steps_are_shared_by_no_replicas(graph: pl.Graph) -> None:
    devices = ["cpu:0..1", "formal"]
    assert pl.plan(graph, devices, pin={"*": "cpu:0..1"}).has_own_devices
    assert not pl.plan(graph, devices, pin={"begin": "cpu:0..1", "end": "formal"}).has_own_devices


def test_items_of_asyncio_tasks_run_on_threads(
    plan: pl.Plan, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[float]:
        async with pl.AsyncioSession(plan) as session:
            await use_threads_of(session, work)
            found = await asyncio.gather(*(session.run(make_feeds(i)) for i in range(MANY)))
            return [one["y"][0] for one in found]

    monkeypatch.setattr(asyncio_session, "ON_LOOP", NOTHING_IS_BRIEF)
    assert asyncio.run(main()) == [2 * i + 1 for i in range(MANY)]
    assert {name.partition(":")[0] for name in work.threads} == {"plait-item"}


def test_a_cancelled_asyncio_task_waits_for_the_step_that_runs(
    plan: pl.Plan, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            await use_threads_of(session, work)
            task = asyncio.create_task(session.run(make_feeds(STUCK)))
            assert await asyncio.to_thread(work.reached.acquire, timeout=WAIT_S)
            task.cancel()
            await asyncio.sleep(0)
            await session.run(make_feeds(1))
            assert not task.done()
            work.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert work.ended == [2.0]

    monkeypatch.setattr(asyncio_session, "ON_LOOP", NOTHING_IS_BRIEF)
    asyncio.run(main())


def test_a_task_cancelled_while_its_item_waits_ends_at_once(
    plan: pl.Plan, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            await use_threads_of(session, work)
            stuck = [asyncio.create_task(session.run(make_feeds(STUCK))) for _ in range(2)]
            for _ in stuck:
                assert await asyncio.to_thread(work.reached.acquire, timeout=WAIT_S)
            third, fourth = (asyncio.create_task(session.run(make_feeds(n))) for n in (3, 4))
            await asyncio.sleep(0)
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
            assert not stuck[0].done()
            work.opened.set()
            assert (await fourth)["y"][0] == 9
            assert 3 not in work.seen

    monkeypatch.setattr(asyncio_session, "ON_LOOP", NOTHING_IS_BRIEF)
    asyncio.run(main())


def test_each_thread_runs_an_item_at_the_same_time(session: pl.BlockingSession, work: Work) -> None:
    stuck = [session.submit(make_feeds(STUCK)) for _ in range(2)]
    for _ in stuck:
        assert work.reached.acquire(timeout=WAIT_S)
    work.opened.set()
    assert [one.result(WAIT_S)["y"][0] for one in stuck] == [2 * STUCK + 1] * 2


def hold_up(session: pl.BlockingSession, work: Work) -> list[Future[Any]]:
    """Submit an item for each thread, which then waits for the gate."""
    stuck = [session.submit(make_feeds(STUCK)) for _ in range(2)]
    for _ in stuck:
        assert work.reached.acquire(timeout=WAIT_S)
    return stuck


def test_an_item_that_waits_for_a_thread_can_be_cancelled(
    session: pl.BlockingSession, work: Work
) -> None:
    hold_up(session, work)
    third, fourth = session.submit(make_feeds(3)), session.submit(make_feeds(4))
    assert third.cancel()
    assert not concurrent.futures.wait([third], WAIT_S).not_done
    work.opened.set()
    assert fourth.result(WAIT_S)["y"][0] == 9
    assert 3 not in work.seen


def test_steps_of_a_cancelled_item_are_skipped(session: pl.BlockingSession, work: Work) -> None:
    stuck = hold_up(session, work)
    assert stuck[0].cancel()
    work.opened.set()
    stuck[1].result(WAIT_S)
    assert session.submit(make_feeds(1)).result(WAIT_S)["y"][0] == 3
    assert stuck[0].cancelled()
    assert work.ended.count(2 * STUCK) == 1


def test_an_error_is_that_of_its_item_alone(session: pl.BlockingSession) -> None:
    pending = [session.submit(make_feeds(value)) for value in (1, WRONG, 2)]
    pending.append(session.submit({"x": np.zeros(3, "float32")}))
    pending.append(session.submit(make_feeds(1), "nowhere"))
    pending.append(session.submit(make_feeds(3), {"all": "y", "none": []}))
    assert pending[0].result(WAIT_S)["y"][0] == 3
    assert isinstance(pending[1].exception(WAIT_S), pl.KernelError)
    assert pending[2].result(WAIT_S)["y"][0] == 5
    assert isinstance(pending[3].exception(WAIT_S), pl.FeedError)
    assert isinstance(pending[4].exception(WAIT_S), pl.FetchError)
    assert pending[5].result(WAIT_S)["all"][0] == 7


@pytest.mark.parametrize("options", [{"priority": 5}, {"priority": -5}, {"deadline_s": WAIT_S}])
def test_items_of_the_loop_keep_their_place(
    session: pl.BlockingSession, work: Work, options: dict[str, Any]
) -> None:
    """One that has to be run by the loop takes those before it along."""
    hold_up(session, work)
    pending = [session.submit(make_feeds(value)) for value in (1, 2, 3)]
    pending.append(session.submit(make_feeds(4), **options))
    pending += [session.submit(make_feeds(value)) for value in (5, 6)]
    work.opened.set()
    results = [one.result(WAIT_S)["y"][0] for one in pending]
    assert results == [2 * value + 1 for value in (1, 2, 3, 4, 5, 6)]


def test_threads_are_used_again_after_the_loop(session: pl.BlockingSession, work: Work) -> None:
    hold_up(session, work)
    on_loop = session.submit(make_feeds(1), deadline_s=WAIT_S)
    work.opened.set()
    assert on_loop.result(WAIT_S)["y"][0] == 3
    use_threads(session, work)


def test_random_mixes_have_the_results_of_run(session: pl.BlockingSession) -> None:
    random = np.random.default_rng(0)
    pending: list[tuple[int, Future[Any]]] = []
    for number in range(300):
        options: dict[str, Any] = {}
        if random.random() < 0.1:
            options = {"priority": int(random.integers(-3, 4))}
        if random.random() < 0.05:
            session.run(make_feeds(number))
        pending.append((number, session.submit(make_feeds(number), **options)))
        if random.random() < 0.1:
            pending[int(random.integers(len(pending)))][1].cancel()
    for number, one in pending:
        assert one.cancelled() or one.result(WAIT_S)["y"][0] == 2 * number + 1


def test_a_stream_may_run_beside_submitted_items(session: pl.BlockingSession) -> None:
    pending: list[Future[Any]] = []
    for item in session.stream(make_feeds(i) for i in range(MANY)):
        assert item["y"][0] == 2 * item.index + 1
        pending.append(session.submit(make_feeds(item.index)))
    assert [one.result(WAIT_S)["y"][0] for one in pending] == [2 * i + 1 for i in range(MANY)]


def test_closing_fails_the_items_that_wait(session: pl.BlockingSession, work: Work) -> None:
    stuck = hold_up(session, work)
    left = [session.submit(make_feeds(value)) for value in (1, 2)]
    closing = threading.Thread(target=session.close)
    closing.start()
    while not get_loop(session).is_closed:
        pass
    work.opened.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert all(one.done() for one in stuck)
    assert all(isinstance(one.exception(WAIT_S), pl.SessionError) for one in left)
    with pytest.raises(pl.SessionError, match="closed"):
        session.submit(make_feeds(3))


class ClosingLock:
    """A lock that closes a session before it is first taken."""

    def __init__(self, session: pl.BlockingSession) -> None:
        self._session: pl.BlockingSession | None = session
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_an_item_that_comes_while_the_session_closes_is_refused(
    session: pl.BlockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session._submitter, "_lock", ClosingLock(session))
    with pytest.raises(pl.SessionError, match="closed"):
        session.submit(make_feeds(1))


def test_items_that_wait_fail_if_the_loop_ends_while_they_are_handed_over(
    session: pl.BlockingSession, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_up(session, work)
    left = [session.submit(make_feeds(value)) for value in (1, 2)]
    loop = get_loop(session)
    start = loop.start

    def start_and_close(*arguments: Any) -> Any:
        job = start(*arguments)
        work.opened.set()
        loop.close()
        return job

    monkeypatch.setattr(session._submitter.threads, "put", lambda _: False)  # closed, too
    monkeypatch.setattr(loop, "start", start_and_close)
    left.append(session.submit(make_feeds(3), priority=1))
    assert all(isinstance(one.exception(WAIT_S), pl.SessionError) for one in left)


def test_a_callback_may_close_the_session(session: pl.BlockingSession, work: Work) -> None:
    stuck, closed = hold_up(session, work), threading.Event()

    def close(_: Future[Any]) -> None:
        session.close()
        closed.set()

    stuck[0].add_done_callback(close)
    work.opened.set()
    assert closed.wait(WAIT_S)
    assert stuck[1].done() or stuck[1].exception(WAIT_S) is None


def test_a_function_may_submit_items(forget_operators: None) -> None:
    found, opened = list[Future[Any]](), list[pl.BlockingSession]()

    @pl.operator(name="test_submitted_threads.submit")
    def submit(x: Array) -> Array:
        if x.flat[0] > 1:
            found.append(opened[0].submit({"x": x - 1}))
        return x

    b = pl.GraphBuilder("chain")
    b.output("y", b.call(submit, b.input("x", "float32", (2,))))
    with pl.BlockingSession(pl.plan(b.build(), "cpu:0..1")) as session:
        opened.append(session)
        session.submit(make_feeds(50)).result(WAIT_S)
        while len(found) < 49:
            found[-1].result(WAIT_S)
        assert found[-1].result(WAIT_S)["y"][0] == 1


def test_threads_end_with_a_session_that_is_dropped(forget_operators: None) -> None:
    work = Work()

    @pl.operator(name="test_submitted_threads.drop")
    def drop(x: Array) -> Array:
        return work.begin(x)

    b = pl.GraphBuilder("dropped")
    b.output("y", b.call(drop, b.input("x", "float32", (2,))))
    session = pl.BlockingSession(pl.plan(b.build(), "cpu:0..1"))
    use_threads(session, work)
    threads = [one for one in threading.enumerate() if one.name.startswith("plait-item")]
    last = session.submit(make_feeds(7))
    del session
    gc.collect()
    assert last.result(WAIT_S)["y"][0] == 14
    gc.collect()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_session_whose_loop_is_needed_has_no_threads(forget_operators: None) -> None:
    work = Work()

    @pl.operator(name="test_submitted_threads.heard")
    def heard(x: Array) -> Array:
        return work.begin(x)

    b = pl.GraphBuilder("heard")
    b.output("y", b.call(heard, b.input("x", "float32", (2,))))
    plan = pl.plan(b.build(), "cpu:0..1")
    with pl.BlockingSession(plan, on_event=lambda event: None) as session:
        for _ in range(MANY):
            session.submit(make_feeds(1)).result(WAIT_S)
    assert not any(name.startswith("plait-item") for name in work.threads)


def test_plans_that_threads_refuse_hardly_ask_them(
    session: pl.BlockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of items between two attempts doubles each time."""
    tries: list[object] = []
    monkeypatch.setattr(ItemSubmitter, "_try", lambda self, *request: tries.append(request))
    pending = [session.submit(make_feeds(i)) for i in range(600)]
    assert [one.result(WAIT_S)["y"][0] for one in pending] == [2 * i + 1 for i in range(600)]
    assert 1 < len(tries) < 12


def call_from_threads(*functions: Callable[[], object]) -> list[BaseException | None]:
    """Call each of `functions` on a thread, and return their errors."""
    with concurrent.futures.ThreadPoolExecutor(len(functions), "caller") as pool:
        pending = [pool.submit(function) for function in functions]
        return [one.exception(WAIT_S) for one in pending]


def test_callers_run_their_items_at_the_same_time(session: pl.BlockingSession, work: Work) -> None:
    def run_stuck() -> None:
        assert session.run(make_feeds(STUCK))["y"][0] == 2 * STUCK + 1

    def open_gate() -> None:
        for _ in range(2):
            assert work.reached.acquire(timeout=WAIT_S)
        work.opened.set()

    session.run(make_feeds(0))  # the callers are not alone
    assert call_from_threads(run_stuck, run_stuck, open_gate) == [None] * 3
    assert {name.partition("_")[0] for name in work.threads} == {"MainThread", "caller"}


def test_deadlines_keep_callers_on_their_threads(session: pl.BlockingSession, work: Work) -> None:
    def run_late() -> None:
        with pytest.raises(pl.DeadlineError):
            session.run(make_feeds(STUCK), deadline_s=0.01)

    def run_in_line() -> None:
        for _ in range(2):
            assert work.reached.acquire(timeout=WAIT_S)
        with pytest.raises(pl.DeadlineError):  # at once: replicas are held up
            session.run(make_feeds(3), deadline_s=0.01)
        work.opened.set()

    session.run(make_feeds(0))
    assert call_from_threads(run_late, run_late, run_in_line) == [None] * 3
    assert {name.partition("_")[0] for name in work.threads} == {"MainThread", "caller"}
    assert work.seen == [0, STUCK, STUCK]
    assert work.ended == [0]


def test_deadlines_keep_asyncio_items_on_threads(
    plan: pl.Plan, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with pl.AsyncioSession(plan) as session:
            await use_threads_of(session, work)
            stuck = [
                asyncio.create_task(session.run(make_feeds(STUCK), deadline_s=0.01))
                for _ in range(2)
            ]
            for _ in stuck:
                assert await asyncio.to_thread(work.reached.acquire, timeout=WAIT_S)
            with pytest.raises(pl.DeadlineError):
                await session.run(make_feeds(3), deadline_s=0.01)
            work.opened.set()
            for one in stuck:
                with pytest.raises(pl.DeadlineError):
                    await one
            assert (await session.run(make_feeds(4), deadline_s=WAIT_S))["y"][0] == 9

    monkeypatch.setattr(asyncio_session, "ON_LOOP", NOTHING_IS_BRIEF)
    asyncio.run(main())
    assert {name.partition(":")[0] for name in work.threads} == {"plait-item"}
    assert 3 not in work.seen
    assert work.ended == [8]


def test_more_callers_than_replicas_take_turns(session: pl.BlockingSession, work: Work) -> None:
    def run_all(first: int) -> None:
        for value in range(first, first + MANY):
            assert session.run(make_feeds(value))["y"][0] == 2 * value + 1
            if value % 7 == 0:
                with pytest.raises(pl.KernelError):
                    session.run(make_feeds(WRONG))
            if value % 11 == 0:
                assert session.submit(make_feeds(value)).result(WAIT_S)["y"][0] == 2 * value + 1
            if value % 17 == 0:
                assert session.run(make_feeds(value), deadline_s=WAIT_S)["y"][0] == 2 * value + 1

    calls = [partial(run_all, number * MANY) for number in range(5)]
    assert call_from_threads(*calls) == [None] * 5
    assert sorted(set(work.seen)) == [WRONG, *range(5 * MANY)]


def test_the_main_thread_leaves_its_items_to_others_where_callers_share(
    session: pl.BlockingSession, work: Work
) -> None:
    call_from_threads(partial(session.run, make_feeds(0)))
    work.threads.clear()
    assert session.run(make_feeds(1))["y"][0] == 3  # Ctrl-C may strike at any moment
    assert {name.partition(":")[0] for name in work.threads} == {"plait-item"}


def test_a_callback_may_run_items(session: pl.BlockingSession) -> None:
    found = list[Any]()

    def run_more(_: Future[Any]) -> None:
        if threading.current_thread().name.startswith("plait-item"):  # not the loop's
            found.append(session.run(make_feeds(5))["y"][0])

    call_from_threads(partial(session.run, make_feeds(0)))
    pending = [session.submit(make_feeds(value)) for value in range(MANY)]
    for one in pending:
        one.add_done_callback(run_more)
    for one in pending:
        one.result(WAIT_S)
    session.close()
    assert found
    assert set(found) == {11}


def test_a_function_that_runs_an_item_of_its_session_is_refused(forget_operators: None) -> None:
    opened = list[pl.BlockingSession]()

    @pl.operator(name="test_submitted_threads.run")
    def run(x: Array) -> Array:
        return opened[0].run({"x": x - 1})["y"] if x.flat[0] > 1 else x

    b = pl.GraphBuilder("recursive")
    b.output("y", b.call(run, b.input("x", "float32", (2,))))
    with pl.BlockingSession(pl.plan(b.build(), "cpu:0..1")) as session:
        opened.append(session)
        session.run(make_feeds(1))
        errors = call_from_threads(*[partial(session.run, make_feeds(2))] * 3)
    assert all("would wait for the session" in str(one) for one in errors)
