"""The ranking of judged assignments, and notes on rejected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from ....graph.core.printing import format_seconds
from ...plans.partition import Candidate
from .judge import Judged
from .problem import PartitionProblem

LISTED = 12
EQUAL = 1.001
"""Times within this factor are equal; then fewer subgraphs are better."""


@dataclass(frozen=True)
class Ranking:
    """Judged assignments in order.

    `assignments` are by name; those in `plain` give one device all that it can run. `ranks` is the
    order of the devices, which breaks ties.
    """

    problem: PartitionProblem
    assignments: Mapping[str, Sequence[int]]
    judged: Sequence[Judged]
    plain: frozenset[str]
    ranks: Mapping[str, int]

    @cached_property
    def order(self) -> list[Judged]:
        """Assignments within `max_subgraphs`, the best first; splits must win by the margin."""
        ranked = sorted(filter(self._is_within, self.judged), key=self._key)
        bases = [one for one in ranked if one.name in self.plain]
        worthy = [one for one in ranked if not bases or self._is_worthy(one, bases)]
        if not worthy:
            return ranked
        excess, least = self._key(worthy[0])
        equal = [one for one in worthy if self._key(one) <= (excess, least * EQUAL)]
        first = min(equal, key=lambda one: (len(one.partition.subgraphs), self._rank(one)))
        return [first, *(one for one in ranked if one is not first)]

    def next_s(self, one: Judged) -> float:
        """Return the least seconds of others that are not faster than `one`, or infinity."""
        slower = (o.seconds for o in self.judged if o is not one and o.seconds >= one.seconds)
        return min(slower, default=inf)

    def candidates(self, chosen: Judged, passed: set[str]) -> tuple[Candidate, ...]:
        """Return the fastest partitions with notes on `chosen` and `passed`, which lack memory."""
        fastest = sorted(self.judged, key=lambda one: one.seconds)[:LISTED]
        return tuple(
            Candidate(
                one.name,
                one.seconds,
                len(one.partition.subgraphs),
                one.devices,
                self._note(one, chosen, passed),
            )
            for one in fastest
        )

    def why(self, one: Judged, passed: set[str]) -> str:
        text = f"{one.name}: {format_seconds(one.seconds)} predicted"
        alone = [other for other in self.judged if len(other.devices) == 1 and other is not one]
        splits = [other for other in self.judged if len(other.devices) > 1]
        if len(one.devices) == 1:
            if splits:
                best = min(splits, key=lambda other: other.seconds)
                return f"{text}; the best split found takes {format_seconds(best.seconds)}"
            return f"{text}; no split can be faster by the margin"
        if alone:
            best = min(alone, key=lambda other: other.seconds)
            text += f", {best.name} {format_seconds(best.seconds)}"
        return f"{text}; better ones lack memory: {len(passed)}" if passed else text

    def _is_worthy(self, one: Judged, bases: Sequence[Judged]) -> bool:
        """Return whether one is among the bases, or better than the first of them.

        Bases have as much as possible on one device.
        """
        return (
            one in bases
            or one.seconds <= bases[0].seconds * (1 - self._margin(one))
            or self._key(one)[0] < self._key(bases[0])[0]
        )

    def _margin(self, one: Judged) -> float:
        parts = len(one.partition.subgraphs)
        return self.problem.margin + self.problem.margin_each * max(0, parts - 2)

    def _rank(self, one: Judged) -> int:
        return sum(self.ranks[device] for device in one.partition.assignment.values())

    def _key(self, one: Judged) -> tuple[bool, float]:
        return self._overfills(one), one.seconds

    def _overfills(self, one: Judged) -> bool:
        """Return whether a memory is too small for `one`, even if items take turns."""
        assignment, capacity = self.assignments[one.name], self.problem.capacity
        if not self.problem.excess(assignment):
            return False
        held = capacity.constants_held(assignment)
        return all(
            any(
                way.needs.get(memory, 0) + held.get(memory, 0) > limit
                for memory, limit in capacity.limits.items()
            )
            for way in (one, *one.rivals)
        )

    def _is_within(self, one: Judged) -> bool:
        most = self.problem.max_subgraphs
        return most is None or len(one.partition.subgraphs) <= most

    def _note(self, other: Judged, chosen: Judged, passed: set[str]) -> str:
        if other is chosen:
            return ""
        if not self._is_within(other):
            return f"more than {self.problem.max_subgraphs} subgraphs"
        if other.name in passed:
            return "the memory that it would get slows it down, or does not suffice"
        if other.seconds < chosen.seconds:
            if self._key(other)[0]:
                return "seems to need more memory than there is"
            gain, margin = 1 - other.seconds / chosen.seconds, self._margin(other)
            parts = len(other.partition.subgraphs)
            return f"only {gain:.1%} faster; split in {parts} it must win by {margin:.0%}"
        if not chosen.seconds:
            return "no faster"
        return f"{other.seconds / chosen.seconds:.2f} times the time"
