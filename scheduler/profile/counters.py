"""Fill levels of queues and memories over time, from the times of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..plans.regions import ADMISSION, Region
from .records import PlanTimes, Record

Counter = tuple[str, str, list[tuple[int, int]]]
"""Its name, its unit, and by how much it changes when: (ns, change), in no order."""


def counters(records: Sequence[Record]) -> Iterator[Counter]:
    """Yield items in flight, steps that wait for each lane, and the bytes that items hold."""
    changes = [(one.admitted_ns, 1) for one in records] + [(one.landed_ns, -1) for one in records]
    yield "items in flight", "items", changes
    queues: dict[str, list[tuple[int, int]]] = {}
    held: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        for span in record.spans():
            waiting = queues.setdefault(f"queue of {span.step.lane}", [])
            waiting += [(min(span.ready_ns, span.started_ns), 1), (span.started_ns, -1)]
        for part in record.parts:
            for region in part.regions():
                if region.claims and region.nbytes:
                    start, end = _holding(region, part, record)
                    changes = held.setdefault(f"memory held: {region.memory}", [])
                    changes += [(start, region.nbytes), (end, -region.nbytes)]
    for name, waits in queues.items():
        yield name, "steps", waits
    for name, changes in held.items():
        yield name, "bytes", changes


def _holding(region: Region, part: PlanTimes, record: Record) -> tuple[int, int]:
    """Return when an item had a region for itself; from its admission until its landing at most."""
    claims = [
        record.admitted_ns if step == ADMISSION else part.times[3 * step] for step in region.claims
    ]
    releases = [
        record.landed_ns if step == len(part.steps) else part.times[3 * step + 2]
        for step in region.releases
    ]
    start = min(filter(None, claims), default=record.landed_ns)
    end = max(releases, default=record.landed_ns) if all(releases) else record.landed_ns
    return start, max(start, end)
