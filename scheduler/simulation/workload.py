"""The simulated workload: steps on lanes, the host that they share, and the times that follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..dispatch.item_order import UNORDERED, Ordered
from ..dispatch.ready import ranks
from ..plans.regions import Region

NEVER = -1

NO_LIMIT = 1 << 30
"""So many calls of an async function may be under way if nobody limits them."""

FOREVER_S = 1e12
"""Anything that takes longer takes that long: models may say what no clock can count."""


def ns_of(seconds: float) -> int:
    """Return a time in nanoseconds."""
    return round(min(seconds, FOREVER_S) * 1e9)


@dataclass(frozen=True, slots=True)
class SimulatedLane:
    """An in-order queue of a device; it does one thing at a time, unless it awaits.

    Attributes
    ----------
    name : str
    device : str
    keeps_order : bool
        True when it takes work that still waits for other work of its device (`native_waits`).
    follows : frozenset of str
        Other devices whose work it may still wait for, too, where these keep order as well.
    depth : int
        How much work it is given at a time; the rest waits where the scheduler may choose.
    on_host : bool
        True when its work keeps one of the host's cores busy.
    wake_s : float
        From a submission by another thread until an idle lane begins.
    wake_after_s : Mapping of str to float
        The same where it was the end of work on one of these devices that led to the submission.
    gap_s : float
        Between two pieces of work.
    report_s : float
        From the end of work until the scheduler knows.
    loop_s : float
        From then until the scheduler's loop does, besides what it takes to wake up.
    shares_interpreter : bool
        True when its kernels are called one by one by a Python thread of the loop's process: while
        the loop works, the next one waits.
    notice_s : float
        How long a thread of the loop's process is busy with taking note of an end.
    here_s : float
        Until a quick step begins that the thread which made it ready runs itself, if the lane is
        idle.
    awaits : bool
        True when it is no queue but the calls of an async function: all that it is given goes on at
        once, on the loop, and keeps nothing busy.
    """

    name: str
    device: str
    keeps_order: bool = False
    depth: int = 1
    on_host: bool = False
    wake_s: float = 0.0
    gap_s: float = 0.0
    report_s: float = 0.0
    loop_s: float = 0.0
    shares_interpreter: bool = False
    wake_after_s: Mapping[str, float] = field(default_factory=dict)
    notice_s: float = 0.0
    here_s: float = 0.0
    follows: frozenset[str] = frozenset()
    awaits: bool = False

    def takes_behind(self, other: SimulatedLane) -> bool:
        """True when it takes work that waits for work which another lane was given."""
        # It has to know the other's events: its own device's, or those of a device that it copies
        # from.
        near = other.device == self.device or other.device in self.follows
        return near and self.keeps_order and other.keeps_order

    def woken_by_s(self, device: str | None) -> float:
        """Return the seconds until it begins after work of a device ended, or an item was fed."""
        return self.wake_after_s.get(device or "", self.wake_s)


class Placed(NamedTuple):
    """Where the steps of an item run, and for how long.

    Attributes
    ----------
    lane : sequence of int
        For every step the index of its lane.
    duration_s : sequence of float
        For every step how long it takes, alone on the machine.
    """

    lane: Sequence[int]
    duration_s: Sequence[float]


class RowCall(NamedTuple):
    """What a step hands to batches, which it waits for.

    Attributes
    ----------
    queue : str
        Where the rows wait.
    rows : int
    max_delay_s : float
        How long a batch waits for others behind the first of them.
    """

    queue: str
    rows: int
    max_delay_s: float


class DispatchOrder(NamedTuple):
    """What is known of every step before anything runs.

    Attributes
    ----------
    counts : sequence of int
        How many it waits for.
    after, behind : sequence of sequences of int
        Those to count down when it is complete, and when its lane is given it; by rank.
    ahead : sequence of sequences of int
        Those that its device lets it wait for.
    first : sequence of int
        The steps that wait for nothing, by rank.
    rank : sequence of int
        Which steps of an item go first, see `ranks`.
    """

    counts: Sequence[int]
    after: Sequence[Sequence[int]]
    behind: Sequence[Sequence[int]]
    ahead: Sequence[Sequence[int]]
    first: Sequence[int]
    rank: Sequence[int]


@dataclass(frozen=True, slots=True)
class Workload:
    """The steps of one item, in a topological order.

    Attributes
    ----------
    lanes : sequence of SimulatedLane
    lane : sequence of int
        For every step the index of its lane.
    duration_s : sequence of float
        For every step how long it takes, alone on the machine.
    waits : sequence of sequences of int
        For every step those that must be complete before.
    effects : sequence of int
        The steps that do more than their results tell, in ascending order: each has a lower rank
        than the next.
    inline : collection of int
        The steps that need not run on their lane's own thread, if they are quick.
    others : sequence of Placed
        The same steps on replicas of their devices, where there are some; which of them an item
        goes to is decided when it is admitted.
    calls : Mapping of int to RowCall
        The steps that wait for batches of rows.
    ordered : Ordered
        The steps that wait for earlier items, and those that let later ones go on.
    """

    lanes: Sequence[SimulatedLane]
    lane: Sequence[int]
    duration_s: Sequence[float]
    waits: Sequence[Sequence[int]]
    effects: Sequence[int] = ()
    inline: Collection[int] = ()
    others: Sequence[Placed] = ()
    calls: Mapping[int, RowCall] = field(default_factory=dict)
    ordered: Ordered = UNORDERED

    @property
    def variants(self) -> tuple[Placed, ...]:
        """All sets of lanes that an item may run on, the first one first."""
        # The first is the one that was planned for.
        return Placed(self.lane, self.duration_s), *self.others

    def order(self) -> DispatchOrder:
        """Return what follows what, as the scheduler and its lanes keep it."""
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
                # Where the device keeps the order, a step may follow as soon as the one before is
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
        # Effects come in the order of the graph whatever goes first else; ranks must not say
        # otherwise, or a lane would wait for what stands behind it.
        for earlier, later in pairwise(self.effects):
            waits[later] = (*waits[later], earlier)
        return ranks(self.duration_s, waits)


@dataclass(frozen=True, slots=True)
class RowWork:
    """How the rows of one queue run: in batches, each of which has steps of its own.

    Attributes
    ----------
    size : int
        The most rows of a batch.
    in_flight : int
        How many batches are under way at a time.
    full : Workload
        The steps of a full batch; its lanes are those of the items, all of them.
    at : callable
        Returns the same steps for so many rows.
    regions : sequence of Region
    """

    size: int
    in_flight: int
    full: Workload
    at: Callable[[int], Workload]
    regions: Sequence[Region]


@dataclass(slots=True)
class SimulatedBatch:
    """A batch of rows: which queue's, how many, when the first of them came and when it began."""

    queue: str
    rows: int
    first_ns: int
    started_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """What the steps and the scheduler share on the host; nothing costs anything by default.

    Attributes
    ----------
    cores : int or None
        When more lanes compute on the host than it has cores, all of them slow down; None for as
        many as it takes.
    contention : float
        By what share work on the host takes longer for each other core that is busy: cores share
        caches and memory.
    feed_s, land_s : float
        How long the scheduler's loop is busy with writing an item's inputs, with copying out its
        results.
    feed_delay_s, land_delay_s : float
        What passes besides without keeping the loop busy: the loop wakes up, a thread copies.
    land_here_s : float
        In place of `land_delay_s` where the loop itself ran the last step, and is awake.
    """

    cores: int | None = None
    contention: float = 0.0
    feed_s: float = 0.0
    land_s: float = 0.0
    feed_delay_s: float = 0.0
    land_delay_s: float = 0.0
    land_here_s: float = 0.0

    def rate(self, active: int) -> float:
        """Return how fast each of some lanes computes, as a share of one that is alone."""
        busy = active if self.cores is None else min(active, self.cores)
        # Cores are shared evenly by those that are active, and each that is busy slows down the
        # others.
        return min(1.0, busy / active) / (1.0 + self.contention * (busy - 1)) if active else 1.0


