"""Items that run on callers' threads while the session's loop is idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from ...graph.core.state import find_variables
from ..dispatch.inline_policy import InlineLimit
from ..dispatch.way_choice import WayChoice, read_busy_ns
from ..plans.fetches import Fetched, Fetches
from ..profile.timestamps import Timestamps
from ..runtime.items.deadlines import make_late_check
from ..runtime.opened.fetch_plan_cache import ALL
from ..runtime.opened.inline import Park, ParkedItem
from ..runtime.opened.results import Outcome, Results
from ..runtime.running.inline_runner import InlineTerms, StreamThread
from ..runtime.session import Session, get_carrier, may_run_here, run_inline
from ..runtime.streaming.batching import Pace
from ..runtime.streaming.item_run import run_now
from ..runtime.streaming.options import StreamOptions
from ..runtime.streaming.sources import Pulled
from ..runtime.streaming.stacked_items import StackedItems
from .loop_thread import LoopThread

RUNS_ALONE = 16
"""After this number of runs in a row, a thread counts as the only one that runs items."""


def run_item(
    loop: LoopThread[Any],
    inputs: Mapping[str, Any],
    fetches: Fetches | None,
    limit: InlineLimit,
    check: Callable[[], object] | None = None,
) -> tuple[Any] | None:
    """Run `inputs` on `loop` and return the outputs, or the `fetches`, in a tuple.

    Returns None if that is likely to exceed `limit`, or the loop is busy. An error that `check`
    raises between steps ends the item.
    """
    session = loop.session
    fetched = None if fetches is None else Fetched(fetches, session.plan.fetchable)
    names = ALL if fetched is None else fetched.names
    marks = Timestamps(now := perf_counter_ns(), now)
    terms = InlineTerms(names, limit, check=check)
    results = loop.try_here(run_inline, session, inputs, marks, terms)
    if results is None:
        return None
    marks.taken_ns = marks.released_ns = perf_counter_ns()
    return (results if fetched is None else fetched.arranged(results),)


def count_threads(session: Session) -> int:
    """Return the number of threads that may run items of `session` at the same time, or 0."""
    plan = session.plan
    can_share = may_run_here(session) and plan.has_own_devices
    return plan.variants if can_share and not find_variables(plan.graph) else 0


class Callers:
    """Counts the runs of one thread in a row; used by any thread.

    Attributes
    ----------
    are_several : bool
        Whether more than one thread has run items.
    """

    are_several = False

    def __init__(self) -> None:
        self._last = self._runs = 0

    def note(self) -> bool:
        """Note a run of this thread; return whether no other thread has run items lately."""
        thread = get_ident()
        if thread != self._last:
            self.are_several = self._last > 0
            self._last, self._runs = thread, 0
        self._runs += 1
        return self._runs > RUNS_ALONE


class StreamHere:
    """Runs items of a stream on the caller's thread, or on threads of the session.

    It uses the fastest of these for each item; otherwise items are handed over to the loop.

    Those that stack the items of batches themselves are run by `run_stacked`. Some items `may_run`
    elsewhere than on the loop, on as many `threads`; after one had to be handed over to the loop,
    `are_threads_refused` until no thread has an item. `ways` has the choice. `pace` is that of
    batches of several keys.
    """

    def __init__(
        self,
        loop: LoopThread[Any],
        options: StreamOptions,
        limit: InlineLimit,
        *,
        stacks: bool = False,
    ) -> None:
        is_single = options.batch is None and options.key is None
        is_plain = options.max_delay_s is None and (is_single or options.deadline_s is None)
        is_plain = is_plain and (options.batch is None or stacks)
        plan = loop.session.plan
        self.may_run = is_plain and may_run_here(loop.session)
        self._carrier = get_carrier(loop.session) if self.may_run else None
        is_plain = is_plain and options.key is None
        self.threads = count_threads(loop.session) if is_plain else 0
        self.pace: Pace | None = None
        self.are_threads_refused = False
        lanes = len(plan.every_device)
        self._stacked = stacked = options.batch or 1
        self.ways = WayChoice(
            options.max_in_flight,
            lanes,
            limit.most_ns(lanes) // stacked,
            self._read_item_ns,
            None if self._carrier is None else self._carrier.way_memory,
            stacked=stacked,
        )
        self._loop = loop
        self._terms = InlineTerms(options.names, limit, options.slots)
        self._deadline_s = options.deadline_s

    @property
    def is_due(self) -> bool:
        """Whether the next item is to run here, once all that were handed over are done."""
        return self.may_run and self.ways.is_here

    @property
    def uses_threads(self) -> bool:
        ways = self.ways
        if self.are_threads_refused or ways.is_here or ways.is_refused:
            return False
        return self.threads > 0

    def note(self) -> None:
        ways = self.ways
        ways.left -= 1
        if not ways.left:
            ways.advance(perf_counter_ns(), read_busy_ns(ways.is_here))

    def leave_threads(self) -> None:
        """Hand items over to the loop for some time, since one could not run on a thread."""
        if not self.ways.is_refused:
            self.ways.refuse()

    def _read_item_ns(self) -> int:
        if self.pace is not None:
            return self.pace.row_ns
        return 0 if self._carrier is None else self._carrier.item_ns // self._stacked

    def __call__(self, inputs: Mapping[str, Any], marks: Timestamps) -> Results | None:
        """Run `inputs` and return the results, or None to hand them over; `marks` get the times."""
        if self._carrier is None or not self.ways.is_here:
            return None
        terms = self._terms if self._deadline_s is None else self._within_time(self._terms, marks)
        results = self._loop.try_here(run_now, self._carrier, inputs, marks, terms)
        if results is None:
            self.ways.refuse()
        return results

    def _within_time(self, terms: InlineTerms, marks: Timestamps) -> InlineTerms:
        assert self._deadline_s is not None
        return terms._replace(check=make_late_check(marks.given_ns, self._deadline_s))

    def run_stacked(self, items: StackedItems) -> list[Outcome] | None:
        """Run `items` together and return their outcomes, or None if they must be handed over."""
        if self._carrier is None or not self.ways.is_here:
            return None
        outcomes = self._loop.try_here(items.run, self._carrier, self._terms)
        if outcomes is None:
            self.ways.refuse()
        return outcomes

    def run_on(
        self,
        pulled: Pulled | StackedItems,
        begin: Callable[[], object],
        park: Park | None,
        parked: ParkedItem | None = None,
    ) -> Results | list[Outcome] | None:
        """Run `pulled`, an item or a batch, on this thread; return None if the loop has to run it.

        Later items are then handed over, too, to keep their order. An item that was `parked` goes
        on, and any may be parked in place of its results. `begin` and `park` are those of a
        `StreamThread`.
        """
        if parked is not None:
            self._loop.pass_turn(parked, get_ident())
            return self._run_in_turn(pulled, self._terms, parked)
        if self.are_threads_refused or not self.may_run:
            self.are_threads_refused = True
            return None
        replica = self._loop.replicas.get()
        try:
            if not self._loop.join_turn(self):
                self.are_threads_refused = True
                return None
            names, limit, slots, *_ = self._terms
            terms = InlineTerms(names, limit, slots, StreamThread(replica, begin, park))
            return self._run_in_turn(pulled, terms, None)
        finally:
            self._loop.replicas.put(replica)

    def _run_in_turn(
        self, pulled: Pulled | StackedItems, terms: InlineTerms, parked: ParkedItem | None
    ) -> Results | list[Outcome] | None:
        results: Results | list[Outcome] | None
        try:
            assert self._carrier is not None, "items may run elsewhere than on the loop"
            if isinstance(pulled, StackedItems):
                results = pulled.run(self._carrier, terms)
            else:
                _, marks, inputs = pulled
                if self._deadline_s is not None:
                    terms = self._within_time(terms, marks)
                results = run_now(self._carrier, inputs, marks, terms, parked)
            if results is None:
                self.are_threads_refused = True
            if isinstance(results, ParkedItem):
                self._loop.pass_turn(get_ident(), results)
            return results
        finally:
            self._loop.leave_turn()
