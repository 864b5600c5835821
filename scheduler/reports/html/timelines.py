"""Timelines: the steps on each lane, predicted or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from ....graph.core.printing import format_count
from ...plans.placement import Outline
from ...profile import Profile, Record
from ...profile.critical import find_critical_path
from ...profile.records import RowBatch
from ...profile.table import MEANINGS
from .columns import Texts, round_digits, to_microseconds

if TYPE_CHECKING:
    from ...simulation.simulation import Simulation

Subgraphs = Mapping[str, int]
"""Indices of subgraphs by name."""

SPANS = 6_000
"""Approximate limit for the bars of a timeline, which shows the last items."""


def make_measured_timeline(
    profile: Profile, subgraphs: Subgraphs, texts: Texts
) -> dict[str, Any] | None:
    """Return the timeline of the last items of `profile`, or None if it has no records.

    `subgraphs` maps names of subgraphs to numbers; `texts` gives each string a number.
    """
    records = select_records(profile)
    if not records:
        return None
    before = len(profile.records) - len(records) + profile.forgotten
    everything = format_count(before + len(records), "item")
    which = f"the last {len(records)} of {everything}" if before else everything
    path = find_critical_path(records)
    lines = _Lines(subgraphs, texts)
    lines.add(records, before, {(before + one.item, one.step.index) for one in path})
    lines.add_preparing(records, before)
    first_ns = min(record.admitted_ns for record in records)
    batches = [batch for batch in profile.batches if batch.first_ns >= first_ns]
    lines.add_batches(batches, before + len(records))
    return {"kind": "measured", "title": f"measured: {which}", "slack": None, **lines.plain()}


def make_predicted_timeline(
    simulation: Simulation, subgraphs: Subgraphs, texts: Texts
) -> dict[str, Any]:
    records = simulation.records[: max(1, SPANS // max(len(simulation.plan.steps), 1))]
    lines = _Lines(subgraphs, texts)
    path = (one for one in simulation.critical_path if one.rows_of is None)
    lines.add(records, 0, {(one.item, one.step.index) for one in path})
    last_ns = max(record.landed_ns for record in records)
    batches = [one for one in simulation.profile.batches if one.first_ns <= last_ns]
    lines.add_batches(batches, len(records))
    title = f"predicted: {format_count(simulation.items, 'item')}"
    if simulation.items > 1:
        title += f", {simulation.max_in_flight} in flight"
    return {
        "kind": "predicted",
        "title": title,
        "slack": [round_digits(seconds * 1e6) for seconds in simulation.slack_s],
        **lines.plain(),
    }


class _Bar(NamedTuple):
    start_s: float
    lane: int
    item: int
    step: int
    duration_s: float
    queued_s: float
    critical: bool


def select_records(profile: Profile) -> Sequence[Record]:
    """Return the last items of `profile`, with at most `SPANS` steps, but at least one item."""
    records = profile.records
    spans = count = 0
    for record in reversed(records):
        spans += record.n_steps
        if count and spans > SPANS:
            break
        count += 1
    return records[len(records) - count :]


class _Lines:
    """Collects bars on lanes: one lane per device, one for its copies."""

    def __init__(self, subgraphs: Subgraphs, texts: Texts) -> None:
        self._subgraphs, self._texts = subgraphs, texts
        self._lanes: dict[str, int] = {}
        self._devices: list[str] = []
        self._steps: dict[tuple[int, int], int] = {}
        self._outlines: list[Outline] = []
        self._of_subgraph: list[int | None] = []
        self._bars: list[_Bar] = []
        self._origin = self._first_batch = 0
        self._batches: list[str] = []

    def add(
        self,
        records: Sequence[Record],
        first: int,
        critical: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> None:
        # Waits before the admission are shown, too.
        self._origin = min(
            min(record.admitted_ns, *(began for _, began, _ in record.marks.preparing))
            if record.marks.preparing
            else record.admitted_ns
            for record in records
        )
        for item, record in enumerate(records, first):
            self._add_steps(record, item, critical, self._subgraphs)

    def add_preparing(self, records: Sequence[Record], first: int) -> None:
        """Add bars for waits before items of `records` ran; the first item is number `first`."""
        for item, record in enumerate(records, first):
            for kind, began_ns, ended_ns in record.marks.preparing:
                number = list(MEANINGS).index(kind)
                # 0 is not the identity of any plan.
                step = self._step(Outline(number, kind, "", (), None, ()), 0, subgraphs={})
                start_s, length_s = (began_ns - self._origin) / 1e9, (ended_ns - began_ns) / 1e9
                lane = self._lane_named("before it ran", "")
                self._bars.append(_Bar(start_s, lane, item, step, length_s, 0.0, critical=False))

    def add_batches(self, batches: Sequence[RowBatch], first: int) -> None:
        self._first_batch = first
        for number, batch in enumerate(batches, first):
            text = f"{format_count(batch.rows, 'row')} of {batch.queue}"
            device = batch.record.parts[0].steps[0].device
            outline = Outline(number, text, device, (), None, ())
            bar = _Bar(
                (batch.started_ns - self._origin) / 1e9,
                self._lane_named(f"rows of {batch.queue}", device),
                number,
                self._step(outline, 0, subgraphs={}),
                (batch.ended_ns - batch.started_ns) / 1e9,
                max(batch.started_ns - batch.first_ns, 0) / 1e9,
                critical=False,
            )
            self._bars.append(bar)
            self._batches.append(f"batch of {text}")
            self._add_steps(batch.record, number, frozenset(), subgraphs={})

    def _add_steps(
        self,
        record: Record,
        number: int,
        critical: AbstractSet[tuple[int, int]],
        subgraphs: Subgraphs,
    ) -> None:
        for part in record.parts:
            for span in part.spans():
                bar = _Bar(
                    (span.started_ns - self._origin) / 1e9,
                    self._lane(span.step),
                    number,
                    self._step(span.step, id(part.steps), subgraphs),
                    (span.ended_ns - span.started_ns) / 1e9,
                    max(span.started_ns - span.ready_ns, 0) / 1e9,
                    (number, span.step.index) in critical,
                )
                self._bars.append(bar)

    def plain(self) -> dict[str, Any]:
        """Return lanes, steps and bars as plain values, bars sorted by start."""
        bars = sorted(self._bars)
        return {
            "lanes": list(self._lanes),
            "devices": self._devices,
            "items": len({bar.item for bar in bars}) - len(self._batches),
            "batches": {"first": self._first_batch, "names": self._batches},
            "steps": self._plain_steps(),
            "lane": [bar.lane for bar in bars],
            "item": [bar.item for bar in bars],
            "step": [bar.step for bar in bars],
            "start": [to_microseconds(bar.start_s) for bar in bars],
            "duration": [to_microseconds(bar.duration_s) for bar in bars],
            "queued": [to_microseconds(bar.queued_s) for bar in bars],
            "critical": [int(bar.critical) for bar in bars],
        }

    def _lane(self, step: Outline) -> int:
        return self._lane_named(
            f"{step.device} copies" if step.transfer else step.place, step.device
        )

    def _lane_named(self, name: str, device: str) -> int:
        if name not in self._lanes:
            self._lanes[name] = len(self._devices)
            self._devices.append(device)
        return self._lanes[name]

    def _step(self, step: Outline, plan: int, subgraphs: Subgraphs) -> int:
        if (plan, step.index) not in self._steps:
            self._steps[plan, step.index] = len(self._outlines)
            self._outlines.append(step)
            self._of_subgraph.append(None if step.transfer else subgraphs.get(step.name))
        return self._steps[plan, step.index]

    def _plain_steps(self) -> dict[str, list[Any]]:
        after = [
            [
                self._steps[plan, later]
                for later in outline.dependents
                if (plan, later) in self._steps
            ]
            for (plan, _), outline in zip(self._steps, self._outlines, strict=True)
        ]
        return {
            "index": [index for _, index in self._steps],
            "name": self._texts.numbers(outline.name for outline in self._outlines),
            "nodes": [len(outline.nodes) for outline in self._outlines],
            "nbytes": [one.transfer.nbytes if one.transfer else None for one in self._outlines],
            "subgraph": self._of_subgraph,
            "next": after,
        }
