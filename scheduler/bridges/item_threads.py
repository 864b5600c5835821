"""Threads that run whole items of a stream, each on a replica of the plan."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, TypeAlias, TypeVar

import trio

from ..runtime.opened.inline import Park, ParkedItem
from .owners import OwnerRef

T = TypeVar("T")
Run: TypeAlias = Callable[[T, Callable[[], object], Park], object]


class ItemThreads(Generic[T]):
    """A pool of threads that take items from one queue.

    A thread that ends an item begins the next one in the queue at once, without a wake-up.
    Threads start when they are first needed. Methods are for one thread at a time.

    The system's threads are those of trio's cache, which later pools use again: numerical libraries
    keep memory for each thread, which new ones would have to touch first. `call_soon` starts them
    elsewhere: Ctrl-C in a start would leave a thread that ends at once, or an untracked one.

    Parameters
    ----------
    run : callable
        Runs an item, given that, a function that it calls when the next item may begin, and one for
        items that were parked and may go on; does not raise. Threads end those before they begin
        others.
    refuse : callable
        Called with each item if the system has no thread.
    owner : object
        The threads end when it is collected, so `run` must not refer to it.
    call_soon : callable
        Calls functions in order on a thread that receives no signals.
    """

    def __init__(
        self,
        count: int,
        run: Run[T],
        refuse: Callable[[T], object],
        owner: object,
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self._count = count
        self._refuse, self._call_soon = refuse, call_soon
        self._may_start = True
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._is_closed = threading.Event()
        ready = deque[ParkedItem]()
        arguments = count, self._queue, Lock(), self._is_closed, run, ready
        self._run_items = partial(_run_items, *arguments)
        self._threads: list[_Thread] = []
        self._owner = OwnerRef.to(owner, partial(self._queue.put, None))

    def put(self, item: T, under_way: int) -> None:
        """Queue `item`; `under_way` earlier ones are queued or running.

        Raises PlaitError if the session was closed before a thread started.
        """
        self._queue.put(item)
        number = len(self._threads)
        if not self._may_start:
            self._refuse_queued()
        elif number < self._count and number <= under_way:
            thread = _Thread(partial(self._run_items, number))
            self._threads.append(thread)
            self._call_soon(partial(self._start, thread, f"plait-stream:{number}"))

    def _start(self, thread: _Thread, name: str) -> None:
        try:
            trio.lowlevel.start_thread_soon(thread.run, thread.note_end, name)
            thread.is_started = True
        except RuntimeError:
            self._may_start = False
            self._threads.remove(thread)
            self._refuse_queued()

    def _refuse_queued(self) -> None:
        """Refuse the queued items, unless a thread takes them."""
        with suppress(Empty):
            while not self._threads and (item := self._queue.get_nowait()) is not None:
                self._refuse(item)

    @property
    def has_caller(self) -> bool:
        """Whether the caller is on one of the threads."""
        return threading.get_ident() in [thread.ident for thread in self._threads]

    @property
    def are_starting(self) -> bool:
        """Whether a thread is still to be started by `call_soon`."""
        return not all(thread.is_started for thread in self._threads)

    def close(self) -> None:
        """Drop the queued items, and end the threads after the running ones."""
        self._is_closed.set()
        self._queue.put(None)

    def join(self) -> None:
        """Wait for the end of the threads, after `close` and all calls of `call_soon`.

        One of them does not wait for the others, which may be waiting for it.
        """
        if self.has_caller:
            return
        for thread in self._threads:
            if thread.is_started:  # otherwise the session was closed before
                thread.ended.wait()


class _Thread:
    """A call of `target` on a thread of the system."""

    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target
        self.ident = 0
        self.is_started = False
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
    count: int,
    queue: SimpleQueue[T | None],
    beginning: Lock,
    is_closed: threading.Event,
    run: Run[T],
    ready: deque[ParkedItem],
    number: int,
) -> None:
    _begin_on_core(number, count)
    while True:
        while ready:
            _end_first(ready)
        beginning.acquire()  # items begin in order
        begin = ReleaseOnce(beginning.release)
        item = queue.get()
        if item is None or is_closed.is_set():
            queue.put(None)  # for the next thread
            begin()
            return
        run(item, begin, ready.append)
        begin()
        del item  # before the next wait: it refers to inputs and results


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
