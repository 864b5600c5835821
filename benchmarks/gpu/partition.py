"""Is what `plait.plan` chooses for CPU and GPU as good as the better one alone, and as predicted?

Nodes are measured on either device first. Goal: the automatic partition takes at most 1.05 times as
long as the better device alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import plait as pl
import trio
from gpu.models import chosen
from gpu.question import Row, answer, failed
from gpu.target import Target
from plait.devices import Device
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.tuning.calibration import complete_costs

GOAL = 1.05
WARM = 2
ROUNDS, LIMIT_S = 30, 1.5
"""So many items are timed, or as many as there is time for."""

Case = tuple[Graph, Mapping[str, Array]]


def branches(target: Target) -> Iterator[Row]:
    """A branch for each device: products of matrices, and small steps with little to compute."""
    side = target.size(1024, 8)
    b = pl.GraphBuilder("branches")
    x = b.input("x", "float32", (side, side))
    weights = b.constant(np.eye(side, dtype=np.float32) * np.float32(0.5))
    last = x
    for _ in range(target.size(16, 2)):
        last = b.op("MatMul", last, weights)
    b.output("products", b.op("Softmax", last))
    small = b.input("small", "float32", (4, 16))
    for _ in range(target.size(30, 2)):
        small = b.op("Softmax", b.op("Add", small, 1.0))
    b.output("steps", small)
    feeds = {"x": np.ones((side, side), np.float32), "small": np.ones((4, 16), np.float32)}
    yield from _compared("two branches", target, b.build(), feeds)


def models(target: Target) -> Iterator[Row]:
    """Real models: mostly a matter of taking the GPU, and of leaving small ends to the host."""
    for name, model in chosen(target).items():
        try:
            yield from _compared(name, target, pl.load(model.path()), model.feeds(1))
        except (Exception, SystemExit) as error:
            yield failed(name, error)


def _compared(
    title: str, target: Target, graph: Graph, feeds: Mapping[str, Array]
) -> Iterator[Row]:
    device, shapes = target.make(), {name: value.shape for name, value in feeds.items()}
    gpu = pl.plan(graph, [device, "cpu"], shapes=shapes, strategy="preference")
    cpu = pl.plan(graph, ["cpu"], shapes=shapes)
    costs = complete_costs(_costs(cpu, feeds).merged(_costs(gpu, feeds)), gpu, feeds)
    both: list[str | Device] = [device, "cpu"]
    priced = partial(pl.plan, graph, shapes=shapes, costs=costs)
    plans = {"GPU": priced(both, strategy="preference"), "CPU": priced("cpu"), "both": priced(both)}
    found = {}
    for name, plan in plans.items():
        predicted = pl.simulate(plan).makespan_s
        found[name] = measured = trio.run(_seconds, plan, feeds)
        on_host = sum(name == "cpu" for name in plan.assignment.values())
        note = f"{on_host} of {len(plan.graph.nodes)} nodes on the host"
        yield Row(f"{title}: {name}", measured * 1e3, "ms", note=note)
        yield Row(f"{title}: {name}, predicted", predicted * 1e3, "ms")
        yield Row(f"{title}: {name}, predicted over measured", predicted / measured, "x")
    ratio = found["both"] / min(found["GPU"], found["CPU"])
    yield Row(f"{title}: both, of the better one alone", ratio, "x", at_most=GOAL)


def _costs(plan: pl.Plan, feeds: Mapping[str, Array]) -> pl.Costs:
    """Return what a few items say of nodes and copies."""

    async def run() -> pl.Profile:
        async with pl.Session(plan, measure=True) as session:
            for _ in range(WARM + 1):
                await session.run(feeds)
            return session.profile()

    return pl.Costs.from_profile(trio.run(run), plan)


async def _seconds(plan: pl.Plan, feeds: Mapping[str, Array]) -> float:
    spent: list[float] = []
    async with pl.Session(plan) as session:
        for _ in range(WARM):
            await session.run(feeds)
        while len(spent) < ROUNDS and sum(spent) < LIMIT_S:
            start = time.perf_counter()
            await session.run(feeds)
            spent.append(time.perf_counter() - start)
    return statistics.median(spent)


if __name__ == "__main__":
    answer(branches, models)
