"""How much devices of the host disturb each other when they run a model at the same time.

Cores share caches, memory and, on some machines, what computes. How much that costs depends on the
kernels, and on a machine that is shared it changes by the minute. So a model's own kernels are run
by each device alone and then by all at once, in turns, and each round is compared with itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from math import ceil

import trio

from ..devices.device import Device
from ..graph.tensor import Array
from .errors import PlanError
from .make_plan import plan
from .planning import Plan
from .profile import Record
from .session import Session

ROUNDS = 7
ROUND_S = 0.04
"""For how long each device computes in a round, about."""

MOST_ITEMS = 64


class Disturbance:
    """Rounds of streams on several devices; each holds a session of its own.

    Parameters
    ----------
    sessions : sequence of Session
        Open; the same model on one device each.
    feeds : Mapping of str to Array

    Attributes
    ----------
    shares : list of float
        For each round by what share the same work took longer when all devices were busy.
    """

    def __init__(self, sessions: Sequence[Session], feeds: Mapping[str, Array]) -> None:
        self.shares: list[float] = []
        self._sessions, self._feeds = sessions, feeds
        self._items = 1

    async def warm_up(self) -> None:
        """Run an item on each, and see how many make up a round."""
        for session in self._sessions:
            await self._busy_ns(session)
        ns = max([await self._busy_ns(session) for session in self._sessions])
        self._items = min(MOST_ITEMS, ceil(ROUND_S * 1e9 / max(ns, 1)))

    async def round(self) -> None:
        """Run the same items on each device alone, then on all at once."""
        alone = [await self._busy_ns(session) for session in self._sessions]
        together = [0] * len(self._sessions)

        async def run(index: int) -> None:
            together[index] = await self._busy_ns(self._sessions[index])

        async with trio.open_nursery() as nursery:
            for index in range(len(self._sessions)):
                nursery.start_soon(run, index)
        ratios = [after / before for before, after in zip(alone, together, strict=True)]
        self.shares.append(statistics.fmean(ratios) - 1)

    def contention(self) -> float:
        """Return the share that each busy device adds to the time of another one."""
        others = len(self._sessions) - 1
        return max(0.0, statistics.median(self.shares)) / others

    async def _busy_ns(self, session: Session) -> int:
        """Return how long the device worked, whatever passed in between."""
        before = len(session.profile().records)
        items = [self._feeds] * self._items
        async with session.stream(items, max_in_flight=1) as results:
            async for item in results:
                _ = item.outputs
        return sum(map(_worked_ns, session.profile().records[before:]))


def contention(planned: Plan, devices: Sequence[str | Device], feeds: Mapping[str, Array]) -> float:
    """Return by what share a model's kernels take longer for each other device that is busy.

    0 where a device cannot run the whole model.

    Raises
    ------
    KernelError, DeviceError
        If the model fails, or a device does.
    """
    try:
        each = [plan(planned.whole, [device], passes=()) for device in devices]
    except PlanError:
        return 0.0

    async def run() -> float:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(Session(one)) for one in each]
            found = Disturbance(sessions, feeds)
            await found.warm_up()
            for _ in range(ROUNDS):
                await found.round()
            return found.contention()

    return trio.run(run)


def _worked_ns(record: Record) -> int:
    return sum(span.ended_ns - span.started_ns for span in record.spans())
