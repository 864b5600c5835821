"""Time that a thread waits for a core while other programs have it, as Linux counts it.

A Python function that takes long may have waited for a disk, which it will do again, or for a core,
which says nothing of the function. The scheduler of Linux knows both: a thread runs, waits for a
core, or sleeps. Reading its counters takes 15 µs, so they are read now and then, and again after a
run that took long. The difference of two readings is an upper bound for the run.
On other systems, and with ``PLAIT_FIGURES=off``, no run is excused.
"""

from __future__ import annotations

import os
import threading
from time import perf_counter_ns

REFRESH_NS = 50_000_000
"""Age of a reading after which the next one pays: 15 µs are nothing beside that."""

_COUNTERS = "/proc/thread-self/schedstat"


class PreemptionMeter(threading.local):
    """The last reading of a thread's counters.

    It was taken at `read_at_ns` by `time.perf_counter_ns`; 0 before the first reading.
    """

    read_at_ns = 0
    _ran_ns = _waited_ns = 0

    def refresh(self) -> None:
        self._ran_ns, self._waited_ns = read_counters()
        self.read_at_ns = perf_counter_ns()

    def excuses(self, spent_ns: int) -> bool:
        """Return whether a run of `spent_ns` that has just ended mostly waited for a core.

        The thread must have waited for a core for half of `spent_ns` since the last reading, and
        must not have slept as long.
        """
        read_at_ns, ran_ns, waited_ns = self.read_at_ns, self._ran_ns, self._waited_ns
        self.refresh()
        if not read_at_ns:
            return False
        waited_ns = self._waited_ns - waited_ns
        slept_ns = self.read_at_ns - read_at_ns - (self._ran_ns - ran_ns) - waited_ns
        return 2 * waited_ns >= spent_ns > 2 * slept_ns


def read_counters() -> tuple[int, int]:
    """Return the ns that this thread ran, and those that it waited for a core; 0 if unknown."""
    if os.environ.get("PLAIT_FIGURES") == "off":
        return 0, 0
    try:
        with open(_COUNTERS, "rb", buffering=0) as file:
            ran_ns, waited_ns, _ = file.read(100).split()
    except (OSError, ValueError):
        return 0, 0
    return int(ran_ns), int(waited_ns)


meter = PreemptionMeter()
"""That of the calling thread."""
