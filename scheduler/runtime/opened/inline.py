"""The steps of an item on one thread, where that takes less time than to wake another thread.

While no other item of the session is under way, its lanes rest and all memory is free. An item of
few and brief steps then needs no lane, no slot and no count of its steps: the thread that has the
session runs them in the plan's order. Threads of a stream do so side by side, each on a replica.
Several devices do not work at the same time for one item then, which costs less than a hand-over.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from .stage_bindings import ItemStages

Call: TypeAlias = Callable[[], object]
"""Runs a step on the calling thread; its lane rests."""

MOST_STEPS = 32
"""Items of more steps go through the lanes."""


class OrderedTurn:
    """The place of an item in the order of items, on a thread that other items do not need.

    Steps in `claims` must `wait` for earlier items, and `complete` those in `releases`.
    """

    def __init__(self, order: OrderGuard, ordered: Ordered) -> None:
        self.claims, self.releases = ordered.claims, ordered.releases
        self._order = order
        self._ticket = order.admit(ordered)

    def wait(self, step: int) -> None:
        """Block until earlier items are through `step`, one of `claims`."""
        waiting = threading.Lock()
        waiting.acquire()
        if not self._order.claim(self._ticket, step, waiting.release):
            waiting.acquire()

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
) -> None:
    """Run `calls`, the steps of an item, in order, and note in `times` when each ran.

    `estimates` learn how long each takes, `turn` lets each wait for earlier items, and `stages` are
    bound on the way. Before each step, `check` may raise what ends the item. Raises KernelError or
    DeviceError: the error of the first step that fails; ShapeError or PlanError if a step computes
    lengths for which further steps are missing.
    """
    place, ended = 0, perf_counter_ns()
    if ended - meter.read_at_ns > REFRESH_NS:
        meter.refresh()
    for step, call in enumerate(calls):
        started = ended
        if check is not None:
            check()
        if turn is not None and step in turn.claims:
            turn.wait(step)
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


def copy_ns(feeds: Mapping[str, Array], results: Mapping[str, Array]) -> int | None:
    """Return the ns that copying `feeds` in and `results` out takes; None if never done inline."""
    nbytes: int = sum(one.nbytes for one in (*feeds.values(), *results.values()))
    return round(1e9 * nbytes / HOST_BYTES_PER_S) if nbytes <= INLINE_BYTES else None
