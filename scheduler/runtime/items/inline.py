"""Items that are over sooner than another thread would be awake, run where they are asked for.

Where nothing else is under way in a session, its own devices rest and all memory is free. An item
of few and brief steps then needs no lane, no turn and nobody who counts its steps: whoever has the
session runs them in the plan's order, and nobody else can come in between. Several devices do not
work side by side then, which for so short a time is no loss: to hand a step over takes longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TypeAlias

from ....graph.tensor import Array
from ...costs.host import HOST_BYTES_PER_S, INLINE_BYTES
from ...dispatch.inline_policy import SLOW_NS, Estimates
from ...dispatch.preemption import REFRESH_NS, meter

Call: TypeAlias = Callable[[], object]
"""Runs a step on the calling thread; its lane rests."""

MOST_STEPS = 32
"""Items of more steps go through the lanes."""


def run_steps(calls: Sequence[Call], estimates: Estimates, times: array[int]) -> None:
    """Run the steps of an item one after the other, and note when each ran in its `times`.

    Raises
    ------
    KernelError, DeviceError
        What the first one raises that fails.
    """
    place = 0
    for step, call in enumerate(calls):
        started = ended = perf_counter_ns()
        if started - meter.read_at_ns > REFRESH_NS:
            meter.refresh()
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
        place += 3


def copy_ns(feeds: Mapping[str, Array], results: Mapping[str, Array]) -> int | None:
    """Return how long it takes to copy an item in and out; None if that is never done inline."""
    nbytes: int = sum(one.nbytes for one in (*feeds.values(), *results.values()))
    return round(1e9 * nbytes / HOST_BYTES_PER_S) if nbytes <= INLINE_BYTES else None
