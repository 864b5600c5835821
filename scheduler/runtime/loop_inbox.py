"""Values that threads pass to an event loop, which is woken once for all that wait.

A thread that notifies the loop by `TrioToken.run_sync_soon` writes to a socket, and gives up the
interpreter for that. The loop then works for as long as it has something to do, while the lane
with an ended step waits to start the next one. So the loop is woken here by a call that keeps the
interpreter: the lane continues, and releases it when its next step runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from operator import call
from typing import Generic, TypeVar

import trio

from ...graph.values.errors import PlaitError, register_loop
from ..errors import raise_error

T = TypeVar("T")


def _find_eventfd_write() -> Callable[[int, int], object] | None:
    """Return C's `eventfd_write`, called with the interpreter kept; None if it is missing."""
    try:
        found = ctypes.PyDLL(None).eventfd_write
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    found.argtypes = ctypes.c_int, ctypes.c_uint64
    return found if hasattr(os, "eventfd") else None


write_eventfd = _find_eventfd_write()


class LoopQueue(Generic[T]):
    """A queue in front of an event loop; any thread may `post`.

    `wake` makes the loop call `drain`; it raises RuntimeError or PlaitError if the loop has ended.
    `take` is called on the loop with each value, and `on_error` with its exceptions, by default
    raised.
    """

    def __init__(
        self,
        wake: Callable[[], object],
        take: Callable[[T], object],
        on_error: Callable[[BaseException], object] = raise_error,
    ) -> None:
        self._wake, self._take, self._on_error = wake, take, on_error
        self._values: deque[T | None] = deque()
        self._is_due = False  # the loop has been woken, or is about to be

    def post(self, value: T) -> None:
        """Pass `value` to the loop; nothing happens if the loop has ended."""
        self._values.append(value)
        if not self._is_due:  # waking the loop takes longer than the rest
            self._is_due = True
            try:
                self._wake()
            except (RuntimeError, PlaitError):
                return  # the loop has ended

    def drain(self) -> None:
        """Take the values that have come until now; later ones wait for a turn of the loop.

        No lock is taken, with or without a global interpreter lock: the operations of a deque are
        critical sections of it, and have one order. A value that is queued before the mark is taken
        now. A thread that queues one after the mark sees `_is_due` as it was set before that, and
        wakes the loop again. The deque's length would be no such mark: without a GIL it is read
        without the lock, perhaps before others see the assignment.
        """
        self._is_due = False
        self._values.append(None)
        while (value := self._values.popleft()) is not None:
            try:
                self._take(value)
            except BaseException as error:  # later values are taken all the same
                self._on_error(error)


class LoopInbox(LoopQueue[Callable[[], object]]):
    """Calls for the trio thread, which opens and closes it.

    It takes a task and a descriptor while it is open. Before and after, and where the system has no
    eventfd, trio is woken in its own way. `on_error` is called with the exception of a call.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        super().__init__(self._wake_loop, call, on_error)
        self._lock = threading.Lock()  # so that a closed descriptor is never written
        self._fd: int | None = None
        self._serving = trio.CancelScope()
        self._closed = trio.Event()

    def start(self) -> None:
        """Begin; the loop must run."""
        self._token = trio.lowlevel.current_trio_token()

    def open(self) -> None:
        """Use the descriptor instead of trio's own wake-up."""
        if write_eventfd is not None:
            fd = self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            trio.lowlevel.spawn_system_task(self._serve, fd)

    async def close(self) -> None:
        if self._fd is not None:
            self._serving.cancel()
            await self._closed.wait()

    def _wake_loop(self) -> None:
        with self._lock:
            if self._fd is not None:
                assert write_eventfd is not None
                write_eventfd(self._fd, 1)
                return
        self._token.run_sync_soon(self.drain)

    async def _serve(self, fd: int) -> None:
        try:
            with self._serving:
                while True:
                    await trio.lowlevel.wait_readable(fd)
                    os.eventfd_read(fd)
                    self.drain()
        finally:
            with self._lock:
                self._fd = None
            os.close(fd)
            self.drain()
            self._closed.set()


def _is_ctrl_c_deferred() -> bool:
    """Return whether trio runs on this thread, and delivers Ctrl-C later."""
    is_trios = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    lowlevel = trio.lowlevel
    return is_trios and lowlevel.in_trio_run() and lowlevel.currently_ki_protected()


register_loop(_is_ctrl_c_deferred)
