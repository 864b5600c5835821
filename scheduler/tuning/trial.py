"""Trials: a plan that is run for what it really takes.

On a machine that others use as well, what they do only ever adds to a time, and comes and goes. So
trials take turns, each in a session of its own that has the machine to itself, and the turn that
was disturbed least counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeAlias

from ..costs import Costs
from ..plans.plan import Plan
from ..profile import Profile, Record
from ..runtime.session import Session

WARM_UP = 2
FEWEST, MOST = 5, 200
"""Items of a turn."""

TURN_S = 0.2
"""For how long a turn runs, about, if its items are not too few or too many."""


Items: TypeAlias = Sequence[Mapping[str, Any]]


class TimedTurn(NamedTuple):
    """One session's time with a plan.

    Attributes
    ----------
    latencies_s : tuple of float
        Of every item, the shortest first.
    wall_s : float
        From the first admission to the last landing.
    """

    latencies_s: tuple[float, ...]
    wall_s: float

    @property
    def median_s(self) -> float:
        """The median latency."""
        return self.latencies_s[len(self.latencies_s) // 2]

    @property
    def s_per_item(self) -> float:
        """Seconds from one result to the next."""
        return self.wall_s / len(self.latencies_s)


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan, and what it took in some turns.

    Attributes
    ----------
    name : str
        How the plan was come by.
    plan : Plan
    is_streamed : bool
        True where items were streamed, `Plan.in_flight` at a time, and not run one by one.
    is_priced : bool
        False where the devices have other options than when their nodes were measured.
    turns : tuple of TimedTurn
    profile : Profile or None
        Of the turn that was disturbed least.
    """

    name: str
    plan: Plan = field(repr=False)
    is_streamed: bool
    is_priced: bool = True
    turns: tuple[TimedTurn, ...] = field(default=(), repr=False)
    profile: Profile | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        """What counts: the median latency, or seconds per item, of the least disturbed turn."""
        return min(map(self._counts, self.turns), default=math.inf)

    def _counts(self, turn: TimedTurn) -> float:
        return turn.s_per_item if self.is_streamed else turn.median_s

    @property
    def best(self) -> TimedTurn:
        """The turn that was disturbed least."""
        return min(self.turns, key=self._counts)

    @property
    def items_per_s(self) -> float:
        """Items per second of that turn."""
        return 1 / self.best.s_per_item if self.best.wall_s else 0.0

    def latency_s(self, quantile: float) -> float:
        """Return a quantile of the latencies of that turn."""
        every = self.best.latencies_s
        return every[min(int(quantile * len(every)), len(every) - 1)]

    async def turned(self, feeds: Items) -> Trial:
        """Return the trial with one more turn."""
        profile = await run_items(self.plan, feeds, is_streamed=self.is_streamed)
        turn = _turn(profile.records)
        best = profile if self._counts(turn) < self.seconds else self.profile
        return replace(self, turns=(*self.turns, turn), profile=best)

    async def costs(self, feeds: Items) -> Costs:
        """Return what nodes, subgraphs and copies take, one item at a time."""
        wholes = None if self.is_streamed else self.profile
        if wholes is None:
            wholes = await run_items(self.plan, feeds, is_streamed=False)
        timed = await run_items(self.plan, feeds, is_streamed=False, measure=True)
        return Costs.from_profile(timed, self.plan, wholes)


async def run_items(
    plan: Plan, feeds: Items, *, is_streamed: bool, measure: bool = False
) -> Profile:
    """Return the profile of a session's items, without those that warm it up."""
    at_once = plan.in_flight if is_streamed else 1
    async with Session(plan, measure=measure) as session:
        await _run(session, feeds, WARM_UP * at_once, at_once)
        known = session.profile().records
        warm = _turn(known[-at_once:])
        seconds = warm.s_per_item if is_streamed else warm.median_s
        fewest = max(FEWEST, 2 * at_once)
        count = min(MOST, max(fewest, math.ceil(TURN_S / max(seconds, 1e-9))))
        await _run(session, feeds, count, at_once)
        profile = session.profile()
    return replace(profile, records=profile.records[-count:])


async def _run(session: Session, feeds: Items, count: int, at_once: int) -> None:
    if at_once == 1:
        for item in islice(cycle(feeds), count):
            await session.run(item)
        return
    await stream_items(session, feeds, count, at_once)


async def stream_items(session: Session, feeds: Items, count: int, in_flight: int) -> None:
    """Stream `count` items, in turns; raises the error of one that fails."""
    async with session.stream(islice(cycle(feeds), count), max_in_flight=in_flight) as results:
        async for item in results:
            _ = item.outputs  # a failure is raised here


def _turn(records: Sequence[Record]) -> TimedTurn:
    latencies = sorted(record.landed_ns - record.admitted_ns for record in records)
    first = min(record.admitted_ns for record in records)
    wall = max(record.landed_ns for record in records) - first
    return TimedTurn(tuple(latency / 1e9 for latency in latencies), wall / 1e9)
