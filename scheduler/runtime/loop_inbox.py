"""Calls that other threads have the trio thread make, in the order in which they come.

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
from contextlib import suppress

import trio

from ...graph.values.errors import register_loop


def _find_eventfd_write() -> Callable[[int, int], object] | None:
    """Return C's function, called with the interpreter kept; None if it is missing."""
    try:
        found = ctypes.PyDLL(None).eventfd_write
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    found.argtypes = ctypes.c_int, ctypes.c_uint64
    return found if hasattr(os, "eventfd") else None


write_eventfd = _find_eventfd_write()


class LoopInbox:
    """Opened and closed on the trio thread; any thread may `post`.

    It takes a task and a descriptor while it is open. Before and after, and where the system has no
    eventfd, trio is woken in its own way.

    Parameters
    ----------
    on_error : callable
        Called with the exception of a call.
    """

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self._on_error = on_error
        self._calls: deque[Callable[[], object] | None] = deque()
        self._is_due = False  # the loop has been woken, or is about to be
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
        """Release the resources of `open`."""
        if self._fd is not None:
            self._serving.cancel()
            await self._closed.wait()

    def post(self, call: Callable[[], object]) -> None:
        """Have the trio thread make a call; nothing happens where the loop has ended."""
        self._calls.append(call)
        if not self._is_due:
            self._is_due = True
            with self._lock:
                if self._fd is not None:
                    assert write_eventfd is not None
                    write_eventfd(self._fd, 1)
                    return
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._make_calls)

    def _make_calls(self) -> None:
        """Make the calls that have come until now; those that come meanwhile wait for a turn.

        No lock is taken, with or without a global interpreter lock: the operations of a deque are
        critical sections of it, and have one order. A call that is queued before the mark is made
        now. A thread that queues one after the mark sees `_is_due` as it was set before that, and
        wakes the loop again. The deque's length would be no such mark: without a GIL it is read
        without the lock, perhaps before others see the assignment.
        """
        self._is_due = False
        self._calls.append(None)
        while (call := self._calls.popleft()) is not None:
            try:
                call()
            except BaseException as error:  # later calls are made all the same
                self._on_error(error)

    async def _serve(self, fd: int) -> None:
        try:
            with self._serving:
                while True:
                    await trio.lowlevel.wait_readable(fd)
                    os.eventfd_read(fd)
                    self._make_calls()
        finally:
            with self._lock:
                self._fd = None
            os.close(fd)
            self._make_calls()
            self._closed.set()


def _is_ctrl_c_deferred() -> bool:
    """Return whether trio runs on this thread, and delivers Ctrl-C later."""
    is_trios = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    lowlevel = trio.lowlevel
    return is_trios and lowlevel.in_trio_run() and lowlevel.currently_ki_protected()


register_loop(_is_ctrl_c_deferred)
