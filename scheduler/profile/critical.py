"""The critical path of a measured stream: the steps that determined its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from ..plans.placement import Outline
from .records import Orders, Record, Span

Cause = Literal["admission", "input", "lane"]


class CriticalSpan(NamedTuple):
    item: int
    """Index in the records of the profile."""
    step: Outline
    started_ns: int
    ended_ns: int
    cause: Cause
    """The last condition for its start, which the step before it on the path met: an ``"input"``,
    its device's ``"lane"``, or the ``"admission"`` of its item."""


def find_critical_path(records: Sequence[Record]) -> tuple[CriticalSpan, ...]:
    return tuple(reversed(list(_Search(records).back())))


class _Place(NamedTuple):
    """A step of an item; sorts by its end."""

    ended_ns: int
    item: int
    part: int
    step: int
    span: Span


class _Search:
    def __init__(self, records: Sequence[Record]) -> None:
        self._by_lane: dict[str, list[_Place]] = {}
        self._parts: dict[tuple[int, int], dict[int, _Place]] = {}
        self._records, self._orders = records, Orders()
        for item, record in enumerate(records):
            for number, part in enumerate(record.parts):
                places = self._parts[item, number] = {
                    span.step.index: _Place(span.ended_ns, item, number, span.step.index, span)
                    for span in part.spans()
                }
                for place in places.values():
                    self._by_lane.setdefault(place.span.step.lane, []).append(place)
        for found in self._by_lane.values():
            found.sort(key=lambda place: place[:4])
        self._landed = sorted((one.landed_ns, item) for item, one in enumerate(records))

    def back(self) -> Iterator[CriticalSpan]:
        """Yield the path backwards. Ends decrease strictly, so that wrong clocks cause no cycle."""
        place = self._latest_of(self._landed[-1][1]) if self._landed else None
        while place is not None:
            span = place.span
            before, cause = self._before(place)
            yield CriticalSpan(place.item, span.step, span.started_ns, span.ended_ns, cause)
            place = before if before is not None and before.ended_ns < place.ended_ns else None

    def _before(self, place: _Place) -> tuple[_Place | None, Cause]:
        siblings = self._parts[place.item, place.part]
        waits = self._orders.of(self._records[place.item].parts[place.part]).waits[place.step]
        inputs = (siblings[step] for step in waits if step in siblings)
        needed = max(inputs, key=lambda one: one.ended_ns, default=None)
        ahead = self._ahead(place)
        ready = place.span.ready_ns if needed is None else needed.ended_ns
        if ahead is not None and ahead.ended_ns > ready:
            return ahead, "lane"
        if needed is not None:
            return needed, "input"
        if place.part:
            return self._latest_of(place.item, place.part - 1), "input"
        return self._admitting(place.item), "admission"

    def _ahead(self, place: _Place) -> _Place | None:
        works = self._by_lane[place.span.step.lane]
        at = bisect_right(works, place.span.started_ns, key=lambda one: one.ended_ns) - 1
        return next((works[i] for i in range(at, -1, -1) if works[i] is not place), None)

    def _admitting(self, item: int) -> _Place | None:
        at = bisect_right(self._landed, (self._records[item].admitted_ns, len(self._records))) - 1
        return self._latest_of(self._landed[at][1]) if at >= 0 else None

    def _latest_of(self, item: int, last_part: int | None = None) -> _Place | None:
        count = len(self._records[item].parts) if last_part is None else last_part + 1
        places = [one for part in range(count) for one in self._parts[item, part].values()]
        return max(places, key=lambda one: one.ended_ns, default=None)
