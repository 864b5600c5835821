"""A profile as a Chrome trace: one track per device, one for its transfers, arrows between steps.

Each item has a bar with its phases, each batch of rows a bar from its first row on. Counters,
computed from the times of steps, show the lengths of queues and the bytes in use.
Source of the format: the Trace Event Format document of the Chromium project; Perfetto reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...graph.formats.files import replace_file
from ..errors import SessionError
from ..plans.placement import Outline
from ..plans.regions import ADMISSION, Region
from ..profile import Profile, Span
from ..profile.attribution import list_moments
from ..profile.records import PlanTimes, Record, RowBatch

PROCESS = 1


def write_trace(profile: Profile, path: str | Path) -> None:
    """Write the trace of `profile` to the file `path`; SessionError if that fails."""
    text = json.dumps({"traceEvents": make_trace_events(profile), "displayTimeUnit": "ms"})
    replace_file(path, [text.encode()], SessionError)


def make_trace_events(profile: Profile) -> list[dict[str, Any]]:
    """Return the trace events of `profile`; times are µs from the first admission."""
    return _Trace(profile).events()


class _Trace:
    def __init__(self, profile: Profile) -> None:
        self._records = profile.records
        self._origin = min((_list_phases(record)[0][1] for record in self._records), default=0)
        # Batches of items that the profile has dropped are left out.
        self._batches = [one for one in profile.batches if one.first_ns >= self._origin]
        self._tracks: dict[str, int] = {}
        self._arrows = 0

    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for index, record in enumerate(self._records):
            events += self._item(index, record)
        for index, batch in enumerate(self._batches):
            events += self._batch(index, batch)
        for name, unit, changes in count_levels(self._records):
            events += self._counter(name, unit, changes)
        return [*self._names(), *events]

    def _item(self, index: int, record: Record) -> Iterator[dict[str, Any]]:
        phases = _list_phases(record)
        name, start, end = f"item {index}", phases[0][1], phases[-1][2]
        yield self._bar(index, name, "b", start, {"item": index, "failed": record.failed})
        for phase, began, ended in phases:
            if ended > began:
                yield self._bar(index, phase, "b", began)
                if phase == SOURCE:
                    yield from self._partners(index, record, began)
                yield self._bar(index, phase, "e", ended)
        yield self._bar(index, name, "e", end)
        yield from self._steps(index, record, {"item": index})

    def _partners(self, index: int, record: Record, asked: int) -> Iterator[dict[str, Any]]:
        for kind, began, ended in record.marks.preparing:
            if kind == "partners" and ended > asked:
                yield self._bar(index, "waits for partners", "b", max(began, asked))
                yield self._bar(index, "waits for partners", "e", ended)

    def _batch(self, index: int, batch: RowBatch) -> Iterator[dict[str, Any]]:
        name, whose = f"batch {index}", f"rows of {batch.queue}"
        bar = {"cat": whose, "id": name, "pid": PROCESS, "tid": 0}
        args = {"rows": batch.rows, "failed": batch.record.failed}
        times = [self._us(ns) for ns in (batch.first_ns, batch.started_ns, batch.ended_ns)]
        yield {**bar, "ph": "b", "name": f"{batch.rows} {whose}", "ts": times[0], "args": args}
        for phase, (began, ended) in zip(("fills", "runs"), pairwise(times), strict=True):
            if ended > began:
                yield {**bar, "ph": "b", "name": phase, "ts": began, "args": {}}
                yield {**bar, "ph": "e", "name": phase, "ts": ended, "args": {}}
        yield {**bar, "ph": "e", "name": f"{batch.rows} {whose}", "ts": times[2], "args": {}}
        yield from self._steps(name, batch.record, {"batch": index, "rows": batch.rows})

    def _steps(
        self, owner: int | str, record: Record, details: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for part in record.parts:
            spans = {span.step.index: span for span in part.spans()}
            for span in spans.values():
                if span.step.awaited:
                    yield from self._call(owner, span)
                    continue
                yield self._span(details, span)
                for dependent in span.step.dependents:
                    if dependent in spans and not spans[dependent].step.awaited:
                        yield from self._arrow(span, spans[dependent])

    def _bar(self, item: int, name: str, ph: str, ns: int, args: Any = None) -> dict[str, Any]:
        bar = {"cat": "item", "id": item, "pid": PROCESS, "tid": 0, "name": name}
        return {**bar, "ph": ph, "ts": self._us(ns), "args": args or {}}

    def _span(self, details: dict[str, Any], span: Span) -> dict[str, Any]:
        transfer = span.step.transfer
        details = {**details, "queued_us": (span.started_ns - span.ready_ns) / 1e3}
        if transfer:
            details["nbytes"] = transfer.nbytes
        else:
            details["nodes"] = len(span.step.nodes)
        return {
            "ph": "X",
            "cat": "transfer" if transfer else "subgraph",
            "name": span.step.name,
            "pid": PROCESS,
            "tid": self._track(span.step),
            "ts": self._us(span.started_ns),
            "dur": (span.ended_ns - span.started_ns) / 1e3,
            "args": details,
        }

    def _call(self, owner: int | str, span: Span) -> Iterator[dict[str, Any]]:
        bar = {"cat": span.step.lane, "id": f"{owner}.{span.step.index}", "pid": PROCESS, "tid": 0}
        for ph, ns in (("b", span.started_ns), ("e", span.ended_ns)):
            yield {**bar, "name": span.step.name, "ph": ph, "ts": self._us(ns), "args": {}}

    def _arrow(self, source: Span, target: Span) -> Iterator[dict[str, Any]]:
        self._arrows += 1
        common = {"cat": "flow", "name": "ready", "id": self._arrows, "pid": PROCESS}
        yield {
            **common, "ph": "s", "tid": self._track(source.step), "ts": self._us(source.ended_ns),
        }  # fmt: skip
        yield {
            **common,
            "ph": "f",
            "bp": "e",
            "tid": self._track(target.step),
            "ts": self._us(target.started_ns),
        }

    def _counter(
        self, name: str, unit: str, changes: list[tuple[int, int]]
    ) -> Iterator[dict[str, Any]]:
        level = 0
        levels = {}  # of several changes at one moment the last one stands
        for time_ns, change in sorted(changes):
            level += change
            levels[time_ns] = level
        for time_ns, reached in levels.items():
            yield {
                "ph": "C",
                "name": name,
                "pid": PROCESS,
                "ts": self._us(time_ns),
                "args": {unit: reached},
            }

    def _names(self) -> Iterator[dict[str, Any]]:
        named = [("process_name", 0, "plait"), ("thread_name", 0, "items")]
        named += [("thread_name", track, name) for name, track in self._tracks.items()]
        for kind, track, name in named:
            yield {"ph": "M", "name": kind, "pid": PROCESS, "tid": track, "args": {"name": name}}

    def _track(self, step: Outline) -> int:
        name = step.device
        if step.transfer:  # the two directions overlap, a track's slices may not
            name += " in" if step.transfer.is_inward else " out"
        return self._tracks.setdefault(name, len(self._tracks) + 1)

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._origin) / 1e3


SOURCE = "source"
PHASES = (SOURCE, "waits for a slot", "is fed", "runs", "lands", "waits for the consumer", "used")
"""Phases of an item, between its marks."""


def _list_phases(record: Record) -> list[tuple[str, int, int]]:
    """Return name, start and end of each phase of `record`; a phase without marks is empty."""
    between = pairwise(list_moments(record))
    return [(name, start, end) for name, (start, end) in zip(PHASES, between, strict=True)]


Counter = tuple[str, str, list[tuple[int, int]]]
"""Name, unit, and unordered changes as (ns, change)."""


def count_levels(records: Sequence[Record]) -> Iterator[Counter]:
    """Yield counters of `records`: items in flight, lanes' queues, and bytes of regions in use."""
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
                    start, end = _find_holding(region, part, record)
                    changes = held.setdefault(f"memory held: {region.memory}", [])
                    changes += [(start, region.nbytes), (end, -region.nbytes)]
    for name, waits in queues.items():
        yield name, "steps", waits
    for name, changes in held.items():
        yield name, "bytes", changes


def _find_holding(region: Region, part: PlanTimes, record: Record) -> tuple[int, int]:
    """Return when the item of `record` claimed and released `region`, at most until it landed.

    `part` has the times of its steps.
    """
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
