"""Copies of large arrays by several threads: one core moves less than the memory could.

On a machine with 16 cores one of them copied 39 MiB in 5.3 ms, four in 1.3 ms; and 5 MiB in 0.4 ms,
four in 0.5 ms, since threads are to be started.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread

import numpy as np

from ...devices.host import count_cores
from ...graph.values.tensor import Array

MOST_THREADS = 4
CORES_EACH = 4
"""Share of all cores: the others have their own work."""
LEAST_BYTES = 1 << 22
"""For each thread."""
SPLIT_BYTES = 2 * LEAST_BYTES
"""Arrays from this size on are copied by several threads."""


def copy_array(target: Array, source: Array) -> None:
    """Copy `source` to `target`, an array of its shape; blocks."""
    if target.nbytes < SPLIT_BYTES or not _are_plain(target, source):
        np.copyto(target, source)
        return
    count = max(1, min(MOST_THREADS, count_cores() // CORES_EACH, target.nbytes // LEAST_BYTES))
    to, of = target.reshape(-1), source.reshape(-1)
    step = -(-to.size // count)
    parts = [slice(begin, begin + step) for begin in range(0, to.size, step)]
    ends = [_call_beside(partial(np.copyto, to[part], of[part])) for part in parts[1:]]
    np.copyto(to[parts[0]], of[parts[0]])
    for wait in ends:
        wait()


def duplicate_array(array: Array) -> Array:
    """Return a copy of `array` with its elements in the same order in memory."""
    if array.nbytes < SPLIT_BYTES or not array.flags.c_contiguous:
        return array.copy("K")
    copy = np.empty_like(array)  # its pages are made as they are written, by each thread its own
    copy_array(copy, array)
    return copy


def copy_side_by_side(one: Callable[[], object], other: Callable[[], object]) -> None:
    """Call `one` and `other`, which copy and raise nothing, side by side on free cores."""
    if count_cores() < CORES_EACH:
        one()
        other()
        return
    wait = _call_beside(other)
    one()
    wait()


def _call_beside(copy: Callable[[], object]) -> Callable[[], object]:
    """Call `copy` on another thread, or here if none can start; return a wait for its end."""
    thread = Thread(target=copy)
    try:
        thread.start()
    except RuntimeError:  # the system has no more
        copy()
        return lambda: None
    return thread.join


def _are_plain(target: Array, source: Array) -> bool:
    alike = target.dtype == source.dtype and target.shape == source.shape
    return (
        alike
        and not target.dtype.hasobject
        and target.flags.c_contiguous
        and source.flags.c_contiguous
    )
