"""Deadlines of a stream: one task cancels late items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import trio

from ...errors import DeadlineError, SessionError
from .item import ItemRun


def check_deadline(deadline_s: object) -> None:
    """Raise SessionError unless `deadline_s` is a number above 0, or None."""
    if deadline_s is None:
        return
    numbers = int | float | np.integer | np.floating
    if not isinstance(deadline_s, numbers) or not deadline_s > 0:
        raise SessionError(f"deadline_s is {deadline_s!r}", fix="give more than 0 seconds")


def deadline_error(deadline_s: float) -> DeadlineError:
    return DeadlineError(
        f"the item was not done within {deadline_s} s",
        fix="give it longer with deadline_s=, or let fewer items wait: lower max_in_flight",
    )


def begin_deadline(deadline_s: float) -> Callable[[], None]:
    """Return a check as `make_late_check` does, from now on.

    Raises SessionError unless `deadline_s` is a number above 0.
    """
    check_deadline(deadline_s)
    return make_late_check(perf_counter_ns(), deadline_s)


def make_late_check(given_ns: int, deadline_s: float) -> Callable[[], None]:
    """Return a function that raises DeadlineError when `deadline_s` are over since `given_ns`."""
    until_ns = given_ns + 1e9 * deadline_s

    def check() -> None:
        if perf_counter_ns() > until_ns:
            raise deadline_error(deadline_s)

    return check


class Deadlines:
    """Cancels items that miss a common deadline.

    It is `deadline_s` after `add`; `cancel` is called with a late item and the error.
    """

    def __init__(
        self, deadline_s: float, cancel: Callable[[ItemRun, BaseException], object]
    ) -> None:
        self._deadline_s = deadline_s
        self._cancel = cancel
        self._pending: deque[tuple[float, ItemRun]] = deque()
        self._added = trio.lowlevel.ParkingLot()

    def add(self, item_run: ItemRun, waited_s: float = 0.0) -> None:
        """Start the deadline of `item_run`; fail it at once if `waited_s` uses all of the time."""
        if waited_s >= self._deadline_s:
            item_run.finish(error=deadline_error(self._deadline_s))
            return
        self._forget_done()
        self._pending.append((trio.current_time() - waited_s + self._deadline_s, item_run))
        if self._added:
            self._added.unpark_all()

    async def run(self) -> None:
        """Cancel late items forever. Run this in a task while there may be items."""
        while True:
            self._forget_done()
            if not self._pending:
                await self._added.park()
                continue
            moment, item_run = self._pending[0]
            if trio.current_time() < moment:
                await trio.sleep_until(moment)
            else:
                self._pending.popleft()
                self._cancel(item_run, deadline_error(self._deadline_s))

    def _forget_done(self) -> None:
        while self._pending and self._pending[0][1].done.is_set():
            self._pending.popleft()
