"""The policy for steps that need not run on their lane's thread: which may, and which are quick.

A step on a device of this process may run on any of its threads. Where that takes less time than to
wake the thread of the device's lane, whoever made the step ready runs it at once. How long a step
takes is what it took lately; a prediction only says how often it has to be seen to be quick.

A Python function may be quick many times and then wait for a disk or a server, and what it is run
on may be the loop's thread, for which everybody would wait. So every time that it was thought to be
quick and was slow, it has to be quick eight times as often in a row before it is thought so again,
up to some thousand times. Kernels have no such surprises; when they take long they were held up by
others.

Sessions go by this, and so must simulations, and who takes figures from profiles.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...devices.device import Device
from ...devices.host import may_run_anywhere
from ...devices.sim.clock import virtual_clock
from ..plans.placement import Step, Transfer

QUICK_NS = 20_000
"""Waking a thread takes about as long."""

BRIEF_NS = 150_000
"""To hand an item to another thread and back takes about as long."""


class InlineLimit(NamedTuple):
    """How long an item may take, with all its steps, to run wholly on the thread that asks for it.

    `one_lane_ns` is for items whose steps are all of one lane: that would do them, and those of
    others, one after the other as well.
    """

    ns: int
    one_lane_ns: int


ON_LOOP = InlineLimit(BRIEF_NS, BRIEF_NS)
"""A loop is held up for no longer than handing the item over would take."""

STREAMED = InlineLimit(2 * BRIEF_NS, 2 * BRIEF_NS)
"""Whoever waits for the next result holds up nobody, but could be at work on the last one."""

WAITED = InlineLimit(2 * BRIEF_NS, 4_000_000)
"""A thread that waits for this item alone holds up only others like it."""

MOST_NS = 5_000_000
"""A run counts for no more than that: one that was held up by others should be forgotten again."""

MEMORY = 8
"""About so many runs are remembered."""

SLOW_NS = 10_000_000
"""A Python function that takes longer was slow. One that is quick is held up for less than that: by
other threads for the 5 ms after which they hand on the interpreter, by other programs for a time
slice. On two cores with seven busy threads, one run in 4,000 took more than 1 ms, and one in 40,000
more than this (2026-11-21, a function of 2 µs)."""

TRIALS = 8
"""So much longer a function is distrusted after each surprise."""

MOST_TRIALS = 4096
"""But no longer than that: on a busy machine any function surprises in the end."""


class Estimates:
    """How long each step of an open plan takes lately; used by any thread.

    A run that is noted by two threads at once may be lost, which does no harm.

    Parameters
    ----------
    seconds : sequence of float
        What is predicted. Every step has to be quick at least once before it is taken for quick.
    surprising : collection of int
        The steps that call Python functions.
    believes : bool, default False
        Kernels need not have been seen for an item to be brief: for one that is the only one.
    """

    __slots__ = ("_ns", "_patience", "_trials", "_unseen")

    def __init__(
        self, seconds: Sequence[float], surprising: Collection[int] = (), *, believes: bool = False
    ) -> None:
        least = QUICK_NS + QUICK_NS // MEMORY
        self._ns = [round(min(max(one * 1e9, least), MOST_NS)) for one in seconds]
        self._patience = dict.fromkeys(surprising, TRIALS)
        self._trials = [0] * len(self._ns)
        self._unseen = set(surprising if believes else range(len(self._ns)))

    def note(self, step: int, ns: int) -> None:
        """Take note of how long a run took."""
        if ns > SLOW_NS and step in self._patience:
            self._distrust(step)
        elif self._trials[step] > 0:
            self._trials[step] -= 1
        self._ns[step] += (min(ns, MOST_NS) - self._ns[step]) // MEMORY
        self._unseen.discard(step)

    def is_quick(self, step: int) -> bool:
        """True when a step is likely to be over sooner than another thread would be awake."""
        return self._ns[step] < QUICK_NS and self._trials[step] <= 0

    def are_brief(self, most_ns: int = BRIEF_NS) -> bool:
        """True when all steps were seen, or are believed, and are likely to take less than that."""
        return not self._unseen and sum(self._ns) < most_ns and not any(self._trials)

    def _distrust(self, step: int) -> None:
        """Have a step be quick for some time before it is taken for quick again."""
        was_seen_brief = step not in self._unseen and self._ns[step] < BRIEF_NS
        if self._trials[step] <= 0 and (was_seen_brief or self.is_quick(step)):
            self._patience[step] = min(self._patience[step] * TRIALS, MOST_TRIALS)
        self._trials[step] = self._patience[step]


def inline_steps(steps: Sequence[Step], devices: Mapping[str, Device]) -> frozenset[int]:
    """Return the steps that any thread of this process may run.

    None where devices are simulated on a virtual clock: a session does not run ahead of it. No
    copies, which lanes do in their order. Not what has effects, nor what nodes own: that may depend
    on the thread it is used from. Nor loops, which no other thread should have to wait for: it may
    be the one that is to cancel them. Nor async functions, which are awaited.
    """
    if any(virtual_clock(device) is not None for device in devices.values()):
        return frozenset()
    return frozenset(
        step.index
        for step in steps
        if may_run_anywhere(devices[step.device])
        and not (isinstance(step.work, Transfer) or step.has_effects or step.owns)
        and not (step.loops or step.awaited)
    )
