"""Items that run on a thread of the caller's, while the session's loop has nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any

from ..dispatch.inline_policy import InlineLimit
from ..plans.fetches import Fetched, Fetches
from ..profile.timestamps import Timestamps
from ..runtime.items.item import Results
from ..runtime.opened.fetch_plan_cache import ALL
from ..runtime.session import may_run_here, run_inline
from ..runtime.streaming.options import StreamOptions
from .loop_thread import LoopThread

LEAST_PATIENCE, MOST_PATIENCE = 4, 1024
"""So many items of a stream are handed over before one is tried again: twice as many each time."""


def run_item(
    loop: LoopThread[Any], inputs: Mapping[str, Any], fetches: Fetches | None, limit: InlineLimit
) -> tuple[Any] | None:
    """Run an item and return its outputs, or what is fetched, in a tuple.

    None where that is not likely to take less than the limit, or the loop has work to do.
    """
    session = loop.session
    fetched = None if fetches is None else Fetched(fetches, session.plan.fetchable)
    names = ALL if fetched is None else fetched.names
    marks = Timestamps(now := perf_counter_ns(), now)
    results = loop.try_here(partial(run_inline, session, inputs, names, marks, limit))
    if results is None:
        return None
    marks.taken_ns = marks.released_ns = perf_counter_ns()
    return (results if fetched is None else fetched.arranged(results),)


LONG_NS = 10_000_000
"""An item that took as long to come back is not one that could be over at once."""


class StreamHere:
    """Runs items of a stream like that, or says that they have to be handed over.

    Parameters
    ----------
    loop : LoopThread
    options : StreamOptions
    limit : InlineLimit
    """

    def __init__(self, loop: LoopThread[Any], options: StreamOptions, limit: InlineLimit) -> None:
        is_plain = options.batch is None and options.deadline_s is None
        self._may_run = is_plain and may_run_here(loop.session)
        self._left, self._patience = 0, LEAST_PATIENCE
        self._loop = loop
        self._names = options.names
        self._limit = limit

    @property
    def is_due(self) -> bool:
        """True when an item is to be tried here, once all that were handed over are done."""
        return self._may_run and self._left <= 0

    def __call__(self, inputs: Mapping[str, Any], marks: Timestamps) -> Results | None:
        """Run an item and return its results; None where it has to be handed over."""
        if not self.is_due:
            self._left -= 1
            return None
        work = partial(run_inline, self._loop.session, inputs, self._names, marks, self._limit)
        try:
            results = self._loop.try_here(work)
        except Exception:
            self._patience = LEAST_PATIENCE
            raise
        if results is None:
            self._left, self._patience = self._patience, min(2 * self._patience, MOST_PATIENCE)
        else:
            self._patience = LEAST_PATIENCE
        return results
