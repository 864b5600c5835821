"""The cost of a hand-over between two threads, measured in this process.

A thread that waits for a lock is woken in 10 µs on some machines and in 100 µs on others, and later
if other programs use the cores. The policy of this folder depends on that: its durations are
multiples of a hand-over.
"""

from __future__ import annotations

import os
import threading
from time import perf_counter_ns

from ...graph.core.printing import format_seconds

LONG = 100
"""Hand-overs beside which one more is nothing."""

NOMINAL_NS = 20_000
"""The cost without a measurement, such as in tests: ``PLAIT_FIGURES=off``."""

MOST_NS = 2_000_000
LEAST_ROUNDS = 8
"""A measurement ends after this time, but not before that number of rounds."""

AGE_NS = 60_000_000_000
"""A session that is opened later than this after a measurement repeats it: loads change."""

MOST_TIMES = 32
"""The price that streams paid counts for this multiple of the measurement at most."""

NOTED = 4
"""The number of trials that are remembered, about."""

_lock = threading.Lock()
_measured_ns = 0
_measured_at_ns = 0
_noted_ns = 0


def get_hand_over_ns() -> int:
    """Return the time from the release of a lock until another thread is at work.

    The greater of two figures: the time of a bare lock, measured while nothing else happened, and
    the price that streams paid for each hand-over of an item, with the waits for the interpreter
    and for a core.
    """
    return max(_measured_ns, _noted_ns) or NOMINAL_NS


def describe_hand_over() -> str:
    """Return a sentence on the cost of a hand-over, for reports; empty without a measurement."""
    if not is_measured():
        return ""
    return f"a hand-over costs {format_seconds(get_hand_over_ns() / 1e9)} here"


def note_hand_over(ns: float) -> None:
    """Note that a stream paid `ns` for a hand-over; ignored before the first measurement."""
    global _noted_ns
    most = MOST_TIMES * _measured_ns
    _noted_ns += round(min(max(ns, 0), most) - _noted_ns) // NOTED


def is_measured() -> bool:
    return _measured_ns > 0


def measure_hand_over() -> int:
    """Measure a hand-over unless that was done lately; return its ns. Blocks for some ms."""
    global _measured_ns, _measured_at_ns, _noted_ns
    with _lock:
        if os.environ.get("PLAIT_FIGURES") == "off":
            return NOMINAL_NS
        if not _measured_ns or perf_counter_ns() - _measured_at_ns > AGE_NS:
            _measured_ns, _noted_ns = _measure_locks(), 0
            _measured_at_ns = perf_counter_ns()
        return get_hand_over_ns()


def _measure_locks() -> int:
    """Return the median ns until another thread has a lock that one releases; at least 1000."""
    there, back = threading.Lock(), threading.Lock()
    there.acquire()
    back.acquire()
    is_over = False

    def answer() -> None:
        while not is_over:
            there.acquire()
            back.release()

    thread = threading.Thread(target=answer, name="plait-hand-over")
    try:
        thread.start()
    except RuntimeError:  # the system has no more
        return NOMINAL_NS
    rounds: list[int] = []
    end_ns = perf_counter_ns() + MOST_NS
    while len(rounds) < LEAST_ROUNDS or perf_counter_ns() < end_ns:
        start_ns = perf_counter_ns()
        there.release()
        back.acquire()
        rounds.append(perf_counter_ns() - start_ns)
    is_over = True
    there.release()
    thread.join()
    return max(1000, sorted(rounds)[len(rounds) // 2] // 2)
