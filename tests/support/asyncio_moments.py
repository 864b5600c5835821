"""An asyncio task is cancelled at the n-th moment of either loop, for every n.

A session for asyncio has two: the one of its caller, and a trio loop on another thread. A moment of
the caller's is before or after a callback of that loop, which every step of a task is; one of the
session's is before or after a step of a trio task, and the session stands still there until the
caller has been cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, ClassVar, TypeAlias, TypeVarTuple, Unpack

import pytest
import trio
from moments import AtMoment
from patience import WAIT_S
from plait.scheduler.bridges.loop_thread import LoopThread

Ts = TypeVarTuple("Ts")
Work: TypeAlias = Callable[[], Awaitable[object]]


class MomentLoop(asyncio.SelectorEventLoop):
    """A loop that knows its moments."""

    left = -1
    """How many pass before `strike` is called."""

    strike: Callable[[], object] = staticmethod(lambda: None)

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon(lambda: self._pass(callback, *args), context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(lambda: self._pass(callback, *args), context=context)

    def _pass(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        self._count()
        callback(*args)
        self._count()

    def _count(self) -> None:
        if self.left >= 0:
            self.left -= 1
            if self.left < 0:
                self.strike()


class Watch(trio.abc.Instrument):
    """Tells one `AtMoment` at a time of the moments of every session's loop.

    Attributes
    ----------
    at_moment : AtMoment or None
        Who wants to know.
    """

    at_moment: ClassVar[AtMoment | None] = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.at_moment is not None:
            self.at_moment.before_task_step(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.at_moment is not None:
            self.at_moment.after_task_step(task)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch the loops of all sessions that are opened."""
    main = LoopThread._main

    async def watched_main(loop: LoopThread[Any]) -> None:
        trio.lowlevel.add_instrument(Watch())
        await main(loop)

    monkeypatch.setattr(LoopThread, "_main", watched_main)


def run(main: Work) -> None:
    """Run something on a loop that knows its moments."""
    with asyncio.Runner(loop_factory=MomentLoop) as runner:
        runner.run(_in_time(main))


async def cancelled_here(moment: int, work: Work) -> bool:
    """Cancel work at a moment of its own loop; False if it is over before that."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MomentLoop)
    task = asyncio.ensure_future(work())
    loop.strike = task.cancel
    loop.left = moment
    await _ended(task)
    struck, loop.left = loop.left < 0, -1
    return struck


async def cancelled_often(moment: int, work: Work) -> bool:
    """Cancel work at a moment of its own loop, and at each of some moments after that."""
    loop, strikes = asyncio.get_running_loop(), 0
    assert isinstance(loop, MomentLoop)
    task = asyncio.ensure_future(work())

    def strike() -> None:
        nonlocal strikes
        strikes += 1
        loop.left = 0 if strikes < 5 else -1
        task.cancel()

    loop.strike, loop.left = strike, moment
    await _ended(task)
    loop.left = -1
    return strikes > 0


async def cancelled_there(moment: int, work: Work) -> bool:
    """Cancel work at a moment of the session's loop; False if it is over before that."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work())
    at_moment = Watch.at_moment = AtMoment(moment, partial(_cancel_and_wait, loop, task))
    await _ended(task)
    Watch.at_moment = None
    return at_moment.struck


async def each_moment(
    cancelled: Callable[[int, Work], Awaitable[bool]], work: Work, check: Work, stride: int = 1
) -> int:
    """Cancel work at every `stride`-th moment, check after each; return how many there were."""
    for moment in count(0, stride):
        struck = await cancelled(moment, work)
        await check()
        if not struck:
            return moment
    raise AssertionError("moments are without end")


async def _ended(task: asyncio.Future[object]) -> None:
    """Wait for a task; it may have been cancelled, but not have failed."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _in_time(work: Work) -> None:
    async with asyncio.timeout(WAIT_S):
        await work()


def _cancel_and_wait(loop: asyncio.AbstractEventLoop, task: asyncio.Future[object]) -> None:
    """Cancel a task of another thread, and wait until it knows."""
    cancelled = threading.Event()

    def cancel() -> None:
        task.cancel()
        loop.call_soon(cancelled.set)  # after the task's next step

    loop.call_soon_threadsafe(cancel)
    assert cancelled.wait(WAIT_S), "the caller's loop waits for the session's"
