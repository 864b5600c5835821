"""Recording while a session runs: a few numbers for each step, as they are known anyway."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ...devices.event import Event
from ...graph.operators.bounded_call import get_called_op
from ..plans.placement import Outline, Step, Transfer
from ..plans.regions import Pool
from ..profile.profile import Profile
from ..profile.records import NodeTime, PlanTimes, Record, RowBatch, RowBatchFigures, rename_steps
from ..profile.timestamps import Timestamps
from .opened.executor import Execution
from .opened.open_plan import OpenPlan

KEPT_SPANS = 50_000
"""Steps remembered, and their items: 5 MB at most. The oldest items are forgotten beyond."""

SPANS_OF_ITEM = 6
"""An item counts as that many steps besides its own: it takes 0.6 KB, and 24 bytes for each."""

KEPT_RUNS = 64
"""Limit of times of each node, for the median: earlier ones, such as warm-ups, are dropped."""

KEPT_OPENINGS = 64
"""Limit of remembered prologues, the latest."""

KEPT_BATCHES = 4096
"""Limit of remembered batches of rows, the latest."""

Trace: TypeAlias = tuple[tuple[Outline, ...], Sequence[int], Mapping[str, Pool]]
"""The fields of a `PlanTimes`, which is made of them on request."""

NOTHING: Trace = (), (), {}

_Batch: TypeAlias = tuple[str, int, tuple[int, int, int], Sequence[Trace], Timestamps, bool]
"""The arguments of `record_batch`, of which a `RowBatch` is made on request."""


class Recorder:
    """Keeps the times of the latest items; cheap enough to be always on.

    Any thread may ask for the profile while items are recorded. Unless it `keeps` times, it only
    counts items: those `done`, those of them that `failed`, and those of live sources that were
    `dropped` for lack of room. If it `measures`, nodes are timed, and those times added up where it
    keeps them.
    """

    def __init__(self, *, keeps: bool = True, measures: bool = False) -> None:
        self.done = self.failed = self.dropped = 0
        self._counting = threading.Lock()  # of threads that run items of a stream
        self._keeps, self._measures = keeps, measures
        # The older ones that were requested, and the data for later ones.
        self._records: deque[Record] = deque()
        # Not taken to record an item: append and popleft are critical sections of the deque, with
        # or without a GIL. One thread appends; it and readers take out under this lock, so that
        # as many as a known length can be taken out. A length read too early is an item fewer.
        self._reading = threading.Lock()
        self._latest: deque[tuple[int, Timestamps, bool, *tuple[Trace, ...]]] = deque()
        self._spans = self._forgotten = 0
        self._nodes: dict[tuple[str, str, str], _Runs] = {}
        self._at_open: deque[Record] = deque(maxlen=KEPT_OPENINGS)
        self._row_batches: dict[str, RowBatchFigures] = {}
        self._batches: deque[_Batch] = deque(maxlen=KEPT_BATCHES)

    def trace(self, open_plan: OpenPlan, execution: Execution) -> Trace:
        if not self._keeps:
            return NOTHING
        if self._measures:
            self._measure_nodes(open_plan.plan.steps, execution.events)
        return open_plan.outlines, execution.times, open_plan.pools

    def count(self, failed: bool) -> None:
        """Count an item that has ended or `failed`, even if it never started or was in a batch."""
        with self._counting:
            self.done += 1
            self.failed += failed

    def record(self, traces: Sequence[Trace], marks: Timestamps, failed: bool) -> None:
        """Add `traces` and `marks` of an item, and whether it `failed`; the last marks follow."""
        if not self._keeps:
            return
        spans = SPANS_OF_ITEM
        for steps, _, _ in traces:
            spans += len(steps)
        self._latest.append((spans, marks, failed, *traces))
        self._spans += spans
        if self._spans > KEPT_SPANS:
            self._forget()

    def record_prologue(self, prologue: OpenPlan, execution: Execution, marks: Timestamps) -> None:
        if self._keeps:
            part = PlanTimes(prologue.outlines, execution.times, prologue.pools)
            self._at_open.append(Record((part,), marks, failed=False))

    def count_batch(self, queue: str, rows: int, waited_s: float) -> None:
        known = self._row_batches.get(queue, RowBatchFigures())
        self._row_batches[queue] = RowBatchFigures(
            known.batches + 1, known.rows + rows, known.waited_s + waited_s, known.dropped
        )

    def count_dropped_rows(self, queue: str, rows: int) -> None:
        known = self._row_batches.get(queue, RowBatchFigures())
        self._row_batches[queue] = known._replace(dropped=known.dropped + rows)

    def record_batch(
        self,
        queue: str,
        rows: int,
        times_ns: tuple[int, int, int],
        traces: Sequence[Trace],
        marks: Timestamps,
        failed: bool,
    ) -> None:
        if self._keeps and traces and traces[0][0]:
            self._batches.append((queue, rows, times_ns, traces, marks, failed))

    def profile(self) -> Profile:
        nodes = [NodeTime(*key, *runs.figures()) for key, runs in list(self._nodes.items())]
        nodes.sort(key=lambda node: -node.total_ns)
        with self._reading:
            for _ in range(len(self._latest)):
                _, marks, failed, *traces = self._latest.popleft()
                self._records.append(
                    Record(tuple(PlanTimes(*one) for one in traces), marks, failed)
                )
            records, forgotten = tuple(self._records), self._forgotten
        return Profile(
            records,
            tuple(nodes),
            forgotten,
            tuple(self._at_open),
            self.dropped,
            tuple(_describe_batch(*one) for one in self._batches.copy()),
            dict(self._row_batches),
        )

    def _forget(self) -> None:
        """Drop the oldest items, several at once: that is cheaper than one for each new one."""
        records, latest, most = self._records, self._latest, KEPT_SPANS - KEPT_SPANS // 64
        with self._reading:
            while self._spans > most and len(records) + len(latest) > 1:
                known = records.popleft().n_steps + SPANS_OF_ITEM if records else 0
                self._spans -= known or latest.popleft()[0]
                self._forgotten += 1

    def _measure_nodes(self, steps: Sequence[Step], events: Sequence[Event | None]) -> None:
        for step, event in zip(steps, events, strict=True):
            if event is None or event.node_ns is None or isinstance(step.work, Transfer):
                continue
            for node, spent in zip(step.work.graph.nodes, event.node_ns, strict=True):
                key = node.name, get_called_op(node), step.device
                runs = self._nodes.get(key)
                if runs is None:
                    runs = self._nodes[key] = _Runs(spent)
                runs.add(spent)


def _describe_batch(
    queue: str,
    rows: int,
    times_ns: tuple[int, int, int],
    traces: Sequence[Trace],
    marks: Timestamps,
    failed: bool,
) -> RowBatch:
    parts = [PlanTimes(rename_steps(steps, queue), times, pools) for steps, times, pools in traces]
    return RowBatch(queue, rows, *times_ns, Record(tuple(parts), marks, failed))


class _Runs:
    """The runs of a node: their number, sum and least, and the latest ones."""

    def __init__(self, first: int) -> None:
        self.count = self.total = 0
        self.least = first
        self.latest: deque[int] = deque(maxlen=KEPT_RUNS)

    def add(self, spent: int) -> None:
        self.count += 1
        self.total += spent
        self.least = min(self.least, spent)
        self.latest.append(spent)

    def figures(self) -> tuple[int, int, int, int, int]:
        """Return the number of runs; in ns their sum, least, median, median absolute deviation."""
        latest = list(self.latest)  # others may be added meanwhile
        median = statistics.median_low(latest)
        mad = statistics.median_low(abs(one - median) for one in latest)
        return self.count, self.total, self.least, median, mad
