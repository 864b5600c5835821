"""Calibration: short streams that tell what passes between steps on this machine.

How long threads and processes take to wake up, what the loop does for an item, and how much cores
disturb each other depends on the machine, and hardly on the model. So it is measured with graphs
made for it, on the devices of a plan that compute on the host. Whoever else is busy there only adds
to what is found: figures are those of runs that nothing seems to have added to, and there are none
where no runs agree before `LIMIT_S` is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from time import perf_counter_ns
from typing import TypeAlias

import numpy as np
import trio

from ...devices.device import Device
from ...graph.builder import GraphBuilder
from ...graph.ir import Graph
from ...graph.tensor import Array
from ..costs import Costs
from ..costs.figures import Loop
from ..costs.host import computes_here
from ..costs.measure import LIMIT_S, Clock, Note, undisturbed
from ..planner.api import plan
from ..plans.plan import Plan
from ..profile import Profile, Record
from ..profile.overheads import measure_hops, measure_loop
from ..runtime.session import Session
from ..simulation.lanes import USUAL
from .contention import contention
from .trial import stream_items

ITEMS, WARM_UP, ROUNDS, MOST_ROUNDS = 16, 3, 4, 64
TOURED = 3
"""Of more devices the first ones stand for the others."""

ROWS, DEPTH, COLUMNS = 1024, 256, 64
"""As much as models work on at a time: whoever wakes up finds nothing of his in the caches."""


Stream: TypeAlias = Callable[[int, int], Awaitable[Sequence[Record]]]
"""Runs so many items, so many of them in flight, and returns their records."""


def completed(
    costs: Costs, planned: Plan, feeds: Mapping[str, Array], note: Note = lambda _: None
) -> Costs:
    """Return measured costs, and behind them what calibration finds on the devices of a plan.

    What cannot be found, as no runs agree, stays what is built in, and `note` is told.

    Raises
    ------
    KernelError, DeviceError
        If the model or a device fails.
    """
    found = calibrated(planned, note)
    shared = contention(planned, _computing(planned)[:TOURED], feeds)
    if shared is None:
        note(_unmeasured("how much busy cores disturb each other"))
        shared = USUAL.contention
    known = costs.loop
    if found.loop is not None:
        # A profile's items may have been waiting for whoever used the session.
        feed, land = found.loop.feed_s, found.loop.land_s
        known = Loop(
            feed if known is None else min(known.feed_s, feed),
            land if known is None else min(known.land_s, land),
            shared,
        )
    elif known is not None:
        known = known._replace(contention=shared)
    return found.merged(replace(costs, loop=known))


def _unmeasured(what: str) -> str:
    return (
        f"{what} could not be measured, since no runs agreed: is the machine very busy? What is "
        "built in stays"
    )


def calibrated(planned: Plan, note: Note = lambda _: None) -> Costs:
    """Return what is found of the host and of a plan's devices there, nothing of nodes.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    here = _computing(planned)
    if not here:
        return Costs()
    names = [one if isinstance(one, str) else one.name for one in here][:TOURED]
    tour = _tour(names)
    pins = {node.name: node.name.partition("/")[2] for node in tour.nodes}
    toured = plan(tour, here, pin=pins, passes=())

    async def run() -> Costs:
        async with Session(toured) as session:
            return await measure_ways(toured, partial(_stream, session), note)

    return trio.run(run)


async def measure_ways(
    toured: Plan, stream: Stream, note: Note, clock: Clock = perf_counter_ns
) -> Costs:
    """Return what passes between steps by streams of one item and of several, which take turns."""
    counts = 1, 1 + len(toured.devices)
    records: dict[int, list[Record]] = {count: [] for count in counts}
    started = clock()
    for count in counts:
        await stream(WARM_UP, count)
    found, missing = Costs(), [""]
    for turn in range(MOST_ROUNDS):
        if turn >= ROUNDS and (not missing or clock() - started > LIMIT_S * 1e9):
            break
        for count in counts:
            records[count] += await stream(ITEMS, count)
        alone, together = (Profile(tuple(records[count]), ()) for count in counts)
        found, missing = _ways(toured, alone, together)
    for what in missing:
        note(_unmeasured(what))
    return found


def _ways(toured: Plan, alone: Profile, together: Profile) -> tuple[Costs, list[str]]:
    """Return what is known by now, and what is not."""
    in_a_row = {
        pair: hop
        for pair, hop in measure_hops(together, toured, undisturbed).items()
        if pair[0] == pair[1]
    }
    between = measure_hops(alone, toured, undisturbed)
    met = {
        *measure_hops(alone, toured),
        *(pair for pair in measure_hops(together, toured) if pair[0] == pair[1]),
    }
    found = Costs(hops={**in_a_row, **between}, loop=measure_loop(alone, toured, undisturbed))
    missing = [f"the way from {a} to {b}" for a, b in sorted(met - found.hops.keys())]
    return found, missing + (["what the loop takes"] if found.loop is None else [])


def _computing(planned: Plan) -> list[str | Device]:
    """Return the devices of a plan that compute on the host, as `plan` takes them."""
    return [
        device if name in planned.request.given else name
        for name, device in planned.prototypes.items()
        if name in planned.devices and _takes_part(device)
    ]


def _takes_part(device: Device) -> bool:
    return computes_here(device) and device.capabilities.runs_python


def _tour(names: Sequence[str]) -> Graph:
    """Return a chain that goes from every device to every other one; nodes name their device."""
    stops = [name for pair in permutations(names, 2) for name in pair] or list(names)
    builder = GraphBuilder("tour")
    last = builder.input("x", "float32", (1, 1))
    many = np.full((ROWS, DEPTH), 0.1, np.float32)
    weights = np.full((DEPTH, COLUMNS), 0.1, np.float32)
    for index, name in enumerate(stops):
        spread = builder.op("Mul", last, builder.constant(many), name=f"{index} spread/{name}")
        bent = builder.op("Tanh", spread, name=f"{index} bent/{name}")
        mixed = builder.op("MatMul", bent, builder.constant(weights), name=f"{index} mixed/{name}")
        last = builder.op("ReduceMax", mixed, name=f"{index} last/{name}")
    builder.output("y", last)
    return builder.build()


async def _stream(session: Session, items: int, in_flight: int) -> Sequence[Record]:
    """Run items through a session, and return their records."""
    graph = session.plan.graph
    feeds = {name: np.zeros(graph.tensors[name].static_shape, np.float32) for name in graph.inputs}
    await stream_items(session, [feeds], items, in_flight)
    return session.profile().records[-items:]
