"""Events: points in a lane's work that any thread can wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .errors import DeviceError


class CancelledWorkError(DeviceError):
    """The work was cancelled before it started, or while it ran if the device can stop it."""


class Event:
    """The completion of one submitted program or copy.

    Callbacks run exactly once, on the thread that completes the event, or at once on the caller's
    when it is complete already. They must be short and must not raise. One thread completes an
    event; any may add callbacks or cancel.

    Attributes
    ----------
    error : BaseException or None
        The work's error; meaningful once `done`.
    started_ns, ended_ns : int
        When the work ran, on the `time.perf_counter_ns` clock; 0 before.
    node_ns : sequence of int or None
        Time spent in each node of a measured program.
    native : object
        The backend's own event, if it has one.
    """

    # No lock is taken here, with or without a global interpreter lock. Each append and pop of a
    # list is one critical section of that list, so that those of `_callbacks` have an order on
    # which all threads agree, and what a thread wrote before one of them is seen after later ones.
    #
    # - The thread that pops a callback runs it, and an append is popped once: none runs twice.
    # - `complete` sets `done`, then pops until it meets the None that `__init__` puts at the
    #   bottom; `on_done` appends, then reads `done`. If the append comes before the pop of the
    #   None, it lies above it, and is popped. If it comes after, its thread sees `done`, and pops
    #   it. None is lost. To look whether the list is empty would not do: without a GIL that takes
    #   no lock, and a processor may read the length before others see that `done` is set.
    # - `error` and the times are written before `done`, and so seen by callbacks, and by readers
    #   of `done`: attributes are published in the order in which they are set.
    #
    # `stop_by` and `cancel` set one attribute and read the other's. Without a GIL a processor that
    # moves reads up may have both miss: the work then continues, as unstoppable work does.
    __slots__ = (
        "_callbacks",
        "_stop",
        "cancelled",
        "done",
        "ended_ns",
        "error",
        "native",
        "node_ns",
        "started_ns",
    )

    def __init__(self, on_done: Callable[[Event], None] | None = None, native: Any = None) -> None:
        self._callbacks: list[Callable[[Event], None] | None]
        self._callbacks = [None] if on_done is None else [None, on_done]
        self._stop: Callable[[], object] | None = None
        self.done = False
        self.cancelled = False
        self.error: BaseException | None = None
        self.started_ns = 0
        self.ended_ns = 0
        self.node_ns: tuple[int, ...] | None = None
        self.native = native

    def on_done(self, callback: Callable[[Event], None]) -> None:
        self._callbacks.append(callback)
        if self.done:
            self._call_back()

    def complete(self, error: BaseException | None = None) -> None:
        """Complete the event, with `error` if any; run its callbacks; later calls do nothing."""
        if self.done:
            return
        self.error = error
        self.done = True
        self._stop = None
        self._call_back()

    def cancel(self) -> None:
        """Ask to skip the work, or to stop it if possible; the event completes in any case.

        A program of single kernels ends after the current one.
        """
        self.cancelled = True
        stop = self._stop
        if stop is not None:
            stop()

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Call `stop()` when the work is cancelled from now on, at once if it is already.

        For work that can be stopped while it runs: it then raises CancelledWorkError. `stop` is
        called on the canceller's thread, perhaps twice, perhaps after the work has ended.
        """
        self._stop = stop
        if self.cancelled:
            stop()

    def run(self, work: Callable[[], Any]) -> None:
        """Run `work` unless cancelled, time it, and complete with its error, if any."""
        error: BaseException | None = None
        self.started_ns = time.perf_counter_ns()
        if self.cancelled:
            error = CancelledWorkError("the work was cancelled before it started")
        else:
            try:
                work()
            except BaseException as raised:  # the lane must survive any error of user code
                error = raised
        self.ended_ns = time.perf_counter_ns()
        self.complete(error)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block the calling thread until complete; raise its error, if any.

        For tests and plain threads; the scheduler never blocks.

        Raises
        ------
        TimeoutError
            If `timeout_s` seconds pass first.
        """
        reached = threading.Event()
        self.on_done(lambda _: reached.set())
        if not reached.wait(timeout_s):
            raise TimeoutError(f"the event is not complete after {timeout_s} s")
        if self.error is not None:
            raise self.error

    def _call_back(self) -> None:
        callbacks = self._callbacks
        while True:
            try:
                callback = callbacks.pop()
            except IndexError:  # another thread took the None
                return
            if callback is None:
                return
            callback(self)
