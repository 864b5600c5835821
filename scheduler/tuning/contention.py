"""Contention among devices of the host that run a model at the same time.

Cores share caches, memory and, on some machines, arithmetic units; the cost depends on the kernels.
So each device runs the first kernels of a model alone, then all run them at once, in alternation.
Other load can only lengthen a round. So rounds are shorter than a time slice of the system, and the
shortest of many count, if several agree. At most as many devices run as there are cores: the loss
by sharing cores follows from the number of devices.
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
from ...devices.host import count_cores
from ...devices.registry import device as make_device
from ...graph.core.ir import Graph
from ...graph.values.tensor import Array
from ..costs.measure import LIMIT_S, MOST_REPEATS, REPEATS, UNDISTURBED_S, Clock, find_agreement
from ..dispatch.core_shares import divide_equally
from ..errors import PlanError
from ..planner.api import plan
from ..plans.plan import Plan
from ..runtime.session import Session
from .trial import stream_items

WARM_UP, MOST_ITEMS = 8, 64
ROUND_S = UNDISTURBED_S / 2
"""Approximate duration of a round."""

Work: TypeAlias = Callable[[int], Awaitable[int]]
"""Runs a number of items on a device, and returns its busy time in ns."""


class Disturbance:
    """Rounds of the same work on several devices.

    Parameters
    ----------
    works : sequence of Work
        One per device; at most as many as there are cores.

    Attributes
    ----------
    alone : list of list of float
        Per device and round, its busy time per item in ns while the others were idle.
    together : list of list of float
        Likewise, while all were busy.
    """

    def __init__(self, works: Sequence[Work]) -> None:
        self.alone: list[list[float]] = [[] for _ in works]
        self.together: list[list[float]] = [[] for _ in works]
        self._works = works
        self._items = [1] * len(works)

    async def warm_up(self) -> float:
        """Choose each device's items per round, so that all take equally long; return the time."""
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

    def estimate(self) -> float | None:
        """Return the share that each busy device adds to the time of another one.

        None if too few rounds were about as short as the shortest, or if running at once took as
        long as running in sequence: then the devices waited for cores that other processes had.
        """
        alone = [find_agreement(rounds) for rounds in self.alone]
        known = [ns for ns in alone if ns is not None]
        if len(known) < len(alone):
            return None
        rounds = zip(*self.together, strict=True)
        ratio = find_agreement(
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
    """Return the share by which a busy device slows down another, or None if no rounds agree.

    Each of `works` runs items on one device; `clock` limits the time.
    """
    found = Disturbance(works)
    if await found.warm_up() > UNDISTURBED_S:
        return None
    started = clock()
    for turn in range(MOST_REPEATS):
        is_late = clock() - started > LIMIT_S * 1e9
        if turn >= REPEATS and (is_late or found.estimate() is not None):
            break
        await found.round()
    return found.estimate()


def measure_plan_contention(
    planned: Plan, devices: Sequence[str | Device], feeds: Mapping[str, Array]
) -> float | None:
    """Return the share by which each of `devices`, while it is busy, slows down another.

    They run the first kernels of `planned` on `feeds`. None if a device cannot run the model, if
    its first kernels take too long, or if the machine was too busy for rounds to agree. Raises
    KernelError or DeviceError if the model or a device fails.
    """
    at_once = devices[: count_cores()]
    if len(at_once) < 2:
        return 0.0
    graph = extract_beginning(planned)
    feeds = {name: feeds[name] for name in graph.inputs}
    try:
        each = [plan(graph, [_limit_threads(one, len(at_once))], passes=()) for one in at_once]
    except PlanError:
        return None

    async def run() -> float | None:
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(Session(one)) for one in each]
            works = [partial(measure_items, session, feeds) for session in sessions]
            return await measure_contention(works)

    return trio.run(run)


def _limit_threads(device: str | Device, count: int) -> str | Device:
    if not isinstance(device, str):
        return device
    try:
        return make_device(device, threads=divide_equally(count))
    except DeviceError:  # it has no such option
        return device


def extract_beginning(planned: Plan) -> Graph:
    graph, costs = planned.whole, planned.costs
    if not graph.is_static:
        return graph
    slowest = [
        max(costs.node_s(name, graph, node) for name in planned.devices) for node in graph.nodes
    ]
    count = bisect_right([*accumulate(slowest)], ROUND_S)
    fits = 0 < count < len(graph.nodes)
    return graph.extract(graph.nodes[:count], graph.name) if fits else graph


async def measure_items(session: Session, feeds: Mapping[str, Array], items: int) -> int:
    """Run `items` items, all with `feeds`, one by one in `session`; return the devices' busy ns."""
    await stream_items(session, [feeds], items, in_flight=1)
    spans = (span for record in session.profile().records[-items:] for span in record.spans())
    return sum(span.ended_ns - span.started_ns for span in spans)
