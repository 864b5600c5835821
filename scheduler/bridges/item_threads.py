"""Threads that run whole items of a session, each on a replica of the plan."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Protocol

import trio

from ...graph.values.errors import PlaitError
from ..runtime.opened.inline import Park, ParkedItem
from .owners import OwnerRef


class ItemRunner(Protocol):
    """Has items that wait for a thread."""

    def run_next(self, begin: Callable[[], object], park: Park) -> object:
        """Run the first item that waits, if any; do not raise.

        The item calls `begin` when the next one may begin, and `park` for items that were parked
        and may go on. Threads end those before they begin others.
        """

    def refuse_next(self) -> object:
        """Do without a thread for the first item that waits: the system has none."""


class ItemThreads:
    """The threads of a session that run whole items; any thread may call the methods.

    A thread that ends an item begins the next one in the queue at once, without a wake-up.
    Threads start when they are first needed, up to `count`.

    The system's threads are those of trio's cache, which later sessions use again: numerical
    libraries keep memory for each thread, which new ones would have to touch first. `call_soon`,
    which calls functions in order, starts them on a thread that receives no signals: Ctrl-C in a
    start would leave a thread that ends at once, or an untracked one.

    Parameters
    ----------
    count : int
    owner : object
        The threads end when it is collected, so that no runner may refer to it while it has none of
        the owner's items.
    call_soon : callable
        Raises PlaitError when the session is closed.
    """

    def __init__(
        self, count: int, owner: object, call_soon: Callable[[Callable[[], object]], object]
    ) -> None:
        self._count = count
        self._call_soon = call_soon
        self._is_closed = False
        self._queue: SimpleQueue[ItemRunner | None] = SimpleQueue()
        self._threads: list[_Thread] = []  # the loop adds them
        # Threads keep it: in a cycle with its owner it would not ring.
        ref = OwnerRef.to(owner, partial(self._queue.put, None))
        self._run_items = partial(_run_items, ref, count, self._queue, Lock(), deque())

    def put(self, runner: ItemRunner) -> bool:
        """Queue the next item of `runner`; return False if the session is closed."""
        self._queue.put(runner)
        try:
            if len(self._threads) < self._count:
                self._call_soon(self._start)
        except PlaitError:
            return False
        return not self._is_closed  # asked last: threads do not look at later ones

    def _start(self) -> None:
        number = len(self._threads)
        if number >= self._count:
            return
        thread = _Thread(partial(self._run_items, number))
        try:
            trio.lowlevel.start_thread_soon(thread.run, thread.note_end, f"plait-item:{number}")
            self._threads.append(thread)
        except RuntimeError:  # the system has no thread
            with suppress(Empty):
                while not self._threads and (runner := self._queue.get_nowait()) is not None:
                    runner.refuse_next()

    @property
    def has_caller(self) -> bool:
        """Whether the caller is on one of the threads."""
        return threading.get_ident() in [thread.ident for thread in self._threads]

    def close(self) -> None:
        """End the threads after the items in the queue, and wait for their end.

        One of them does not wait for the others, which may be waiting for it.
        """
        self._is_closed = True
        self._queue.put(None)
        if not self.has_caller:
            for thread in self._threads:
                thread.ended.wait()


class _Thread:
    """A call of `target` on a thread of the system."""

    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target
        self.ident = 0
        self.ended = threading.Event()

    def run(self) -> None:
        self.ident = threading.get_ident()
        self._target()

    def note_end(self, _: object) -> None:
        self.ident = 0
        self.ended.set()


class ReleaseOnce:
    """Calls `release`, that of a lock, at the first call."""

    __slots__ = ("_release",)

    def __init__(self, release: Callable[[], object]) -> None:
        self._release: Callable[[], object] | None = release

    def __call__(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def _run_items(
    _: OwnerRef,
    count: int,
    queue: SimpleQueue[ItemRunner | None],
    beginning: Lock,
    ready: deque[ParkedItem],
    number: int,
) -> None:
    _begin_on_core(number, count)
    while True:
        while ready:
            _end_first(ready)
        beginning.acquire()  # items begin in order
        begin = ReleaseOnce(beginning.release)
        runner = queue.get()
        if runner is None:
            queue.put(None)  # for the next thread
            begin()
            return
        runner.run_next(begin, ready.append)
        begin()
        del runner  # before the next wait: its owner may be dropped


def _begin_on_core(number: int, count: int) -> None:
    """Move this thread to a core of its own if there are `count`; it may leave it later.

    Virtual machines begin threads on the core of their waker, and leave them there for a while.
    """
    if hasattr(os, "sched_setaffinity") and len(cores := os.sched_getaffinity(0)) == count:
        with suppress(OSError):  # cores were taken away meanwhile
            os.sched_setaffinity(0, {sorted(cores)[number]})
            os.sched_setaffinity(0, cores)


def _end_first(ready: deque[ParkedItem]) -> None:
    try:
        parked = ready.popleft()
    except IndexError:  # another thread has taken it
        return
    parked.end()
