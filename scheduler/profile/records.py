"""Records of items: when each step was submitted, began and ended, and the timestamps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """The time spent in one node, over all measured items.

    Attributes
    ----------
    name, op, device : str
    runs : int
    total_ns : int
    min_ns : int
        The shortest run: what interrupts a node, or keeps it waiting, makes means longer, not this.
    median_ns, mad_ns : int
        The median of the latest runs, and their median absolute deviation from it.
    """

    name: str
    op: str
    device: str
    runs: int
    total_ns: int
    min_ns: int
    median_ns: int
    mad_ns: int


class RowBatchFigures(NamedTuple):
    """Batches of rows that went through one graph.

    Attributes
    ----------
    batches, rows : int
        Batches that were started, and the rows in them; not those that ran again alone.
    waited_s : float
        How long the rows waited for their batches, in seconds, all of them together.
    dropped : int
        Rows that ran in no batch, as more waited than are kept.
    """

    batches: int = 0
    rows: int = 0
    waited_s: float = 0.0
    dropped: int = 0


class PlanTimes(NamedTuple):
    """What ran of one plan: for each step when it was submitted, began and ended.

    Attributes
    ----------
    steps : tuple of Outline
    times : sequence of int
        Three for each step, in ns; 0 for what has not happened.
    pools : Mapping of str to Pool
        The memory that its plan gave it; empty if that is not known.
    """

    steps: tuple[Outline, ...]
    times: Sequence[int]
    pools: Mapping[str, Pool] = UNKNOWN

    def spans(self) -> Iterator[Span]:
        """Yield the steps that ran."""
        for step in self.steps:
            ready, started, ended = self.times[3 * step.index : 3 * step.index + 3]
            if ended:
                yield Span(step, ready, started, ended)

    def regions(self) -> Iterator[Region]:
        """Yield what it had of all memories."""
        return (region for pool in self.pools.values() for region in pool.regions.values())


class Record(NamedTuple):
    """One item's times.

    They are those of the `time.perf_counter_ns` clock; where all devices are simulated on one
    virtual clock, of that clock. The times of a step are always those of its device's clock.

    It has several parts where shapes depend on values, or there are loops.
    """

    parts: tuple[PlanTimes, ...]
    marks: Timestamps
    failed: bool

    @property
    def admitted_ns(self) -> int:
        """When it got a slot."""
        return self.marks.admitted_ns

    @property
    def landed_ns(self) -> int:
        """When its results were there."""
        return self.marks.landed_ns

    @property
    def waited_for(self) -> set[str]:
        """What its marks say that it waited for: ``"partners"``, ``"planning"``, ``"binding"``."""
        return {kind for kind, _, _ in self.marks.preparing}

    def spans(self) -> Iterator[Span]:
        """Yield the steps that ran."""
        return (span for part in self.parts for span in part.spans())

    @property
    def n_steps(self) -> int:
        """How many steps its plans have."""
        count = 0
        for part in self.parts:
            count += len(part.steps)
        return count


class RowBatch(NamedTuple):
    """A batch of rows that ran; times as those of items.

    Attributes
    ----------
    queue : str
        That its rows waited in.
    rows : int
    first_ns, started_ns, ended_ns : int
        When the row came that waited longest, and when the batch was put together and ended.
    record : Record
        Its steps, by the plan for the rows.
    """

    queue: str
    rows: int
    first_ns: int
    started_ns: int
    ended_ns: int
    record: Record


class Order(NamedTuple):
    """What the steps of a plan wait for.

    Attributes
    ----------
    waits : sequence of sequences of int
        For every step those that must be complete before.
    claiming : frozenset of int
        The steps that wait until earlier items have released memory.
    """

    waits: Sequence[Sequence[int]]
    claiming: frozenset[int]


class Orders:
    """The orders of plans, each found once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[PlanTimes, Order]] = {}  # a part keeps its plan's steps alive

    def of(self, part: PlanTimes) -> Order:
        """Return what the steps of a part's plan wait for."""
        known = self._known.get(id(part.steps))
        if known is None:
            waits: list[list[int]] = [[] for _ in part.steps]
            for step in part.steps:
                for later in step.dependents:
                    waits[later].append(step.index)
            claiming = frozenset(step for region in part.regions() for step in region.claims)
            known = self._known[id(part.steps)] = part, Order(waits, claiming)
        return known[1]
