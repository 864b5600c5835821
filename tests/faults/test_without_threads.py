"""Systems that start no more threads: items run where there are some, or fail with our errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from plait.scheduler.bridges.inline import StreamHere
from plait.scheduler.dispatch import hand_over
from plait.scheduler.runtime import large_copies

ITEMS = range(300)


def double(x: int) -> int:
    return 2 * x


@contextmanager
def refuse_threads(monkeypatch: pytest.MonkeyPatch, prefix: str = "") -> Iterator[list[str]]:
    """Refuse to start threads with names that begin with `prefix`; yield their names."""
    refused: list[str] = []
    start, start_cached = threading.Thread.start, trio.lowlevel.start_thread_soon

    def refuse(thread: threading.Thread) -> None:
        check(thread.name)
        start(thread)

    def refuse_cached(function: Any, deliver: Any, name: str = "") -> None:
        check(name)
        start_cached(function, deliver, name)

    def check(name: str) -> None:
        if name.startswith(prefix):
            refused.append(name)
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr(trio.lowlevel, "start_thread_soon", refuse_cached)
        yield refused


@pytest.mark.parametrize("submits", [False, True])
def test_items_that_get_no_thread_of_their_own_run_on_the_loop(
    submits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pl.pipeline(double, example=1) as pipe:
        session = pipe.open()
        with refuse_threads(monkeypatch, "plait-item") as refused:
            if submits:
                pending = [session.submit(pipe.feeds(n)) for n in ITEMS]
                found = [pipe.result(one.result()) for one in pending]
            else:
                monkeypatch.setattr(
                    StreamHere, "uses_threads", property(lambda here: here.threads > 0)
                )
                monkeypatch.setattr(StreamHere, "is_due", property(lambda here: not here.threads))
                monkeypatch.setattr(StreamHere, "__call__", lambda *_: None)
                with session.stream(map(pipe.feeds, ITEMS)) as results:
                    found = [pipe.result(item.outputs) for item in results]
        assert refused
        assert found == [2 * n for n in ITEMS]
        assert pipe.map(ITEMS) == found


def test_opening_without_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pl.pipeline(double, example=1)
    for name in ("plait-session", "plait-cpu"):
        with refuse_threads(monkeypatch, name), pytest.raises(pl.PlaitError, match="has no thread"):
            pl.BlockingSession(pipe.plan("cpu")).submit(pipe.feeds(1), deadline_s=9).result()
    with pipe:
        assert pipe.run(3) == 6


def test_copies_and_measurements_need_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_copies, "count_cores", lambda: 16)
    source = np.arange(large_copies.SPLIT_BYTES, dtype=np.float64)
    with refuse_threads(monkeypatch) as refused:
        copied = large_copies.duplicate_array(source)
        others = [np.zeros(3), np.zeros(3)]
        one, other = (lambda: others[0].fill(1)), (lambda: others[1].fill(2))
        large_copies.copy_side_by_side(one, other)
        assert hand_over._measure_locks() == hand_over.NOMINAL_NS
    np.testing.assert_array_equal(copied, source)
    assert [array.sum() for array in others] == [3, 6]
    assert len(refused) >= 3
