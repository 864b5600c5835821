"""The policy for steps that need not run on their lane's thread: which may, and which are quick.

A step on a device of this process may run on any of its threads. If that takes less time than to
wake the thread of the device's lane, the thread that made the step ready runs it at once. The time
of a step is its average of late; a prediction only sets the number of quick runs that are needed
first.

A Python function may be quick many times and then wait for a disk or a server, perhaps on the
loop's thread, for which all tasks would wait. So each time that it is slow although it was taken
for quick, it has to be quick eight times as often in a row before it is taken for quick again, up
to some thousand times. Kernels have no such surprises: a slow one was held up by other work.

Simulations and figures from profiles follow the same policy as sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...devices.device import Device
from ...devices.host import may_run_anywhere
from ...devices.sim.clock import find_virtual_clock
from ..plans.placement import Step, Transfer
from .hand_over import get_hand_over_ns
from .preemption import meter


class InlineLimit(NamedTuple):
    """Longest time of an item, with all its steps, to run wholly on the requesting thread."""

    several: int
    """In hand-overs, for items with steps that several lanes can run at once."""
    one_lane: int
    """For items whose steps run one after the other on lanes, too."""
    replica: int
    """For such items of one of several replicas, which could do others meanwhile."""
    may_act: bool = False
    """Whether functions with effects may run there, which may wait for something."""

    def most_ns(self, lanes: int, variants: int = 1) -> int:
        """Return the limit in ns for an item on `lanes` lanes of a plan of `variants` variants."""
        if lanes > 1:
            return self.several * get_hand_over_ns()
        return (self.one_lane if variants == 1 else self.replica) * get_hand_over_ns()


ON_LOOP = InlineLimit(16, 64, 16)
"""To hand an item over and take its results takes a loop as long as some hand-overs. It may be held
up for a few times that: its other tasks wait."""

STREAMED_ON_LOOP = InlineLimit(64, 64, 64)
"""Items of a stream are timed on lanes, too, if they have several."""

STREAMED = InlineLimit(8192, 8192, 8192, may_act=True)
"""The thread that waits for the next result, and threads of a stream or of submitted items, hold up
only other users of the session. Streams time lanes, too."""

WAITED = InlineLimit(32, 512, 32, may_act=True)
"""So does a thread that waits for this item alone, or a task of a loop, which holds up others."""

WAITED_ALONE = InlineLimit(32, 8192, 8192, may_act=True)
"""The limit for a thread if no other has run items lately: replicas would be idle. One that comes
later waits for the end of an item, once. A network of 3 ms takes 0.4 ms more if it is handed over,
where a bare hand-over takes 6 µs (squeezenet, two idle cores, 2026-11-30)."""

MOST_TIMES = 4
"""A run counts for this multiple of the estimate at most: others may have held it up."""

DOUBTFUL = 64
"""A run that is unusually long is looked into if it took longer, in hand-overs."""

MEMORY = 8
"""The number of runs that are remembered, about."""

FIRST = 3
"""The number of runs after the first for which shorter ones count for half: the first one may have
loaded modules or data for the others."""

SLOW_NS = 10_000_000
"""A Python function that takes longer was slow. One that is quick is held up for less than that: by
other threads for the 5 ms after which they hand on the interpreter, by other programs for a time
slice. On two cores with seven busy threads, one run in 4,000 took more than 1 ms, and one in 40,000
more than this (2026-11-21, a function of 2 µs)."""

TRIALS = 8
"""The factor by which distrust of a function lasts longer after each surprise."""

MOST_TRIALS = 4096
"""But no longer than that: on a busy machine any function surprises in the end."""


class Estimates:
    """How long each step of an open plan takes lately; used by any thread.

    A run that is noted by two threads at once may be lost, which does no harm.

    Parameters
    ----------
    seconds : sequence of float
        The predictions. Every step has to be quick at least once before it is taken for quick.
    surprising : collection of int
        The steps that call Python functions.
    believes : bool, default False
        Kernels need not have been seen for an item to be brief: for one that is the only one.
    """

    def __init__(
        self, seconds: Sequence[float], surprising: Collection[int] = (), *, believes: bool = False
    ) -> None:
        self._quick_ns = get_hand_over_ns()  # within this time another thread would be awake
        self._brief_ns = ON_LOOP.several * self._quick_ns
        self._doubtful_ns = min(DOUBTFUL * self._quick_ns, SLOW_NS)
        # Not quick before it was seen.
        least = self._quick_ns + self._quick_ns // MEMORY
        most = WAITED.one_lane * self._quick_ns  # a prediction may be wrong by any factor
        self._ns = [round(min(max(one * 1e9, least), most)) for one in seconds]
        self._patience = dict.fromkeys(surprising, TRIALS)
        self._trials = [0] * len(self._ns)
        self._unseen = set(surprising if believes else range(len(self._ns)))
        self._first = [0] * len(self._ns)

    def note(self, step: int, ns: int) -> None:
        """Take note that a run of `step` took `ns`."""
        before = self._ns[step]
        most = MOST_TIMES * before + self._quick_ns
        if ns <= most and ns <= SLOW_NS and self._first[step] < 0:  # nearly all runs
            self._ns[step] = before + (ns - before) // MEMORY
            if self._trials[step] > 0:
                self._trials[step] -= 1
            return
        if ns > most and ns > self._doubtful_ns and meter.excuses(ns):
            return  # it waited for a core
        if ns > SLOW_NS and step in self._patience:
            self._distrust(step)
        elif self._trials[step] > 0:
            self._trials[step] -= 1
        if step in self._unseen:
            self._unseen.discard(step)
            if ns > most:
                self._ns[step], self._first[step] = ns, FIRST
                return
        weight = 2 if self._first[step] > 0 and ns < before else MEMORY
        self._first[step] -= 1
        self._ns[step] += (min(ns, most) - before) // weight

    def is_quick(self, step: int) -> bool:
        """Return whether `step` is likely to be over sooner than another thread would be awake."""
        return self._ns[step] < self._quick_ns and self._trials[step] <= 0

    @property
    def total_ns(self) -> int:
        """The time of all steps, one after the other."""
        return sum(self._ns)

    def are_brief(self, most_ns: int, *, may_wait: bool = False) -> bool:
        """Return whether all steps, seen or believed, are likely to take less than `most_ns`.

        With `may_wait`, a function that is slow now and then delays only later items of its thread.
        """
        if self._unseen or sum(self._ns) >= most_ns:
            return False
        return may_wait or not any(self._trials)

    def _distrust(self, step: int) -> None:
        """Require that `step` is quick for some time before it is taken for quick again."""
        was_seen_brief = step not in self._unseen and self._ns[step] < self._brief_ns
        if self._trials[step] <= 0 and (was_seen_brief or self.is_quick(step)):
            self._patience[step] = min(self._patience[step] * TRIALS, MOST_TRIALS)
        self._trials[step] = self._patience[step]


def inline_steps(steps: Sequence[Step], devices: Mapping[str, Device]) -> frozenset[int]:
    """Return the indices of the `steps` that any thread may run, on `devices` of this process.

    Functions with effects are left out: they may depend on the thread that calls them.
    """
    return frozenset(step.index for step in _list_callable(steps, devices) if not step.has_effects)


def find_steps_for_threads(steps: Sequence[Step], devices: Mapping[str, Device]) -> frozenset[int]:
    """Return the indices of `steps` with effects that threads may run on `devices`."""
    return frozenset(
        step.index
        for step in _list_callable(steps, devices)
        if step.has_effects and step.functions_in_order
    )


def are_in_a_row(steps: Sequence[Step]) -> bool:
    """Return whether no two of `steps`, in the order of the plan, can run at the same time."""
    return all(
        step.device == before.device or before.index in step.waits
        for before, step in pairwise(steps)
    )


def _list_callable(steps: Sequence[Step], devices: Mapping[str, Device]) -> list[Step]:
    """Return the `steps` that lanes of `devices` in this process run as calls.

    The list is empty where a device has a virtual clock, ahead of which a session must not run.
    Copies keep the order of their lanes; instances that nodes own may depend on the thread; a loop
    would block the thread that is to cancel it; async functions are awaited.
    """
    if any(find_virtual_clock(device) is not None for device in devices.values()):
        return []
    return [
        step
        for step in steps
        if may_run_anywhere(devices[step.device])
        and not (isinstance(step.work, Transfer) or step.owns or step.loops or step.awaited)
    ]
