"""Intervals of time: unions, gaps, and look-ups by time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from .records import Record


def merge_intervals(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def measure_covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in merge_intervals(intervals))


def find_gaps(
    intervals: Iterable[tuple[int, int]], begin: int, end: int
) -> Iterator[tuple[int, int]]:
    for started, ended in merge_intervals(intervals):
        if begin < started:
            yield begin, started
        begin = max(begin, ended)
    if begin < end:
        yield begin, end


class DeviceWork(NamedTuple):
    """A step of a device. `item` is an index in the records."""

    started_ns: int
    ended_ns: int
    item: int
    is_transfer: bool
    awaits: bool


class Lanes:
    """The work of all lanes for some items, sorted for look-ups."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._work: dict[str, list[DeviceWork]] = {}
        self._ends: list[tuple[int, int]] = []
        for item, record in enumerate(records):
            self._ends.append((record.landed_ns, item))
            for step, _, started, ended in record.spans():
                is_transfer, awaits = step.transfer is not None, bool(step.awaited)
                work = DeviceWork(started, ended, item, is_transfer, awaits)
                self._work.setdefault(step.lane, []).append(work)
                self._ends.append((ended, item))
        self._ends.sort()
        for works in self._work.values():
            works.sort()
        self._latest = {
            device: list(accumulate((one.ended_ns for one in works), max))
            for device, works in self._work.items()
        }

    def between(self, lane: str, start: int, end: int) -> Iterator[DeviceWork]:
        works = self._work.get(lane, [])
        for at in range(bisect_right(self._latest.get(lane, []), start), len(works)):
            work = works[at]
            if work.started_ns >= end:
                return
            if work.ended_ns > start:
                yield work._replace(
                    started_ns=max(work.started_ns, start), ended_ns=min(work.ended_ns, end)
                )

    def last_release(self, item: int, start: int, end: int) -> int:
        at = bisect_right(self._ends, (end, len(self._ends))) - 1
        while at >= 0 and self._ends[at][0] > start:
            if self._ends[at][1] != item:
                return self._ends[at][0]
            at -= 1
        return start
