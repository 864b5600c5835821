"""The threads of a session that run whole items."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.scheduler.bridges import item_threads
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
