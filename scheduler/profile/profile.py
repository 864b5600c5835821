"""The times of a session's latest items, as figures, tables and files."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graph.core.printing import format_count
from ..plans.placement import Outline
from ..plans.plan import Plan
from .attribution import Attribution, attribute_times, sum_attributions
from .critical import CriticalSpan, find_critical_path
from .intervals import measure_covered_ns, merge_intervals
from .records import NodeTime, Record, RowBatch, RowBatchFigures, Span
from .table import write_table

if TYPE_CHECKING:
    from ..reports.what_if import WhatIf

TELLING = 16
"""Items from which on a majority of misses is reported."""


@dataclass(frozen=True)
class Profile:
    """The times of a session's latest items.

    Attributes
    ----------
    records : tuple of Record
        One per item, the latest last.
    nodes : tuple of NodeTime
        The costliest first; empty unless the session measures.
    forgotten : int
        The number of earlier items, of which only the node times are kept.
    at_open : tuple of Record
        The computations that ran once for each opened plan; not part of any item.
    dropped : int
        The number of items of live sources that did not fit and never ran.
    batches : tuple of RowBatch
        The batches of rows across items, the latest last.
    row_batches : Mapping of str to RowBatchFigures
        Figures of these batches, by the name given to `GraphBuilder.each`.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> with pl.BlockingSession(pl.plan(b.build()), measure=True) as session:
    ...     for _ in range(3):
    ...         _ = session.run({"x": np.ones(2, "float32")})
    ...     profile = session.profile()
    >>> len(profile.records), [node.name for node in profile.nodes]
    (3, ['relu'])
    """

    records: tuple[Record, ...]
    nodes: tuple[NodeTime, ...]
    forgotten: int = 0
    at_open: tuple[Record, ...] = ()
    dropped: int = 0
    batches: tuple[RowBatch, ...] = ()
    row_batches: Mapping[str, RowBatchFigures] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        """Seconds from the first item's admission to the last one's end."""
        if not self.records:
            return 0.0
        first = min(record.admitted_ns for record in self.records)
        return (max(record.landed_ns for record in self.records) - first) / 1e9

    @cached_property
    def active_s(self) -> float:
        """The part of `wall_s` in which an item was in flight, or with its source or consumer."""
        if not self.records:
            return 0.0
        first = min(record.admitted_ns for record in self.records)
        last = max(record.landed_ns for record in self.records)
        ways = (
            (
                max(record.marks.asked_ns or record.admitted_ns, first),
                min(max(record.landed_ns, record.marks.released_ns), last),
            )
            for record in self.records
        )
        return measure_covered_ns(ways) / 1e9

    @property
    def items_per_s(self) -> float:
        """Items per active second: the time between streams does not count."""
        return len(self.records) / self.active_s if self.active_s else 0.0

    @property
    def busy_s(self) -> dict[str, float]:
        """The seconds for which each device worked, transfers included."""
        return {
            device: sum(end - start for start, end in spans) / 1e9
            for device, spans in self._by_device().items()
        }

    @property
    def waits(self) -> dict[str, dict[str, float]]:
        """For each async function, the number of its calls and their total seconds."""
        found: dict[str, dict[str, float]] = {}
        for record in self.records:
            for span in record.spans():
                if span.step.awaited:
                    one = found.setdefault(span.step.awaited, {"calls": 0, "seconds": 0.0})
                    one["calls"] += 1
                    one["seconds"] += (span.ended_ns - span.started_ns) / 1e9
        return found

    @property
    def overlap(self) -> float:
        """The share of the busy time in which at least two devices worked."""
        events: list[tuple[int, int]] = []
        for spans in self._by_device().values():
            for start, end in merge_intervals(spans):
                events += [(start, 1), (end, -1)]
        some = several = active = previous = 0
        for time_ns, change in sorted(events):
            some += (time_ns - previous) * (active > 0)
            several += (time_ns - previous) * (active > 1)
            active, previous = active + change, time_ns
        return several / some if some else 0.0

    @property
    def at_open_s(self) -> float:
        """The seconds of the computations that ran once, when plans were opened."""
        return sum(record.landed_ns - record.admitted_ns for record in self.at_open) / 1e9

    @cached_property
    def misses(self) -> int:
        """The number of items that waited for a plan for their shapes, or for similar ones."""
        return sum("planning" in record.waited_for for record in self.records)

    @cached_property
    def bound(self) -> int:
        """The number of items that waited only for programs to be bound, for lengths in bounds."""
        bound = {"binding"}
        return sum(record.waited_for - {"partners"} == bound for record in self.records)

    @property
    def hits(self) -> int:
        """The number of items that found a plan and bound programs for their shapes."""
        return len(self.records) - self.misses - self.bound

    @property
    def mostly_misses(self) -> bool:
        """True if most items wait for a plan, because their shapes rarely repeat."""
        return len(self.records) >= TELLING and self.misses * 2 > len(self.records)

    @property
    def mostly_bound(self) -> bool:
        """True if most items wait to be bound to new lengths, and not briefly beside computing."""
        spent = self.attribution()
        is_slow = spent.binding_ns * 4 > spent.compute_ns
        return is_slow and self.bound * 2 > len(self.records) >= TELLING

    def latency_s(self, quantile: float) -> float:
        """Return a quantile, from 0 to 1, of the seconds from admission to result."""
        latencies = sorted(record.landed_ns - record.admitted_ns for record in self.records)
        if not latencies:
            return 0.0
        return latencies[min(int(quantile * len(latencies)), len(latencies) - 1)] / 1e9

    def steps(self) -> list[dict[str, Any]]:
        """Return for each step: nodes, runs, and median milliseconds running and waiting.

        Steps inside `each` run once for a batch of rows.
        """
        spans: dict[tuple[str, str], list[Span]] = {}
        for record in (*self.records, *(batch.record for batch in self.batches)):
            for span in record.spans():
                spans.setdefault((span.step.name, span.step.device), []).append(span)
        return [
            {
                "step": name,
                "device": device,
                "kind": self._name_kind(found[0].step),
                "nodes": [*found[0].step.nodes],
                "runs": len(found),
                "run_ms": statistics.median(s.ended_ns - s.started_ns for s in found) / 1e6,
                "queued_ms": statistics.median(s.started_ns - s.ready_ns for s in found) / 1e6,
            }
            for (name, device), found in spans.items()
        ]

    @cached_property
    def attributions(self) -> tuple[Attribution, ...]:
        """The attribution of each item's time, in the order of `records`."""
        return tuple(attribute_times(self.records, self.batches))

    def attribution(self) -> Attribution:
        """Return the attribution of the time of all items together.

        Examples
        --------
        >>> import plait as pl
        >>> b = pl.GraphBuilder("doubled")
        >>> b.output("y", b.op("Add", b.input("x", "float32", (1000,)), 1.0))
        >>> spent = pl.simulate(pl.plan(b.build()), items=8).profile.attribution()
        >>> spent.items, spent.residual_ns, spent.wall_ns == sum(spent.spent_ns.values())
        (8, 0, True)
        """
        return sum_attributions(self.attributions)

    @cached_property
    def critical_path(self) -> tuple[CriticalSpan, ...]:
        """The critical path of the stream, across items, the first step first."""
        return find_critical_path(self.records)

    def what_if(
        self, plan: Plan, faster: Mapping[str, float], *, max_in_flight: int | None = None
    ) -> WhatIf:
        """Predict the gain of a stream if some operators or nodes were faster.

        Parameters
        ----------
        plan : Plan
            The plan that ran, with known shapes.
        faster : Mapping of str to float
            Speedup by operator, or name of a node, of a step, or a pattern such as ``"net/*"``.
        max_in_flight : int, optional
            The number of items in flight; the plan's by default.

        Raises
        ------
        PlanError
            If the plan's shapes are not known, or it has no such operator, node or step.
        SessionError
            If the profile is empty, or its nodes were not timed.
        """
        from ..reports.what_if import predict_faster

        return predict_faster(self, plan, faster, max_in_flight)

    def totals(self) -> dict[str, Any]:
        """Return the figures of all items together as plain values."""
        return {
            "items": len(self.records),
            "forgotten": self.forgotten,
            "failed": sum(record.failed for record in self.records),
            "dropped": self.dropped,
            "plans": {"hits": self.hits, "bound": self.bound, "misses": self.misses},
            "at_open_s": self.at_open_s,
            "wall_s": self.wall_s,
            "active_s": self.active_s,
            "items_per_s": self.items_per_s,
            "latency_ms": {
                name: self.latency_s(q) * 1e3 for name, q in (("p50", 0.5), ("p99", 0.99))
            },
            "busy_s": self.busy_s,
            "waits": self.waits,
            "row_batches": {name: one._asdict() for name, one in self.row_batches.items()},
            "overlap": self.overlap,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return {
            **self.totals(),
            "attribution": self.attribution().to_dict(),
            "steps": self.steps(),
            "nodes": [node._asdict() for node in self.nodes],
        }

    def table(self) -> str:
        """Return the figures as text."""
        return write_table(self)

    def __repr__(self) -> str:
        """Return one line; `table` has the details."""
        items, on = format_count(len(self.records), "item"), ", ".join(self.busy_s) or "no device"
        return f"<Profile: {items} on {on}, {self.active_s:.3f} s, {self.items_per_s:.4g} items/s>"

    def __str__(self) -> str:
        return self.table()

    def save(self, path: str | Path) -> None:
        """Write the trace to `path` as JSON for Perfetto (ui.perfetto.dev) and chrome://tracing.

        Raises
        ------
        SessionError
            If the file cannot be written.
        """
        from ..reports.chrome import write_trace

        write_trace(self, path)

    def save_html(self, path: str | Path, plan: Plan | None = None) -> None:
        """Write a report for a browser to `path`, with `plan` if given; see `Plan.save_html`."""
        from ..reports.html import write_html

        write_html(path, plan, self)

    def _repr_html_(self) -> str:
        from ..reports.html import render_frame

        return render_frame(self)

    def _by_device(self) -> Mapping[str, list[tuple[int, int]]]:
        spans: dict[str, list[tuple[int, int]]] = {}
        for record in (*self.records, *(batch.record for batch in self.batches)):
            for span in record.spans():
                if not span.step.awaited:
                    found = spans.setdefault(span.step.device, [])
                    found.append((span.started_ns, span.ended_ns))
        return spans

    def _name_kind(self, step: Outline) -> str:
        if step.awaited:
            return "wait for rows" if step.awaited in self.row_batches else "wait"
        return "transfer" if step.transfer else "subgraph"
