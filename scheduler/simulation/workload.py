"""The simulated workload: steps on lanes, the host that lanes share, and the resulting times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..dispatch.item_order import UNORDERED, Ordered
from ..dispatch.ready import rank_steps
from ..plans.regions import Region

NEVER = -1

NO_LIMIT = 1 << 30
"""Concurrent calls of an async function without a limit of its own."""

FOREVER_S = 1e12
"""Upper limit of durations: models may predict times beyond any clock."""


def to_ns(seconds: float) -> int:
    return round(min(seconds, FOREVER_S) * 1e9)


@dataclass(frozen=True, slots=True)
class SimulatedLane:
    """An in-order queue of a device; runs one step at a time, unless it awaits."""

    name: str
    device: str
    keeps_order: bool = False
    """Whether it takes work that still waits for other work of its device (`native_waits`)."""
    depth: int = 1
    """Submitted steps at a time; the others wait where the scheduler may choose."""
    on_host: bool = False
    """Whether its work occupies one of the host's cores."""
    wake_s: float = 0.0
    """From a submission by another thread until an idle lane starts."""
    gap_s: float = 0.0
    """Between two steps."""
    report_s: float = 0.0
    """From the end of work until the scheduler knows."""
    loop_s: float = 0.0
    """From then until the scheduler's loop knows, without its wake-up."""
    shares_interpreter: bool = False
    """Whether a Python thread of the loop's process calls its kernels one by one: the next one
    waits while the loop works."""
    wake_after_s: Mapping[str, float] = field(default_factory=dict)
    """Replaces `wake_s` for submissions caused by ends on these devices."""
    notice_s: float = 0.0
    """Work of a thread of the loop's process per end."""
    here_s: float = 0.0
    """Until a quick step starts on the thread that made it ready, if the lane is idle."""
    follows: frozenset[str] = frozenset()
    """Other devices with work that it may wait for, if these keep order too."""
    awaits: bool = False
    """Whether it stands for calls of an async function: concurrent, and on the loop, which stays
    free."""

    def takes_behind(self, other: SimulatedLane) -> bool:
        # It must see the other's events: those of its device, or of one that it copies from.
        near = other.device == self.device or other.device in self.follows
        return near and self.keeps_order and other.keeps_order

    def woken_by_s(self, device: str | None) -> float:
        """Return the delay of a start after an end on a device, or after feeding if None."""
        return self.wake_after_s.get(device or "", self.wake_s)


class Placed(NamedTuple):
    """Lanes and durations, alone on the machine, of an item's steps."""

    lane: Sequence[int]
    duration_s: Sequence[float]


class RowCall(NamedTuple):
    """Rows that a step hands to batches, which it waits for."""

    queue: str
    rows: int
    max_delay_s: float
    """How long the first row of a batch waits for others."""


class DispatchOrder(NamedTuple):
    """The order of steps that is known before anything runs."""

    counts: Sequence[int]
    """Number of predecessors to wait for."""
    after: Sequence[Sequence[int]]
    """Steps to count down at completion, by rank."""
    behind: Sequence[Sequence[int]]
    """Steps to count down at submission, by rank."""
    ahead: Sequence[Sequence[int]]
    """Steps that the device itself waits for."""
    first: Sequence[int]
    """Steps without waits, by rank."""
    rank: Sequence[int]
    """Priority of an item's steps, see `rank_steps`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The steps of one item, in a topological order."""

    lanes: Sequence[SimulatedLane]
    lane: Sequence[int]
    """Index of each step's lane."""
    duration_s: Sequence[float]
    """Duration of each step, alone on the machine."""
    waits: Sequence[Sequence[int]]
    """Steps that must be complete before each step."""
    effects: Sequence[int] = ()
    """Steps with side effects in ascending order: each has a lower rank than the next."""
    inline: Collection[int] = ()
    """Steps that may run outside of their lane's thread, if they are quick."""
    others: Sequence[Placed] = ()
    """These steps on replicas; the choice is made at admission."""
    calls: Mapping[int, RowCall] = field(default_factory=dict)
    """Steps that wait for batches of rows."""
    ordered: Ordered = UNORDERED
    """Steps that wait for earlier items, and steps that release later ones."""

    @property
    def variants(self) -> tuple[Placed, ...]:
        """All sets of lanes that an item may run on, the planned one first."""
        return Placed(self.lane, self.duration_s), *self.others

    def order(self) -> DispatchOrder:
        rank = self._ranks()
        after: list[list[int]] = [[] for _ in self.waits]
        behind: list[list[int]] = [[] for _ in self.waits]
        ahead: list[list[int]] = [[] for _ in self.waits]
        first = []
        for step in sorted(range(len(rank)), key=rank.__getitem__):
            waits = self.waits[step]
            own = self.lanes[self.lane[step]]
            for wait in waits:
                chained = own.takes_behind(self.lanes[self.lane[wait]])
                # If the device keeps the order, a step may follow as soon as its predecessor is
                # queued.
                (behind if chained else after)[wait].append(step)
                if chained:
                    ahead[step].append(wait)
            if not waits:
                first.append(step)
        return DispatchOrder(
            [len(waits) for waits in self.waits], after, behind, ahead, first, rank
        )

    def _ranks(self) -> list[int]:
        waits = [*self.waits]
        # Effects keep the graph's order. Ranks have to agree, or a lane would wait for a step
        # queued after it.
        for earlier, later in pairwise(self.effects):
            waits[later] = (*waits[later], earlier)
        return rank_steps(self.duration_s, waits)


