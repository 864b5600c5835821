"""Trials: plans that are run and timed.

Other load on the machine can only lengthen a run, and it varies. So trials alternate, each turn in
a session of its own while no other one is open, and the shortest turn counts.
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
"""Approximate duration of a turn, within the limits of its items."""


Items: TypeAlias = Sequence[Mapping[str, Any]]


class TimedTurn(NamedTuple):
    latencies_s: tuple[float, ...]
    """Sorted."""
    wall_s: float
    """From the first admission to the last landing."""

    @property
    def median_s(self) -> float:
        return self.latencies_s[len(self.latencies_s) // 2]

    @property
    def s_per_item(self) -> float:
        """Seconds from one result to the next."""
        return self.wall_s / len(self.latencies_s)


@dataclass(frozen=True, eq=False)
class Trial:
    """A plan and the times of its turns."""

    name: str
    """Describes the plan in tables, such as "all on cpu"."""
    plan: Plan = field(repr=False)
    is_streamed: bool
    """True if items are streamed, `Plan.in_flight` at a time; False if they run one by one."""
    is_priced: bool = True
    """False if the devices have other options than when their nodes were measured."""
    turns: tuple[TimedTurn, ...] = field(default=(), repr=False)
    profile: Profile | None = field(default=None, repr=False)
    """Profile of the best turn."""

    @property
    def seconds(self) -> float:
        """The median latency, or for streams the seconds per item, of the best turn."""
        return min(map(self._score, self.turns), default=math.inf)

    def _score(self, turn: TimedTurn) -> float:
        return turn.s_per_item if self.is_streamed else turn.median_s

    @property
    def best(self) -> TimedTurn:
        return min(self.turns, key=self._score)

    @property
    def items_per_s(self) -> float:
        return 1 / self.best.s_per_item if self.best.wall_s else 0.0

    def latency_s(self, quantile: float) -> float:
        every = self.best.latencies_s
        return every[min(int(quantile * len(every)), len(every) - 1)]

    async def run_turn(self, feeds: Items) -> Trial:
        profile = await run_items(self.plan, feeds, is_streamed=self.is_streamed)
        turn = _measure_turn(profile.records)
        best = profile if self._score(turn) < self.seconds else self.profile
        return replace(self, turns=(*self.turns, turn), profile=best)

    async def measure_costs(self, feeds: Items) -> Costs:
        """Measure nodes, subgraphs and copies while `feeds` run one at a time."""
        wholes = None if self.is_streamed else self.profile
        if wholes is None:
            wholes = await run_items(self.plan, feeds, is_streamed=False)
        timed = await run_items(self.plan, feeds, is_streamed=False, measure=True)
        return Costs.from_profile(timed, self.plan, wholes)


async def run_items(
    plan: Plan, feeds: Items, *, is_streamed: bool, measure: bool = False
) -> Profile:
    """Run `feeds` in a session for `plan`, and return the profile of items after the warm-up.

    Items overlap with `is_streamed`. With `measure`, nodes are timed.
    """
    in_flight = plan.in_flight if is_streamed else 1
    async with Session(plan, measure=measure) as session:
        await _run(session, feeds, WARM_UP * in_flight, in_flight)
        known = session.profile().records
        warm = _measure_turn(known[-in_flight:])
        seconds = warm.s_per_item if is_streamed else warm.median_s
        fewest = max(FEWEST, 2 * in_flight)
        count = min(MOST, max(fewest, math.ceil(TURN_S / max(seconds, 1e-9))))
        await _run(session, feeds, count, in_flight)
        profile = session.profile()
    return replace(profile, records=profile.records[-count:])


async def _run(session: Session, feeds: Items, count: int, in_flight: int) -> None:
    if in_flight == 1:
        for item in islice(cycle(feeds), count):
            await session.run(item)
        return
    await stream_items(session, feeds, count, in_flight)


async def stream_items(session: Session, feeds: Items, count: int, in_flight: int) -> None:
    async with session.stream(islice(cycle(feeds), count), max_in_flight=in_flight) as results:
        async for item in results:
            _ = item.outputs  # raises the error of a failed item


def _measure_turn(records: Sequence[Record]) -> TimedTurn:
    latencies = sorted(record.landed_ns - record.admitted_ns for record in records)
    first = min(record.admitted_ns for record in records)
    wall = max(record.landed_ns for record in records) - first
    return TimedTurn(tuple(latency / 1e9 for latency in latencies), wall / 1e9)
