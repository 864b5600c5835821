"""What ran when: recorded per item while a session runs, summed up on demand."""

from __future__ import annotations

import statistics
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import SessionError
from .executor import Execution
from .marks import Marks
from .open_plan import OpenPlan
from .planning import Plan
from .steps import Outline, Transfer

KEPT_SPANS = 200_000
"""Steps remembered; the oldest items are forgotten beyond (24 bytes each)."""

LISTED_NODES = 25


class Span(NamedTuple):
    """One step of one item: when it was submitted, began and ended, in ns."""

    step: Outline
    ready_ns: int
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Part:
    """What ran of one plan: for each step when it was submitted, began and ended."""

    steps: tuple[Outline, ...]
    times: array[int]

    def spans(self) -> Iterator[Span]:
        """Yield the steps that ran."""
        for step in self.steps:
            ready, started, ended = self.times[3 * step.index : 3 * step.index + 3]
            if ended:
                yield Span(step, ready, started, ended)


@dataclass(frozen=True, slots=True)
class Record:
    """One item's times.

    They are those of the `time.perf_counter_ns` clock; where all devices are simulated on one
    virtual clock, of that clock. The times of a step are always those of its device's clock.

    It has several parts where shapes depend on values, or there are loops.
    """

    parts: tuple[Part, ...]
    marks: Marks
    failed: bool

    @property
    def admitted_ns(self) -> int:
        """When it got a slot."""
        return self.marks.admitted_ns

    @property
    def landed_ns(self) -> int:
        """When its results were there."""
        return self.marks.landed_ns

    def spans(self) -> Iterator[Span]:
        """Yield the steps that ran."""
        return (span for part in self.parts for span in part.spans())

    @property
    def n_steps(self) -> int:
        """How many steps its plans have."""
        return sum(len(part.steps) for part in self.parts)