@dataclass(frozen=True, slots=True)
class RowWork:
    size: int
    """Most rows per batch."""
    in_flight: int
    """Most concurrent batches."""
    full: Workload
    """The steps of a full batch, on the items' lanes."""
    at: Callable[[int], Workload]
    """Returns these steps for a number of rows."""
    regions: Sequence[Region]


@dataclass(slots=True)
class SimulatedBatch:
    """A batch of rows, with the arrival of its first row and its start."""

    queue: str
    rows: int
    first_ns: int
    started_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """Resources that steps and scheduler share on the host; free by default.

    Lanes that compute slow down when there are more of them than `cores` (None: unlimited). Each
    other busy core adds the share `contention`, for caches and memory. The loop is busy for
    `feed_s` writing an item's inputs and for `land_s` copying its results; `feed_delay_s` and
    `land_delay_s` are delays without the loop, for wake-ups and copying threads. `land_here_s`
    replaces `land_delay_s` if the loop ran the last step itself.
    """

    cores: int | None = None
    contention: float = 0.0
    feed_s: float = 0.0
    land_s: float = 0.0
    feed_delay_s: float = 0.0
    land_delay_s: float = 0.0
    land_here_s: float = 0.0

    def rate(self, active: int) -> float:
        """Return the speed of each of `active` lanes, relative to a single one."""
        busy = active if self.cores is None else min(active, self.cores)
        # Active lanes share cores evenly, and each busy core slows down the others.
        return min(1.0, busy / active) / (1.0 + self.contention * (busy - 1)) if active else 1.0


@dataclass(slots=True)
class Timeline:
    """Times of all steps of all items, in ns from the beginning.

    Step s of item i is entry `i * n_steps + s`; `NEVER` marks events that did not happen. Batches
    of rows follow the items in all lists, see `base`.
    """

    n_steps: int
    items: int
    ready: list[int] = field(init=False)
    started: list[int] = field(init=False)
    ended: list[int] = field(init=False)
    lane: list[int] = field(init=False)
    bound: list[int] = field(init=False)
    """The entry that each start waited for last: an input, its lane's previous step, or one that
    released memory; `NEVER` for the admission."""
    admitted: list[int] = field(init=False)
    landed: list[int] = field(init=False)
    admitted_by: list[int] = field(init=False)
    """The entry whose end admitted an item, `NEVER` without a wait."""
    finished_by: list[int] = field(init=False)
    """The entry of each item that ended last."""
    variant: list[int] = field(init=False)
    slot: list[int] = field(init=False)
    batches: list[SimulatedBatch] = field(default_factory=list)
    """In the order in which they were formed."""
    _bases: list[int] = field(default_factory=list)
    _owners: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("ready", "started", "ended", "lane", "bound"):
            setattr(self, name, [NEVER] * (self.n_steps * self.items))
        for name in ("admitted", "landed", "admitted_by", "finished_by", "variant", "slot"):
            setattr(self, name, [NEVER] * self.items)

    def add(self, batch: SimulatedBatch, n_steps: int) -> int:
        """Add entries for a batch of `n_steps`; return its number, which follows the items'."""
        owner = self.items + len(self.batches)
        self.batches.append(batch)
        self._bases.append(len(self.ready))
        self._owners += [owner] * n_steps
        for times in (self.ready, self.started, self.ended, self.lane, self.bound):
            times += [NEVER] * n_steps
        for marks in (self.admitted, self.landed, self.admitted_by, self.finished_by):
            marks.append(NEVER)
        self.variant.append(NEVER)
        self.slot.append(NEVER)
        return owner

    def base(self, owner: int) -> int:
        """Return the first entry of `owner`, an item or batch."""
        if owner < self.items:
            return owner * self.n_steps
        return self._bases[owner - self.items]

    def place(self, entry: int) -> tuple[int, int]:
        behind = entry - self.items * self.n_steps
        if behind < 0:
            return divmod(entry, self.n_steps)
        owner = self._owners[behind]
        return owner, entry - self._bases[owner - self.items]

    @property
    def makespan_s(self) -> float:
        """Seconds from the first admission to the last landing."""
        return (max(self.landed) - min(self.admitted)) / 1e9 if self.items else 0.0
