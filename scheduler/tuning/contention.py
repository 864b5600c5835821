"""Contention among devices of the host that run a model at the same time.

Cores share caches, memory and, on some machines, what computes. How much that costs depends on the
kernels. So a model's own kernels, from its beginning on, are run by each device alone and then by
all at once, in turns. Whoever else is busy on the machine only adds to what a round takes; so
rounds are short enough to fit between two moments at which the system gives a core to somebody
else, and the shortest of many count, if several agree. No more devices are busy at once than there
are cores: what they lose by sharing these follows from their number.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import accumulate
from time import perf_counter_ns
from typing import TypeAlias

import trio

from ...devices.device import Device
from ...devices.errors import DeviceError
from ...devices.host import core_count
from ...devices.registry import device as make_device
from ...graph.ir import Graph
from ...graph.tensor import Array
from ..costs.measure import LIMIT_S, MOST_REPEATS, REPEATS, UNDISTURBED_S, Clock, agreed
from ..dispatch.core_shares import equal_cores
from ..errors import PlanError
from ..planner.api import plan
from ..plans.plan import Plan
from ..profile import Record
from ..runtime.session import Session
from .trial import stream_items

WARM_UP, MOST_ITEMS = 8, 64
ROUND_S = UNDISTURBED_S / 2
"""For how long each device computes in a round, about."""

Work: TypeAlias = Callable[[int], Awaitable[int]]
"""Runs so many items on a device, and returns for how many ns it worked."""


class Disturbance:
    """Rounds of the same work on several devices.

    Parameters
    ----------
    works : sequence of Work
        Of one device each; no more than there are cores.

    Attributes
    ----------
    alone : list of list of float
        For each device, by rounds, how long it worked on an item when all others were idle.
    together : list of list of float
        The same when all were busy.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self.alone: list[list[float]] = [[] for _ in works]
        self.together: list[list[float]] = [[] for _ in works]
        self._works = works
        self._items = [1] * len(works)

    async def warm_up(self) -> float:
        """Run some items on each, and see how many make up a round, which is as long for all.

        Return for how many seconds each device works in one.
        """
        runs = [[await work(1) for work in self._works] for _ in range(WARM_UP)]
        each = [max(1, min(spent)) for spent in zip(*runs, strict=True)]
        longest: float = max(ROUND_S * 1e9, *each)
        self._items = [max(1, min(MOST_ITEMS, round(longest / ns))) for ns in each]
        return longest / 1e9

    async def round(self) -> None:
        """Run the same items on each device alone, then on all at once."""
        for index in range(len(self._works)):
            await self._run(index, self.alone)

        async with trio.open_nursery() as nursery:
            for index in range(len(self._works)):
                nursery.start_soon(self._run, index, self.together)

    def contention(self) -> float | None:
        """Return the share that each busy device adds to the time of another one.

        None where too few rounds were about as short as the shortest, or all at once took no less
        than one after the other: that is how long cores that others had were waited for.
        """
        alone = [agreed(rounds) for rounds in self.alone]
        known = [ns for ns in alone if ns is not None]
        if len(known) < len(alone):
            return None
        rounds = zip(*self.together, strict=True)
        ratio = agreed(
            statistics.fmean(after / before for before, after in zip(known, ns, strict=True))
            for ns in rounds
        )
        if ratio is None or ratio >= len(alone):
            return None
        return max(0.0, ratio - 1) / (len(alone) - 1)

    async def _run(self, index: int, rounds: list[list[float]]) -> None:
        count = self._items[index]
        rounds[index].append(await self._works[index](count) / count)


async def measure_contention(works: Sequence[Work], clock: Clock = perf_counter_ns) -> float | None:
    """Return the share that each busy device adds to the time of another one.

    None where that cannot be told.
    """
    found = Disturbance(works)
    if await found.warm_up() > UNDISTURBED_S:
        return None
    started = clock()
    for turn in range(MOST_REPEATS):
        is_late = clock() - started > LIMIT_S * 1e9
        if turn >= REPEATS and (is_late or found.contention() is not None):
            break
        await found.round()
    return found.contention()


def contention(
    planned: Plan, devices: Sequence[str | Device], feeds: Mapping[str, Array]
) -> float | None:
    """Return by what share a model's kernels take longer for each other device that is busy.

    None where that cannot be told: a device cannot run the model, its first kernels take too long,
    or the machine was so busy that no rounds were alike.

    Raises
    ------
    KernelError, DeviceError
        If the model fails, or a device does.
    """
    at_once = devices[: core_count()]
    if len(at_once) < 2:
        return 0.0
    graph = beginning(planned)
    feeds = {name: feeds[name] for name in graph.inputs}
    try:
        each = [plan(graph, [_sharing(one, len(at_once))], passes=()) for one in at_once]
    except PlanError:
        return None

    async def run() -> float | None:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(Session(one)) for one in each]
            return await measure_contention([partial(work, one, feeds) for one in sessions])

    return trio.run(run)


def _sharing(device: str | Device, count: int) -> str | Device:
    """Return a device with the share of the cores that it has in a session of so many."""
    if not isinstance(device, str):
        return device
    try:
        return make_device(device, threads=equal_cores(count))
    except DeviceError:  # it has no such option
        return device


def beginning(planned: Plan) -> Graph:
    """Return as many of a model's first nodes as are predicted to make up a round."""
    graph, costs = planned.whole, planned.costs
    if not graph.is_static:
        return graph
    slowest = [
        max(costs.node_s(name, graph, node) for name in planned.devices) for node in graph.nodes
    ]
    count = bisect_right([*accumulate(slowest)], ROUND_S)
    fits = 0 < count < len(graph.nodes)
    return graph.extract(graph.nodes[:count], graph.name) if fits else graph


async def work(session: Session, feeds: Mapping[str, Array], items: int) -> int:
    """Run items one by one; return for how many ns devices worked, whatever passed in between."""
    await stream_items(session, [feeds], items, in_flight=1)
    return sum(map(_worked_ns, session.profile().records[-items:]))


def _worked_ns(record: Record) -> int:
    return sum(span.ended_ns - span.started_ns for span in record.spans())