class Recorder:
    """Keeps the times of the latest items; cheap enough to be always on."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._spans = self._forgotten = 0
        self._nodes: dict[tuple[str, str, str], list[int]] = {}

    def part(self, open_plan: OpenPlan, execution: Execution) -> Part:
        """Return what an execution knows of its steps."""
        times = array("q")
        for ready_ns, event in zip(execution.ready_ns, execution.events, strict=True):
            if event is None:
                times.extend((0, 0, 0))
            else:
                times.extend((ready_ns, event.started_ns, event.ended_ns))
        self._measure_nodes(open_plan.plan, execution)
        return Part(open_plan.outlines, times)

    def record(self, parts: Iterable[Part], marks: Marks, failed: bool) -> None:
        """Take over what is known of an item; its last marks follow."""
        record = Record(tuple(parts), marks, failed)
        self._records.append(record)
        self._spans += 1 + record.n_steps
        while self._spans > KEPT_SPANS and len(self._records) > 1:
            self._spans -= 1 + self._records.popleft().n_steps
            self._forgotten += 1

    def profile(self) -> Profile:
        """Return what is known by now."""
        nodes = [
            NodeTime(name, op, device, count, total)
            for (name, op, device), (count, total) in self._nodes.items()
        ]
        nodes.sort(key=lambda node: -node.total_ns)
        return Profile(tuple(self._records), tuple(nodes), self._forgotten)

    def _measure_nodes(self, plan: Plan, execution: Execution) -> None:
        for step, event in zip(plan.steps, execution.events, strict=True):
            if event is None or event.node_ns is None or isinstance(step.work, Transfer):
                continue
            for node, spent in zip(step.work.graph.nodes, event.node_ns, strict=True):
                total = self._nodes.setdefault((node.name, node.op, step.device), [0, 0])
                total[0] += 1
                total[1] += spent


class NodeTime(NamedTuple):
    """The time spent in one node, over all measured items."""

    name: str
    op: str
    device: str
    runs: int
    total_ns: int


@dataclass(frozen=True)
class Profile:
    """When everything ran.

    Attributes
    ----------
    records : tuple of Record
        One per item, the latest last.
    nodes : tuple of NodeTime
        The costliest first; empty unless the session measures.
    forgotten : int
        Items before those, of which only the node times are kept.
    """

    records: tuple[Record, ...]
    nodes: tuple[NodeTime, ...]
    forgotten: int = 0

    @property
    def wall_s(self) -> float:
        """Seconds from the first item's admission to the last one's end."""
        if not self.records:
            return 0.0
        first = min(record.admitted_ns for record in self.records)
        return (max(record.landed_ns for record in self.records) - first) / 1e9

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds that each device worked, transfers included."""
        return {
            device: sum(end - start for start, end in spans) / 1e9
            for device, spans in self._by_device().items()
        }

    @property
    def overlap(self) -> float:
        """Of the time in which any device worked, the share in which at least two did."""
        events: list[tuple[int, int]] = []
        for spans in self._by_device().values():
            for start, end in _merged(spans):
                events += [(start, 1), (end, -1)]
        some = several = active = previous = 0
        for time_ns, change in sorted(events):
            some += (time_ns - previous) * (active > 0)
            several += (time_ns - previous) * (active > 1)
            active, previous = active + change, time_ns
        return several / some if some else 0.0

    def latency_s(self, quantile: float) -> float:
        """Return a quantile of the seconds from admission to result."""
        latencies = sorted(record.landed_ns - record.admitted_ns for record in self.records)
        if not latencies:
            return 0.0
        return latencies[min(int(quantile * len(latencies)), len(latencies) - 1)] / 1e9

    def steps(self) -> list[dict[str, Any]]:
        """Return per step: runs, and median milliseconds running and waiting for its device."""
        spans: dict[tuple[str, str], list[Span]] = {}
        for record in self.records:
            for span in record.spans():
                spans.setdefault((span.step.name, span.step.device), []).append(span)
        return [
            {
                "step": name,
                "device": device,
                "kind": "transfer" if found[0].step.transfer else "subgraph",
                "runs": len(found),
                "run_ms": statistics.median(s.ended_ns - s.started_ns for s in found) / 1e6,
                "queued_ms": statistics.median(s.started_ns - s.ready_ns for s in found) / 1e6,
            }
            for (name, device), found in spans.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return {
            "items": len(self.records),
            "forgotten": self.forgotten,
            "failed": sum(record.failed for record in self.records),
            "wall_s": self.wall_s,
            "items_per_s": len(self.records) / self.wall_s if self.records else 0.0,
            "latency_ms": {
                name: self.latency_s(q) * 1e3 for name, q in (("p50", 0.5), ("p99", 0.99))
            },
            "busy_s": self.busy_s,
            "overlap": self.overlap,
            "steps": self.steps(),
            "nodes": [node._asdict() for node in self.nodes],
        }

    def table(self) -> str:
        """Return the figures for people."""
        figures = self.to_dict()
        lines = [
            f"{'the last ' if self.forgotten else ''}"
            "{items} items in {wall_s:.3f} s: {items_per_s:.1f} items/s, {failed} failed".format(
                **figures
            ),
            "latency p50 {p50:.2f} ms, p99 {p99:.2f} ms".format(**figures["latency_ms"]),
        ]
        for device, busy_s in figures["busy_s"].items():
            share = busy_s / self.wall_s if self.wall_s else 0.0
            lines.append(f"{device}: busy {busy_s:.3f} s, {share:.0%} of the time")
        lines.append(f"two devices or more at work: {figures['overlap']:.0%} of the busy time")
        lines += ["", f"{'step':32} {'device':12} {'runs':>6} {'median ms':>9} {'queued ms':>9}"]
        lines += [
            f"{row['step'][:32]:32} {row['device']:12} {row['runs']:6} "
            f"{row['run_ms']:9.3f} {row['queued_ms']:9.3f}"
            for row in figures["steps"]
        ]
        return "\n".join(lines + self._node_table())

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

        Raises
        ------
        SessionError
            If the file cannot be written.
        """
        from .explain.chrome import write_trace

        try:
            write_trace(self, Path(path))
        except OSError as error:
            raise SessionError(
                f"cannot write the trace: {error.strerror}",
                at=str(path),
                fix="choose a file in a folder that exists and can be written to",
            ) from error

    def save_html(self, path: str | Path, plan: Plan | None = None) -> None:
        """Write a report for a browser, with the plan's if that is given: see `Plan.save_html`."""
        from .explain.html import write_html

        write_html(path, plan, self)

    def _node_table(self) -> list[str]:
        if not self.nodes:
            return []
        everything = sum(node.total_ns for node in self.nodes) or 1
        lines = ["", f"{'node':40} {'op':20} {'device':12} {'mean ms':>9} {'share':>6}"]
        lines += [
            f"{node.name[:40]:40} {node.op[:20]:20} {node.device:12} "
            f"{node.total_ns / node.runs / 1e6:9.3f} {node.total_ns / everything:6.1%}"
            for node in self.nodes[:LISTED_NODES]
        ]
        more = len(self.nodes) - LISTED_NODES
        return [*lines, f"and {more} more nodes"] if more > 0 else lines

    def _by_device(self) -> Mapping[str, list[tuple[int, int]]]:
        spans: dict[str, list[tuple[int, int]]] = {}
        for record in self.records:
            for span in record.spans():
                spans.setdefault(span.step.device, []).append((span.started_ns, span.ended_ns))
        return spans


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of spans as disjoint ones (a device may copy while it computes)."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
