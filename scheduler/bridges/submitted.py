"""Items that were started without waiting for them, in the order in which they were submitted."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from .loop_thread import Job


class SubmittedItem(Future[Any]):
    """What will come of an item: a `concurrent.futures.Future`, for all that takes those.

    It counts as pending until it is done, so that it can be cancelled at any time before: what has
    not started of the item is skipped then, and `result` raises CancelledError at once. `owner` is
    what must not be collected meanwhile.
    """

    def __init__(self, owner: object) -> None:
        super().__init__()
        self._owner: object = owner
        self._job: Job[Any] | None = None

    def follow(self, job: Job[Any]) -> None:
        """Be done when a job is."""
        self._job = job
        job.outcome.add_done_callback(self._settle)

    def cancel(self) -> bool:
        """Give the item up unless it is done, and say whether it was given up."""
        job, cancelled = self._job, super().cancel()
        if cancelled and job is not None:
            job.cancel()
        return cancelled

    def _settle(self, outcome: Future[Any]) -> None:
        self._job = self._owner = None
        if not self.set_running_or_notify_cancel():
            return
        error = outcome.exception()
        if error is None:
            self.set_result(outcome.result())
        else:
            self.set_exception(error)
