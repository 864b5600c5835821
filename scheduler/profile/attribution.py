"""Attribution of items' time, from asking the source until the consumer releases the result.

Timestamps divide an item's time among source, queues and consumer. The time of its steps is divided
along its critical path, backwards from the step that ended last. Each ns is counted once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from .intervals import Lanes, find_gaps, measure_covered_ns, merge_intervals
from .records import Order, Orders, PlanTimes, Record, RowBatch, Span

Computing: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Attribution:
    """The time of one or more items, in ns by category."""

    items: int = 0
    wall_ns: int = 0
    """From asking the source for the item until the consumer released the result."""
    source_ns: int = 0
    """The source made it."""
    partners_ns: int = 0
    """A join had it, and waited for its partners."""
    planning_ns: int = 0
    """It waited for a plan for its shapes to be made and opened."""
    binding_ns: int = 0
    """It waited for programs to be bound to the memory of its slot."""
    back_pressure_ns: int = 0
    """It waited for a slot, or for memory that earlier items held."""
    feed_ns: int = 0
    """Its inputs were written."""
    compute_ns: int = 0
    transfer_ns: int = 0
    """Its kernels ran, its tensors were copied between memories. Work in parallel to the critical
    path does not count."""
    waiting_ns: int = 0
    """Its async functions waited, or worked on the event loop, or its rows waited for a batch."""
    device_busy_ns: int = 0
    """A step was ready, but its device worked for other items, or its async function had reached
    its limit of calls."""
    scheduler_ns: int = 0
    """Threads, processes and the loop woke up or passed steps on."""
    land_ns: int = 0
    """Its results were copied out."""
    order_ns: int = 0
    """It was done, and waited for items before it."""
    consumer_ns: int = 0
    """It waited for the consumer, who then had it."""

    def __add__(self, other: Attribution) -> Attribution:
        sums = {
            one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)
        }
        return Attribution(**sums)

    @property
    def residual_ns(self) -> int:
        """Time without a category: steps timed on another clock than their items."""
        return self.wall_ns - sum(self.spent_ns.values())

    @property
    def spent_ns(self) -> dict[str, int]:
        """The ns by category, in the order of an item's states."""
        return {kind: getattr(self, f"{kind}_ns") for kind in KINDS}

    @property
    def shares(self) -> dict[str, float]:
        """The share of the wall time by category."""
        return {kind: ns / (self.wall_ns or 1) for kind, ns in self.spent_ns.items()}

    def to_dict(self) -> dict[str, float]:
        """Return the mean of an item in ms, by category, as plain values for JSON."""
        whole = {"wall": self.wall_ns, **self.spent_ns, "residual": self.residual_ns}
        return {f"{kind}_ms": ns / 1e6 / (self.items or 1) for kind, ns in whole.items()}


KINDS = tuple(
    one.name.removesuffix("_ns")
    for one in fields(Attribution)
    if one.name not in ("items", "wall_ns")
)
"""The categories."""


WAITS = ("scheduler", "back_pressure")
"""Categories from which the preparation of an item is subtracted."""


def attribute_times(
    records: Sequence[Record], batches: Sequence[RowBatch] = ()
) -> list[Attribution]:
    """Attribute the time of `records`; while `batches` run, waiting for rows is computing."""
    lanes, turns = Lanes(records), _find_turns(records)
    computing = _find_computing(batches)
    orders = Orders()
    found = []
    for item, record in enumerate(records):
        way = _Way(record)
        way.book_queues(turns.get(item, 0))
        spans = list(record.spans())
        # Steps on another clock are left to the residual.
        if all(way.fed <= one.started_ns <= one.ended_ns <= way.finished for one in spans):
            path = _Path(item, way.fed, way.finished, lanes, way, computing)
            # Backwards, since a step starts when the last of its inputs is complete.
            for part in reversed(record.parts):
                path.follow(part, orders.of(part))
            path.book(way.fed, "scheduler")
        found.append(Attribution(1, way.wall, **{f"{k}_ns": ns for k, ns in way.booked.items()}))
    return found


def _find_computing(batches: Sequence[RowBatch]) -> Computing:
    found: dict[str, list[tuple[int, int]]] = {}
    for batch in batches:
        found.setdefault(batch.queue, []).extend(
            (span.started_ns, span.ended_ns)
            for span in batch.record.spans()
            if not (span.step.transfer or span.step.awaited)
        )
    return {queue: list(merge_intervals(intervals)) for queue, intervals in found.items()}


def sum_attributions(every: Iterable[Attribution]) -> Attribution:
    whole = Attribution()
    for one in every:
        whole += one
    return whole


def _find_turns(records: Sequence[Record]) -> dict[int, int]:
    turns: dict[int, int] = {}
    landed: dict[int, int] = {}
    by_turn = sorted(range(len(records)), key=lambda item: records[item].marks.taken_ns)
    for item in by_turn:
        marks = records[item].marks
        if marks.taken_ns:
            # An ordered stream delivers an item after all earlier ones.
            before = turns[item] = landed.get(marks.stream, 0)
            landed[marks.stream] = max(before, marks.landed_ns)
    return turns


