"""Clocks with callbacks: the time line of simulated devices.

A virtual clock moves only on demand, so that tests and predictions are exact. A real clock calls
back at the given time, on its own thread.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..errors import DeviceError
from ..lane import start_thread

_Due = tuple[int, int, Callable[[], object]]
"""Time, order among equal times, callback."""


class Clock(Protocol):
    """The interface between simulated devices and their clock."""

    def open(self) -> None:
        """Start using the clock; each call is matched by one of `close`."""

    def close(self) -> None: ...

    def now_ns(self) -> int: ...

    def call_at(self, t_ns: int, function: Callable[[], object]) -> None:
        """Call `function` at the time `t_ns`, or as soon as possible if it has passed."""

    def hasten(self, reached: Callable[[], bool]) -> None:
        """Move on until `reached()`, if the clock can be moved; called by waiting threads."""


class VirtualClock:
    """A clock that moves only on demand, and calls back on the thread that moves it.

    Callbacks run in order of time, and of registration among equal times, so the same program
    always has the same times. Any number of devices may share one clock.

    Examples
    --------
    >>> clock = VirtualClock()
    >>> clock.call_at(2_000, lambda: print("at", clock.now_ns()))
    >>> clock.advance(3e-6)
    at 2000
    >>> clock.now_ns()
    3000
    """

    def __init__(self) -> None:
        self._now_ns = 0
        self._due: list[_Due] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._moving = threading.RLock()  # one thread at a time moves; callbacks may move, too

    def open(self) -> None:
        """Do nothing: a virtual clock has no thread."""

    def close(self) -> None:
        """Do nothing: a virtual clock has no thread."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the clock was made."""
        return self._now_ns

    def call_at(self, t_ns: int, function: Callable[[], object]) -> None:
        """Call `function` when the clock reaches `t_ns`; on the next move if it has passed."""
        with self._lock:
            heapq.heappush(self._due, (max(t_ns, self._now_ns), next(self._order), function))

    def run_next(self, until_ns: int | None = None) -> bool:
        """Move to the next callback, by `until_ns` if given, and run it; False without one."""
        with self._moving:
            with self._lock:
                if not self._due or (until_ns is not None and self._due[0][0] > until_ns):
                    return False
                self._now_ns, _, function = heapq.heappop(self._due)
            function()
            return True

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` and run the callbacks due; a negative number raises DeviceError."""
        if seconds < 0:
            raise DeviceError(f"a clock does not move by {seconds} s", fix="advance by 0 or more")
        with self._moving:
            until_ns = self._now_ns + round(seconds * 1e9)
            while self.run_next(until_ns):
                pass
            with self._lock:
                self._now_ns = max(self._now_ns, until_ns)

    def run_until_idle(self) -> None:
        """Move on until no callback is left."""
        while self.run_next():
            pass

    def hasten(self, reached: Callable[[], bool]) -> None:
        """Move on until `reached()` or until no callback is left."""
        while not reached() and self.run_next():
            pass


class RealClock:
    """A clock on `time.perf_counter_ns` that calls back on a thread of its own."""

    def __init__(self, name: str = "plait-clock") -> None:
        self._name = name
        self._users = 0
        self._life = threading.Lock()  # one open or close at a time
        self._changed = threading.Condition()
        self._due: list[_Due] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread for the first user; a daemon, so that a killed program ends."""
        with self._life:
            self._users += 1  # first, or the thread would end at once
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start_thread(thread, self._name)
                self._thread = thread

    def close(self) -> None:
        """End the thread after the last user; pending callbacks are dropped."""
        with self._life:
            self._users -= 1
            if self._users or self._thread is None:
                return
            with self._changed:
                self._changed.notify()
            self._thread.join()
            self._thread = None
            self._due.clear()

    def now_ns(self) -> int:
        """Return `time.perf_counter_ns()`."""
        return time.perf_counter_ns()

    def call_at(self, t_ns: int, function: Callable[[], object]) -> None:
        """Call `function` on the clock's thread when the time `t_ns` has come."""
        with self._changed:
            heapq.heappush(self._due, (t_ns, next(self._order), function))
            self._changed.notify()

    def hasten(self, reached: Callable[[], bool]) -> None:
        """Do not wait for `reached()`: real time passes by itself."""

    def _run(self) -> None:
        while (function := self._next()) is not None:
            function()
            del function  # it would keep arrays and results alive until the next one

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next due callback; return None when the clock is closed."""
        with self._changed:
            while self._users:
                ahead_ns = self._due[0][0] - self.now_ns() if self._due else None
                if ahead_ns is not None and ahead_ns <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(None if ahead_ns is None else ahead_ns / 1e9)
            return None


def find_virtual_clock(device: object) -> VirtualClock | None:
    clock = getattr(device, "clock", None)
    return clock if isinstance(clock, VirtualClock) else None
