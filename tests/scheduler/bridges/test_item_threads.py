"""The threads of a session that run whole items."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.scheduler.bridges import item_threads
from plait.scheduler.bridges.blocking_session import get_loop
from plait.scheduler.dispatch.inline_policy import Estimates
from stream_threads import (
    Called,
    list_threads,
    make_called_plan,
    make_items,
    send_items_to_threads,
)


@pytest.fixture(autouse=True)
def _all_items_go_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    send_items_to_threads(monkeypatch)
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)


def test_streams_use_the_threads_of_those_before_them() -> None:
    function = Called()
    with pl.BlockingSession(make_called_plan(function)) as session:
        session.map(make_items(20))
        before = list_threads(session)
        for _ in range(3):
            session.map(make_items(20))
        assert list_threads(session) == before
        session.submit({"x": np.zeros(2, np.float32)}).result(WAIT_S)
        assert list_threads(session) == before
    assert all(thread.ended.is_set() for thread in before)


def test_threads_start_where_no_signal_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the start of a thread would end it before it ran anything."""
    starters: list[str] = []
    start = trio.lowlevel.start_thread_soon

    def note(*arguments: Any) -> None:
        starters.append(threading.current_thread().name)
        start(*arguments)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", note)
    with pl.BlockingSession(make_called_plan(Called(), max_in_flight=4)) as session:
        assert len(session.map(make_items(20))) == 20
    assert set(starters) == {"plait-session"}


def test_threads_begin_on_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    add = lambda _, cores: moves.append(set(cores))  # noqa: E731
    monkeypatch.setattr(os, "sched_setaffinity", add, raising=False)
    item_threads._begin_on_core(1, 2)
    assert moves == [{5}, {3, 5}], "and may then leave it"
    item_threads._begin_on_core(1, 3)
    assert len(moves) == 2, "several threads would begin on some cores"


def test_threads_end_with_a_session_that_is_part_of_a_cycle() -> None:
    session = pl.BlockingSession(make_called_plan(Called()))
    session.map(make_items(5))
    threads, cycle = list_threads(session), list[object]([session])
    cycle.append(cycle)
    del session, cycle
    gc.collect()
    assert all(thread.ended.wait(WAIT_S) for thread in threads)


def test_a_stream_that_another_thread_closes_ends_where_its_items_wait_for_threads() -> None:
    function, gate, found = Called(), Event(), list[int]()
    with pl.BlockingSession(make_called_plan(function)) as session:
        session.map(make_items(1))
        function.threads, function.wait_at = [], {0.0: gate, 1.0: gate}
        held = [session.submit(item) for item in make_items(2)]
        while len(function.threads) < 2:
            pass
        results = session.stream(make_items(2))
        consumer = threading.Thread(target=lambda: found.append(len(list(results))))
        consumer.start()
        while results._on_threads < 2:
            pass
        results.close()
        consumer.join(WAIT_S)
        assert found == [0]
        gate.set()
        assert [one.result(WAIT_S)["y"][0] for one in held] == [1, 2]


def call_before(
    monkeypatch: pytest.MonkeyPatch, owner: object, method: str, extra: Callable[[], object]
) -> None:
    before = getattr(owner, method)

    def call() -> None:
        extra()
        before()

    monkeypatch.setattr(owner, method, call)


def test_a_session_that_breaks_down_waits_for_the_items_of_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function, gate, feeds = Called(), Event(), next(make_items(1))
    with pl.BlockingSession(make_called_plan(function)) as session:
        loop = get_loop(session)
        while not any(name.startswith("plait-item") for name in function.threads):
            session.submit(feeds).result(WAIT_S)
        function.threads, function.wait_at = [], {0.0: gate}
        item = session.submit(feeds)
        while not function.threads:
            pass
        call_before(monkeypatch, loop, "wait_for_turn", gate.set)
        loop.call_soon(lambda: 1 / 0)
        assert item.result(WAIT_S)["y"][0] == 1
        assert gate.is_set()


def test_threads_begin_no_items_of_a_session_that_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = pl.BlockingSession(make_called_plan(Called()))
    loop, has_turn = get_loop(session), list[bool]()
    call_before(monkeypatch, loop, "wait_for_turn", lambda: has_turn.append(loop.join_turn(loop)))
    del session
    loop._thread.join(WAIT_S)
    assert has_turn == [False]


class ClosingLock:
    """A lock that closes a session before it is taken."""

    def __init__(self, session: pl.BlockingSession) -> None:
        self._loop = get_loop(session)
        self._lock = self._loop._turn
        self.release = self._lock.release

    def acquire(self, *, blocking: bool) -> bool:
        self._loop._turn = self._lock
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._loop.close).result(WAIT_S)
        return self._lock.acquire(blocking)


def test_no_thread_begins_an_item_while_the_session_closes() -> None:
    session = pl.BlockingSession(make_called_plan(Called()))
    loop: Any = get_loop(session)
    loop._turn = ClosingLock(session)
    assert not loop.join_turn(loop)
    session.close()


@pytest.mark.parametrize("way", ["run", "submit", "map"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_function_may_not_close_the_session_that_runs_it(way: str, lanes: int) -> None:
    function = Called()
    with pl.BlockingSession(make_called_plan(function, lanes)) as session:
        function.inside = session.close
        feeds = next(make_items(1))
        with pytest.raises(pl.KernelError, match="would wait for the session"):
            if way == "run":
                session.run(feeds)
            elif way == "submit":
                session.submit(feeds).result(WAIT_S)
            else:
                session.map([feeds])
        function.inside = None
        assert session.submit(feeds).result(WAIT_S)["y"][0] == 1, "it goes on"


def test_a_thread_with_the_identifier_of_an_ended_loop_may_close_its_session_again() -> None:
    session = pl.BlockingSession(make_called_plan(Called()))
    session.close()
    get_loop(session)._thread._ident = threading.get_ident()  # type: ignore[attr-defined]
    session.close()