class _Way:
    """The attribution of one item in the making."""

    def __init__(self, record: Record) -> None:
        self.booked = dict.fromkeys(KINDS, 0)
        self._preparing = record.marks.preparing
        self._moments = list_moments(record)
        self.wall = self._moments[-1] - self._moments[0]
        self.fed, self.finished, self.landed = self._moments[3:6]

    def book_queues(self, turn: int) -> None:
        """Book the time outside of the steps; earlier items had landed at `turn`."""
        asked, given, admitted, fed, finished, landed, taken, released = self._moments
        turn = min(max(turn, landed), taken)
        self.booked |= {
            "land": landed - finished,
            "order": turn - landed,
            "consumer": released - turn,
        }
        self.book_wait("source", asked, given)
        self.book_wait("back_pressure", given, admitted)
        self.book_wait("feed", admitted, fed)

    def book_wait(self, kind: str, begin: int, end: int) -> None:
        left = end - begin
        for other, started, ended in self._preparing:
            inside = max(0, min(ended, end) - max(started, begin))
            self.booked[other] += inside
            left -= inside
        self.booked[kind] += left


def list_moments(record: Record) -> list[int]:
    """Return the timestamps of `record` in order; a missing one equals the one before it."""
    marks = record.marks
    spans = list(record.spans())
    # Simulations have fewer timestamps, and their clocks begin at 0, which stands for none.
    ended = max((span.ended_ns for span in spans), default=0)
    known = [
        marks.asked_ns, marks.given_ns, marks.admitted_ns, marks.fed_ns,
        marks.finished_ns or ended, marks.landed_ns, marks.taken_ns, marks.released_ns,
    ]  # fmt: skip
    latest = min(filter(None, known), default=0)
    latest = min((latest, *(span.ready_ns for span in spans)))
    for at, moment in enumerate(known):
        known[at] = latest = max(moment, latest)
    return known


class _Path:
    """Books the time along an item's critical path, backwards."""

    def __init__(
        self, item: int, begin: int, end: int, lanes: Lanes, way: _Way, computing: Computing
    ) -> None:
        self._item, self._begin, self._at = item, begin, end
        self._lanes, self._way, self._computing = lanes, way, computing

    def book(self, until: int, kind: str) -> None:
        until = max(until, self._begin)
        if until < self._at:
            if kind in WAITS:
                self._way.book_wait(kind, until, self._at)
            else:
                self._way.booked[kind] += self._at - until
            self._at = until

    def follow(self, part: PlanTimes, order: Order) -> None:
        spans = {span.step.index: span for span in part.spans()}
        # The step that ended last is the end of the critical path.
        span = max(spans.values(), key=lambda one: one.ended_ns, default=None)
        while span is not None:
            self.book(span.ended_ns, "scheduler")
            for begin, end in self._find_computing(span):
                self.book(end, "waiting")
                self.book(begin, "compute")
            self.book(span.started_ns, _classify_span(span))
            before = _find_last(spans, order.waits[span.step.index])
            self._book_wait(span, before, span.step.index in order.claiming)
            span = before

    def _find_computing(self, span: Span) -> Iterator[tuple[int, int]]:
        known = self._computing.get(span.step.awaited, ())
        for at in range(bisect_left(known, (self._at, 0)) - 1, -1, -1):
            begin, end = known[at]
            if end <= span.started_ns:
                return
            yield max(begin, span.started_ns), end

    def _book_wait(self, span: Span, before: Span | None, claims: bool) -> None:
        """Book the time from the last input, `before`, to `span`, for memory too if it `claims`."""
        ready = min(span.ready_ns, self._at)
        freed = self._begin if before is None else before.ended_ns
        if claims:
            # With its inputs complete, a step may wait for memory, then for its lane.
            release = self._lanes.last_release(self._item, freed, ready)
            self._book_lane(release, span.step.lane)
            self.book(freed, "back_pressure")
        else:
            self._book_lane(ready if before is None else freed, span.step.lane)

    def _book_lane(self, until: int, lane: str) -> None:
        until = max(until, self._begin)
        if until >= self._at:
            return
        works = list(self._lanes.between(lane, until, self._at))
        if not works:
            self.book(until, "scheduler")
            return
        # Work of the lane for the item itself is not a wait.
        own = [work for work in works if work.item == self._item and not work.awaits]
        # Transfers in parallel to programs do not count.
        computing = measure_covered_ns(work[:2] for work in own if not work.is_transfer)
        working = measure_covered_ns(work[:2] for work in own)
        busy = measure_covered_ns(work[:2] for work in works)
        self._way.booked["compute"] += computing
        self._way.booked["transfer"] += working - computing
        self._way.booked["device_busy"] += busy - working
        for begin, end in find_gaps((work[:2] for work in works), until, self._at):
            self._way.book_wait("scheduler", begin, end)
        self._at = until


def _classify_span(span: Span) -> str:
    if span.step.transfer:
        return "transfer"
    return "waiting" if span.step.awaited else "compute"


def _find_last(spans: Mapping[int, Span], steps: Iterable[int]) -> Span | None:
    found = (spans[step] for step in steps if step in spans)
    return max(found, key=lambda one: one.ended_ns, default=None)
