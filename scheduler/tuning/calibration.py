"""Calibration: measure the latency between steps on this machine by short streams.

The wake-up time of threads and processes, the loop's work for an item, and the slowdown of cores by
each other depend on the machine and hardly on the model. So they are measured with graphs built for
it, on the devices of a plan that compute on the host. Other load can only lengthen a run: the
figures come from the shortest runs, and are missing if no runs agree within `LIMIT_S`.
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
from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph
from ...graph.values.tensor import Array
from ..costs import Costs
from ..costs.figures import Loop
from ..costs.host import is_on_host
from ..costs.measure import LIMIT_S, Clock, Note, find_undisturbed
from ..planner.api import plan
from ..plans.plan import Plan
from ..profile import Profile, Record
from ..profile.overheads import measure_hops, measure_loop
from ..runtime.session import Session
from ..simulation.lanes import USUAL
from .contention import measure_plan_contention
from .trial import stream_items

ITEMS, WARM_UP, ROUNDS, MOST_ROUNDS = 16, 3, 4, 64
MOST_DEVICES = 3
"""At most this many devices are measured; they stand for the others."""

ROWS, DEPTH, COLUMNS = 1024, 256, 64
"""Sizes as in models, so that caches are cold for a device that wakes up."""


Stream: TypeAlias = Callable[[int, int], Awaitable[Sequence[Record]]]
"""Called with numbers of items and of items in flight; returns the items' records."""


def complete_costs(
    costs: Costs, planned: Plan, feeds: Mapping[str, Array], note: Note = lambda _: None
) -> Costs:
    """Return `costs`, which take precedence, with calibrated figures of the devices of `planned`.

    Runs of `feeds` show how busy cores disturb each other. If no two runs agree on a figure, it
    keeps its default, and `note` is called with a sentence. Raises KernelError or DeviceError if
    the model or a device fails.
    """
    found = calibrate(planned, note)
    shared = measure_plan_contention(planned, _list_host_devices(planned)[:MOST_DEVICES], feeds)
    if shared is None:
        note(_describe_failure("how much busy cores disturb each other"))
        shared = USUAL.contention
    known = costs.loop
    if found.loop is not None:
        # A profile's items may have waited for the user of the session.
        feed, land = found.loop.feed_s, found.loop.land_s
        known = Loop(
            feed if known is None else min(known.feed_s, feed),
            land if known is None else min(known.land_s, land),
            shared,
        )
    elif known is not None:
        known = known._replace(contention=shared)
    return found.merged(replace(costs, loop=known))


def _describe_failure(figure: str) -> str:
    return (
        f"{figure} could not be measured, since no runs agreed: is the machine very busy? The "
        "default stays"
    )


def calibrate(planned: Plan, note: Note = lambda _: None) -> Costs:
    """Measure hops and loop times of host devices of `planned`; `note` is called for failures."""
    here = _list_host_devices(planned)
    if not here:
        return Costs()
    names = [one if isinstance(one, str) else one.name for one in here][:MOST_DEVICES]
    tour = _build_tour(names)
    pins = {node.name: node.name.partition("/")[2] for node in tour.nodes}
    toured = plan(tour, here, pin=pins, passes=())

    async def run() -> Costs:
        async with Session(toured) as session:
            return await measure_overheads(toured, partial(_stream, session), note)

    return trio.run(run)


async def measure_overheads(
    toured: Plan, stream: Stream, note: Note, clock: Clock = perf_counter_ns
) -> Costs:
    """Measure hops and loop times of the plan `toured`, whose items `stream` runs.

    Turns of one item and of several alternate, for a limited time by `clock`; `note` is called for
    each figure on which no runs agree.
    """
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
        found, missing = _estimate_costs(toured, alone, together)
    for figure in missing:
        note(_describe_failure(figure))
    return found


def _estimate_costs(toured: Plan, alone: Profile, together: Profile) -> tuple[Costs, list[str]]:
    """Return costs of hops and of the loop of `toured`, and the figures that no two runs agree on.

    Items ran `alone`, or several `together`.
    """
    in_a_row = {
        pair: hop
        for pair, hop in measure_hops(together, toured, find_undisturbed).items()
        if pair[0] == pair[1]
    }
    between = measure_hops(alone, toured, find_undisturbed)
    met = {
        *measure_hops(alone, toured),
        *(pair for pair in measure_hops(together, toured) if pair[0] == pair[1]),
    }
    found = Costs(hops={**in_a_row, **between}, loop=measure_loop(alone, toured, find_undisturbed))
    missing = [f"the way from {a} to {b}" for a, b in sorted(met - found.hops.keys())]
    return found, missing + (["what the loop takes"] if found.loop is None else [])


def _list_host_devices(planned: Plan) -> list[str | Device]:
    return [
        device if name in planned.request.given else name
        for name, device in planned.prototypes.items()
        if name in planned.devices and is_on_host(device) and device.capabilities.runs_python
    ]


def _build_tour(names: Sequence[str]) -> Graph:
    """Build a chain of nodes that hops from each of the devices `names` to each other one.

    The name of a node ends with the name of its device.
    """
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
    graph = session.plan.graph
    feeds = {name: np.zeros(graph.tensors[name].static_shape, np.float32) for name in graph.inputs}
    await stream_items(session, [feeds], items, in_flight)
    return session.profile().records[-items:]
