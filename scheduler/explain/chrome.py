"""A profile as a Chrome trace: one track per device, one for its transfers, arrows between steps.

Source of the format: the Trace Event Format document of the Chromium project; Perfetto reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..placement import HOST_MEMORIES
from ..profile import Profile, Record, Span
from ..steps import Outline

PROCESS = 1


def write_trace(profile: Profile, path: Path) -> None:
    """Write a profile's trace to a file."""
    path.write_text(json.dumps({"traceEvents": trace_events(profile), "displayTimeUnit": "ms"}))


def trace_events(profile: Profile) -> list[dict[str, Any]]:
    """Return the trace events of a profile; times in µs from the first admission."""
    return _Trace(profile).events()


class _Trace:
    def __init__(self, profile: Profile) -> None:
        self._records = profile.records
        self._origin = min((record.admitted_ns for record in self._records), default=0)
        self._tracks: dict[str, int] = {}
        self._arrows = 0

    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for index, record in enumerate(self._records):
            events += self._item(index, record)
        events += self._in_flight()
        return [*self._names(), *events]

    def _item(self, index: int, record: Record) -> Iterator[dict[str, Any]]:
        """Yield an item's bar, its steps, and the arrows between them."""
        bar = {"cat": "item", "id": index, "pid": PROCESS, "tid": 0, "name": f"item {index}"}
        yield {**bar, "ph": "b", "ts": self._us(record.admitted_ns), "args": {"item": index}}
        yield {**bar, "ph": "e", "ts": self._us(record.landed_ns)}
        for part in record.parts:
            spans = {span.step.index: span for span in part.spans()}
            for span in spans.values():
                yield self._span(index, span)
                for dependent in span.step.dependents:
                    if dependent in spans:
                        yield from self._arrow(span, spans[dependent])

    def _span(self, item: int, span: Span) -> dict[str, Any]:
        transfer = span.step.transfer
        queued_us = (span.started_ns - span.ready_ns) / 1e3
        details: dict[str, Any] = {"item": item, "queued_us": queued_us}
        if transfer:
            details["nbytes"] = transfer.nbytes
        else:
            details["nodes"] = span.step.n_nodes
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

    def _in_flight(self) -> Iterator[dict[str, Any]]:
        changes = [(record.admitted_ns, 1) for record in self._records]
        changes += [(record.landed_ns, -1) for record in self._records]
        count = 0
        for time_ns, change in sorted(changes):
            count += change
            yield {
                "ph": "C",
                "name": "items in flight",
                "pid": PROCESS,
                "ts": self._us(time_ns),
                "args": {"items": count},
            }

    def _names(self) -> Iterator[dict[str, Any]]:
        named = [("process_name", 0, "plait"), ("thread_name", 0, "items")]
        named += [("thread_name", track, name) for name, track in self._tracks.items()]
        for kind, track, name in named:
            yield {"ph": "M", "name": kind, "pid": PROCESS, "tid": track, "args": {"name": name}}

    def _track(self, step: Outline) -> int:
        name = step.device
        if step.transfer:  # the two directions overlap, a track's slices may not
            name += " in" if step.transfer.source in HOST_MEMORIES else " out"
        return self._tracks.setdefault(name, len(self._tracks) + 1)

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._origin) / 1e3
