"""Records of items: when each step was submitted, began and ended, and the timestamps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ..plans.placement import Outline
from ..plans.regions import Pool, Region
from .timestamps import Timestamps

UNKNOWN: Mapping[str, Pool] = {}


class Span(NamedTuple):
    """One step of one item: when it was submitted, began and ended, in ns."""

    step: Outline
    ready_ns: int
    started_ns: int
    ended_ns: int


class NodeTime(NamedTuple):
    """The time spent in one node, over all measured items."""

    name: str
    op: str
    device: str
    runs: int
    total_ns: int
    min_ns: int
    """The shortest run, which interruptions do not affect."""
    median_ns: int
    mad_ns: int
    """The median of the latest runs, and their median absolute deviation from it."""


class RowBatchFigures(NamedTuple):
    """Batches of rows that went through one graph."""

    batches: int = 0
    rows: int = 0
    """Batches that were started, and their rows, without rows that ran again alone."""
    waited_s: float = 0.0
    """Sum of the waits of rows for their batches."""
    dropped: int = 0
    """Rows that were dropped, since the queue was full."""


class PlanTimes(NamedTuple):
    steps: tuple[Outline, ...]
    times: Sequence[int]
    """For each step when it was submitted, began and ended, in ns; 0 if it was not."""
    pools: Mapping[str, Pool] = UNKNOWN
    """The memory of the plan; empty if it is not known."""

    def spans(self) -> Iterator[Span]:
        for step in self.steps:
            ready, started, ended = self.times[3 * step.index : 3 * step.index + 3]
            if ended:
                yield Span(step, ready, started, ended)

    def regions(self) -> Iterator[Region]:
        return (region for pool in self.pools.values() for region in pool.regions.values())


class Record(NamedTuple):
    """One item's times.

    Timestamps are of `time.perf_counter_ns`, or of the virtual clock that all devices share. The
    times of a step are of its device's clock.

    An item has several parts if shapes depend on values, or if there are loops.
    """

    parts: tuple[PlanTimes, ...]
    marks: Timestamps
    failed: bool

    @property
    def admitted_ns(self) -> int:
        return self.marks.admitted_ns

    @property
    def landed_ns(self) -> int:
        """The moment when the results were ready."""
        return self.marks.landed_ns

    @property
    def waited_for(self) -> set[str]:
        """The kinds of its waits: ``"partners"``, ``"planning"``, ``"binding"``."""
        return {kind for kind, _, _ in self.marks.preparing}

    def spans(self) -> Iterator[Span]:
        return (span for part in self.parts for span in part.spans())

    @property
    def n_steps(self) -> int:
        count = 0
        for part in self.parts:
            count += len(part.steps)
        return count


class RowBatch(NamedTuple):
    """A batch of rows that ran; times as those of items."""

    queue: str
    """Name of the queue of its rows."""
    rows: int
    first_ns: int
    started_ns: int
    ended_ns: int
    """When its first row came, when it was started and when it ended."""
    record: Record
    """Its steps in the plan for rows."""


@lru_cache(256)
def rename_steps(steps: tuple[Outline, ...], queue: str) -> tuple[Outline, ...]:
    return tuple(replace(step, name=f"{queue}/{step.name}") for step in steps)


class Order(NamedTuple):
    """The dependencies of a plan's steps."""

    waits: Sequence[Sequence[int]]
    """For each step those that must be complete before it."""
    claiming: frozenset[int]
    """The steps that wait until earlier items have released memory."""


class Orders:
    """Caches the orders of plans."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[PlanTimes, Order]] = {}  # a part keeps its plan's steps alive

    def of(self, part: PlanTimes) -> Order:
        known = self._known.get(id(part.steps))
        if known is None:
            waits: list[list[int]] = [[] for _ in part.steps]
            for step in part.steps:
                for later in step.dependents:
                    waits[later].append(step.index)
            claiming = frozenset(step for region in part.regions() for step in region.claims)
            known = self._known[id(part.steps)] = part, Order(waits, claiming)
        return known[1]
