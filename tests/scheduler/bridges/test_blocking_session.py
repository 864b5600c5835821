"""Sessions for synchronous code."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices.cpu import CpuDevice
from plait.scheduler.bridges.blocking_session import BlockingSession
from resources import await_dropped_sessions, find_session_threads
from small_graphs import X, unary


class RefusingDevice(CpuDevice):
    """Cannot be opened."""

    def open(self, cores: int | None = None) -> None:
        raise pl.DeviceUnavailableError("the device is away", fix="call it back")


def opened() -> BlockingSession:
    return BlockingSession(pl.plan(unary("Relu")))


def test_it_runs_items_one_after_the_other() -> None:
    with opened() as session:
        for scale in (1, 2, -1):
            y = session.run({"x": scale * X})["y"]
            assert np.array_equal(y, np.maximum(scale * X, 0))


def test_several_threads_may_run_items_at_once() -> None:
    with opened() as session, ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda i: session.run({"x": X + i})["y"], range(40))
        for i, y in enumerate(results):
            assert np.array_equal(y, np.maximum(X + i, 0))


def test_a_failed_item_leaves_it_usable() -> None:
    with opened() as session:
        with pytest.raises(pl.FeedError):
            session.run({"x": X.astype(np.float64)})
        assert session.run({"x": X})["y"].shape == X.shape


def test_the_status_counts_items() -> None:
    with opened() as session:
        session.run({"x": X})
        status = session.status()
        assert (status.done, status.in_flight) == (1, 0)
    with pytest.raises(pl.SessionError, match="closed"):
        session.status()


def test_what_opening_raises_is_raised_and_nothing_is_left() -> None:
    before = find_session_threads()
    plan = pl.plan(unary("Relu"), RefusingDevice("away"))
    with pytest.raises(pl.DeviceUnavailableError, match="the device is away"):
        BlockingSession(plan)
    assert find_session_threads() == before


def test_an_interrupt_while_it_opens_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before, result = find_session_threads(), Future.result
    interrupts = [KeyboardInterrupt()]

    def interrupted(future: Future[Any], timeout: float | None = None) -> Any:
        if interrupts:
            raise interrupts.pop()
        return result(future, timeout)

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened()
    assert find_session_threads() == before


def test_a_closed_session_says_so() -> None:
    session = opened()
    session.close()
    session.close()
    with pytest.raises(pl.SessionError, match="closed"):
        session.run({"x": X})


def test_a_dropped_session_closes_itself() -> None:
    before = find_session_threads()
    session = opened()
    assert len(find_session_threads() - before) == 1
    del session
    gc.collect()
    await_dropped_sessions(before)
    assert find_session_threads() == before


def test_a_trio_task_is_not_blocked() -> None:
    async def main(session: BlockingSession) -> None:
        with pytest.raises(pl.SessionError, match="would block the trio task"):
            session.run({"x": X})

    with opened() as session:
        trio.run(main, session)


OPEN = """
import numpy as np, plait as pl
b = pl.GraphBuilder("relu")
b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
session = pl.BlockingSession(pl.plan(b.build()))
print(session.run({"x": np.ones(2, np.float32)})["y"].sum())
"""

WITHOUT_THREADS = f"""
import threading, trio
trio._core._thread_cache.IDLE_TIMEOUT = 0
{OPEN}
for thread in threading.enumerate():
    if thread.name.startswith("Trio"):
        thread.join()
"""
"""Closing needs a new thread, which no Python since 3.12 starts at its end."""


@pytest.mark.parametrize("code", [OPEN, WITHOUT_THREADS])
def test_an_interpreter_ends_although_a_session_is_open(code: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    assert (answer.stdout.strip(), answer.stderr) == ("2.0", "")


def test_a_run_has_a_deadline() -> None:
    @pl.operator(name="test_blocking_session.stuck")
    def stuck(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        assert go_on.wait(WAIT_S)
        return x

    go_on = threading.Event()
    builder = pl.GraphBuilder("stuck")
    builder.output("y", builder.call(stuck, builder.input("x", "float32", X.shape)))
    with BlockingSession(pl.plan(builder.build())) as session:
        releasing = threading.Timer(0.05, go_on.set)
        releasing.start()
        with pytest.raises(pl.DeadlineError, match=r"within 0\.01 s"):
            session.run({"x": X}, deadline_s=0.01)
        releasing.join()
        assert session.run({"x": X}, deadline_s=60)["y"].shape == X.shape
        assert len(session.profile().records) == 2