@dataclass(slots=True)
class Timeline:
    """When every step of every item was submitted, began and ended, in ns from the beginning.

    Step s of item i stands at `i * n_steps + s`; `NEVER` where something did not happen. Batches of
    rows follow the items, in all lists: where their steps are says `base`.

    Attributes
    ----------
    n_steps, items : int
    ready, started, ended : list of int
    lane : list of int
        Of each step.
    bound : list of int
        What the start of each step waited for last: another entry that ended (a step it depends
        on, one before it on its lane, one that released memory), or `NEVER` for the admission.
    admitted, landed : list of int
        Of each item: fed from then on; results known.
    admitted_by : list of int
        The entry whose end let an item in, `NEVER` for those that did not wait.
    finished_by : list of int
        The entry that ended last, of each item.
    variant, slot : list of int
        On which replicas each item was, and on which slot there.
    batches : list of SimulatedBatch
        In the order in which they were put together.
    """

    n_steps: int
    items: int
    ready: list[int] = field(init=False)
    started: list[int] = field(init=False)
    ended: list[int] = field(init=False)
    lane: list[int] = field(init=False)
    bound: list[int] = field(init=False)
    admitted: list[int] = field(init=False)
    landed: list[int] = field(init=False)
    admitted_by: list[int] = field(init=False)
    finished_by: list[int] = field(init=False)
    variant: list[int] = field(init=False)
    slot: list[int] = field(init=False)
    batches: list[SimulatedBatch] = field(default_factory=list)
    _bases: list[int] = field(default_factory=list)
    _owners: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("ready", "started", "ended", "lane", "bound"):
            setattr(self, name, [NEVER] * (self.n_steps * self.items))
        for name in ("admitted", "landed", "admitted_by", "finished_by", "variant", "slot"):
            setattr(self, name, [NEVER] * self.items)

    def add(self, batch: SimulatedBatch, n_steps: int) -> int:
        """Make room for a batch of so many steps, and return its number behind the items."""
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
        """Return where the steps of an item or a batch begin."""
        if owner < self.items:
            return owner * self.n_steps
        return self._bases[owner - self.items]

    def place(self, entry: int) -> tuple[int, int]:
        """Return whose step an entry is, and which."""
        behind = entry - self.items * self.n_steps
        if behind < 0:
            return divmod(entry, self.n_steps)
        owner = self._owners[behind]
        return owner, entry - self._bases[owner - self.items]

    @property
    def makespan_s(self) -> float:
        """Seconds from the first admission to the last landing."""
        return (max(self.landed) - min(self.admitted)) / 1e9 if self.items else 0.0
