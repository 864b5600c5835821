"""Calibration: short streams that tell what passes between steps on this machine.

How long threads and processes take to wake up, what the loop does for an item, and how much cores
disturb each other depends on the machine, and hardly on the model. So it is measured with graphs
made for it, for about a second, on the devices of a plan that compute on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import trio

from ..devices.device import Device
from ..graph.builder import GraphBuilder
from ..graph.ir import Graph
from ..graph.tensor import Array
from .contention import contention
from .costs import Costs
from .costs.figures import Loop
from .costs.host import computes_here
from .make_plan import plan
from .planning import Plan
from .profile import Profile
from .profile.overheads import hops, loop
from .session import Session

ITEMS, WARM_UP, ROUNDS = 16, 3, 4
TOURED = 3
"""Of more devices the first ones stand for the others."""

ROWS, DEPTH, COLUMNS = 1024, 256, 64
"""As much as models work on at a time: whoever wakes up finds nothing of his in the caches."""


def completed(costs: Costs, planned: Plan, feeds: Mapping[str, Array]) -> Costs:
    """Return measured costs, and behind them what calibration finds on the devices of a plan.

    Raises
    ------
    KernelError, DeviceError
        If the model or a device fails.
    """
    found = calibrated(planned)
    here = _computing(planned)[:TOURED]
    shared = contention(planned, here, feeds) if len(here) > 1 else 0.0
    known = costs.loop
    if found.loop is not None:
        # A profile's items may have been waiting for whoever used the session.
        feed, land = found.loop.feed_s, found.loop.land_s
        known = Loop(
            feed if known is None else min(known.feed_s, feed),
            land if known is None else min(known.land_s, land),
            shared,
        )
    return found.merged(replace(costs, loop=known))


def calibrated(planned: Plan) -> Costs:
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
    alone, together = _run(toured, 1, 1 + len(names))
    in_a_row = {pair: hop for pair, hop in hops(together, toured).items() if pair[0] == pair[1]}
    return Costs(hops={**in_a_row, **hops(alone, toured)}, loop=loop(alone, toured))


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


def _run(planned: Plan, *in_flight: int) -> list[Profile]:
    """Return profiles of short streams, for numbers of items in flight."""
    feeds = {
        name: np.zeros(planned.graph.tensors[name].static_shape, np.float32)
        for name in planned.graph.inputs
    }

    async def run() -> list[Profile]:
        profiles = []
        async with Session(planned) as session:
            for count in in_flight:
                for items in (WARM_UP, *[ITEMS] * ROUNDS):
                    before = len(session.profile().records)
                    async with session.stream([feeds] * items, max_in_flight=count) as results:
                        async for item in results:
                            _ = item.outputs
                    if items == WARM_UP:
                        warm = before + items
                profiles.append(Profile(session.profile().records[warm:], ()))
        return profiles

    return trio.run(run)
