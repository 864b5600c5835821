"""The steps of an item on one thread, where that takes less time than to wake another thread.

While no other item of the session is under way, its lanes rest and all memory is free. An item of
few and brief steps then needs no lane, no slot and no count of its steps: the thread that has the
session runs them in the plan's order. Threads of a stream do so side by side, each on a replica.
Several devices do not work at the same time for one item then, which costs less than a hand-over.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeAlias

from ....graph.values.tensor import Array
from ...costs.host import HOST_BYTES_PER_S, INLINE_BYTES
from ...dispatch.inline_policy import SLOW_NS, Estimates
from ...dispatch.item_order import Ordered
from ...dispatch.preemption import REFRESH_NS, meter
from .region_guard import OrderGuard
from .results import Results

if TYPE_CHECKING:
    from .stage_bindings import ItemStages

Call: TypeAlias = Callable[[], object]
"""Runs a step on the calling thread; its lane rests."""

MOST_STEPS = 32
"""Items of more steps go through the lanes."""


Park: TypeAlias = "Callable[[ParkedItem], object]"


class ParkedItem(dict[str, Array]):
    """In place of results: an item that waits for an earlier one without a thread.

    When its thread has left it, and the earlier item is through, it is passed to `enqueue`: any
    thread may call `end` then, which calls `go_on` for the results.
    """

    go_on: Callable[[], Results]
    end: Callable[[], object]
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, enqueue: Park) -> None:
        self._enqueue, self._arrivals = enqueue, itertools.count()

    def arrive(self) -> None:
        """Note that one of both has happened."""
        if next(self._arrivals):
            self._enqueue(self)


class OrderedTurn:
    """The place of an item in the order of items, on a thread that other items do not need.

    Steps in `claims` must `wait` for earlier items, and `complete` those in `releases`. From step
    `parks_from` on, the item is `parked` for that if there is an `enqueue`.
    """

    def __init__(
        self, order: OrderGuard, ordered: Ordered, enqueue: Park | None, parks_from: int
    ) -> None:
        self.claims, self.releases = ordered.claims, ordered.releases
        self.parked: ParkedItem | None = None
        self._order, self._enqueue, self._parks_from = order, enqueue, parks_from
        self._ticket = order.admit(ordered)

    def wait(self, step: int) -> bool:
        """Wait until earlier items are through `step`, one of `claims`; False if it is parked."""
        if self._enqueue is not None and step >= self._parks_from:
            parked = ParkedItem(self._enqueue)
            if self._order.claim(self._ticket, step, parked.arrive):
                return True
            self.parked = parked
            return False
        waiting = threading.Lock()
        waiting.acquire()
        if not self._order.claim(self._ticket, step, waiting.release):
            waiting.acquire()
        return True

    def complete(self, step: int) -> None:
        """Let later items continue after `step`, one of `releases`."""
        self._order.complete(self._ticket, step)

    def leave(self) -> None:
        """Let later items continue after all steps."""
        self._order.leave(self._ticket)


def run_steps(
    calls: Sequence[Call],
    estimates: Estimates,
    times: array[int],
    turn: OrderedTurn | None = None,
    stages: ItemStages | None = None,
    check: Callable[[], object] | None = None,
    parked_at: int = -1,
) -> int | None:
    """Run `calls`, the steps of an item, in order, and note in `times` when each ran.

    `estimates` learn how long each takes, `turn` lets each wait for earlier items, and `stages` are
    bound on the way. Before each step and at the end, `check` may raise what ends the item. Returns
    the step at which it is parked, or None at its end; it goes on where it was `parked_at`. Raises
    KernelError or DeviceError: the error of the first step that fails; ShapeError or PlanError if a
    step computes lengths for which further steps are missing.
    """
    first = max(parked_at, 0)
    place, ended = 3 * first, perf_counter_ns()
    if ended - meter.read_at_ns > REFRESH_NS:
        meter.refresh()
    for step, call in itertools.islice(enumerate(calls), first, None):
        started = ended
        if check is not None:
            check()
        if turn is not None and step in turn.claims and step != parked_at:
            if not turn.wait(step):
                return step
            started = perf_counter_ns()
        times[place] = times[place + 1] = started
        try:
            call()
        except BaseException:
            ended = times[place + 2] = perf_counter_ns()
            if ended - started > SLOW_NS:  # others may have been cut short
                estimates.note(step, ended - started)
            raise
        ended = times[place + 2] = perf_counter_ns()
        estimates.note(step, ended - started)
        if stages is not None and step in stages.computes:
            stages.take_lengths(step)  # it binds later ones among the calls
        if turn is not None and step in turn.releases:
            turn.complete(step)
        place += 3
    if check is not None:
        check()
    return None


def copy_ns(feeds: Mapping[str, Array], results: Mapping[str, Array]) -> int | None:
    """Return the ns that copying `feeds` in and `results` out takes; None if never done inline."""
    nbytes: int = sum(one.nbytes for one in (*feeds.values(), *results.values()))
    return round(1e9 * nbytes / HOST_BYTES_PER_S) if nbytes <= INLINE_BYTES else None
