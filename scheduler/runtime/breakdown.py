"""An exception of plait's own in a session: it fails all items in flight and all that follow.

After one, counts and queues cannot be trusted: a lane may never hand on its next step, and an item
never reach its end. So nothing waits for them. Items fail at once. Only closing waits for the steps
that devices work at, since those write to memory that is to be freed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import trio

from ...graph.values.errors import InternalError
from ..errors import make_broken_session_error
from .items.item import ItemRun
from .opened.executor import Execution
from .virtual_time import VirtualTimeDriver

logger = logging.getLogger(__name__)


class Breakdown:
    """The first exception of plait's own in a session; used on the trio thread.

    The `error`, if any, is that of all items in flight at that moment and since.
    """

    def __init__(self) -> None:
        self.error: InternalError | None = None
        self._abandoned: list[Execution] = []

    def begin(self, cause: BaseException) -> bool:
        """Log `cause` and wrap it as an error; return False if there was an error before."""
        if self.error is not None:
            return False
        logger.critical("plait failed inside a session", exc_info=cause)
        self.error = make_broken_session_error(cause)
        return True

    def fail(self, item_runs: Iterable[ItemRun]) -> None:
        """End `item_runs` with the error of the breakdown, without waiting for their steps."""
        assert self.error is not None, "it has begun"
        for item_run in item_runs:
            if item_run.execution is not None:
                item_run.execution.abandon()
                self._abandoned.append(item_run.execution)
            item_run.cause = self.error.again()
            item_run.finish()

    async def settle(self, driver: VirtualTimeDriver) -> None:
        """Wait on the loop of `driver` until devices have ended the steps of failed items."""
        for execution in self._abandoned:
            for event in execution.events:
                if event is not None:
                    ended = trio.Event()
                    event.on_done(lambda _, ended=ended: driver.post(ended.set))  # type: ignore[misc]
                    await ended.wait()
        self._abandoned.clear()


class Admissions:
    """Counts the tasks that are having an item admitted, within ``with``.

    The error of `breakdown` takes the place of those of a session that closes.
    """

    def __init__(self, breakdown: Breakdown) -> None:
        self._breakdown = breakdown
        self.count = 0
        self._ended: trio.Event | None = None

    def __enter__(self) -> None:
        if self._breakdown.error is not None:
            raise self._breakdown.error.again()
        self.count += 1

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.count -= 1
        if self._ended is not None and not self.count:
            self._ended.set()
        if kind is not None and self._breakdown.error is not None and issubclass(kind, Exception):
            raise self._breakdown.error.again()

    async def wait_ended(self) -> None:
        if self.count:
            self._ended = trio.Event()
            await self._ended.wait()
