"""What do the passes gain on real models, in nodes, memory and time, and what do they cost?

Each of `real_models`, one item at a time: planned without passes and with all of them; sessions
take turns. What passes take in planning is timed too, and the results are
compared. The goal is a speed-up of 1.3 times, as a geometric mean, from passes alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save
from plait.graph.passes import PASSES, run_passes
from plait.graph.tensor import Array
from plait.scheduler.planning import Plan
from plait.scheduler.specialise import specialise
from plait.scheduler.steps import Transfer
from real_models import REAL_MODELS

WITHOUT, WITH = "without passes", "with passes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=None, metavar="PART", help="of their names")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-least-s", type=float, default=0.2, help="per turn")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, model in REAL_MODELS.items():
        if options.models and not any(part in name for part in options.models):
            continue
        fed = model.feeds(1)
        graph = pl.load(model.path())
        figures[name] = trio.run(measure, graph, fed, options)
        print(f"{name:32} {line(figures[name])}", flush=True)
    ratios = [each["speed_up"] for each in figures.values()]
    mean = statistics.geometric_mean(ratios)
    print(f"{'geometric mean':32} {mean:.2f} times as fast")
    save("passes", {"device": options.device, "models": figures, "geometric_mean": mean})


async def measure(
    graph: pl.Graph, fed: Mapping[str, Array], options: argparse.Namespace
) -> dict[str, Any]:
    """Return what plans with and without passes have and take."""
    shapes = {name: value.shape for name, value in fed.items()}
    plans = {
        WITHOUT: pl.plan(graph, [options.device], shapes=shapes, passes=()),
        WITH: pl.plan(graph, [options.device], shapes=shapes),
    }
    figures: dict[str, Any] = {name: size_of(plan) for name, plan in plans.items()}
    figures["passes"] = [str(one) for one in plans[WITH].applied]
    async with pl.Session(plans[WITHOUT]) as before, pl.Session(plans[WITH]) as after:
        results = [await session.run(fed) for session in (before, after)]
        figures["largest_difference"] = difference(*results)
        seconds = await alternate(
            {WITHOUT: lambda: before.run(fed), WITH: lambda: after.run(fed)},
            options.rounds,
            options.at_least_s,
        )
    for name, each in seconds.items():
        figures[name]["milliseconds"] = 1e3 * each
    figures["speed_up"] = seconds[WITHOUT] / seconds[WITH]
    figures["planning"] = planning(graph, shapes)
    return figures


def size_of(plan: Plan) -> dict[str, Any]:
    """Return how many nodes and transfers a plan has, and the memory of an item."""
    pools = plan.memory.pools.values() if plan.memory is not None else ()
    return {
        "nodes": len(plan.graph.nodes),
        "transfers": sum(isinstance(step.work, Transfer) for step in plan.steps),
        "item_bytes": sum(pool.item_nbytes for pool in pools),
        "constant_bytes": sum(pool.constants_nbytes for pool in pools),
    }


def planning(graph: pl.Graph, shapes: Mapping[str, Any]) -> dict[str, float]:
    """Return milliseconds that the passes take: the first time, and for shapes after that."""
    static = specialise(graph, shapes)
    start = time.perf_counter()
    simple, _ = run_passes(static, PASSES)
    first = time.perf_counter() - start
    again: list[float] = []
    for _ in range(5):
        static = specialise(simple)
        start = time.perf_counter()
        run_passes(static, PASSES)
        again.append(time.perf_counter() - start)
    return {"first_ms": 1e3 * first, "again_ms": 1e3 * statistics.median(again)}


def difference(before: Mapping[str, Array], after: Mapping[str, Array]) -> float:
    """Return the largest difference, as a part of the largest number of an output."""
    found = [0.0]
    for name, wanted in before.items():
        if wanted.size:
            largest = float(np.abs(wanted.astype(np.float64)).max()) or 1.0
            apart = np.abs(wanted.astype(np.float64) - after[name].astype(np.float64)).max()
            found.append(float(apart) / largest)
    return max(found)


async def alternate(
    sides: Mapping[str, Callable[[], Awaitable[object]]], rounds: int, at_least_s: float
) -> dict[str, float]:
    """Return each side's median seconds per call, the sides taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            start, calls = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - start) < at_least_s or not calls:
                await call()
                calls += 1
            seconds[name].append(elapsed / calls)
    return {name: statistics.median(values) for name, values in seconds.items()}


def line(figures: Mapping[str, Any]) -> str:
    """Return a model's figures in a line."""
    before, after, planned = figures[WITHOUT], figures[WITH], figures["planning"]
    return (
        f"nodes {before['nodes']:4} -> {after['nodes']:4}  "
        f"item {before['item_bytes'] / 1e6:7.1f} -> {after['item_bytes'] / 1e6:7.1f} MB  "
        f"{before['milliseconds']:8.2f} -> {after['milliseconds']:8.2f} ms  "
        f"{figures['speed_up']:.2f} times  off by {figures['largest_difference']:.0e}  "
        f"passes {planned['first_ms']:.0f} ms, again {planned['again_ms']:.1f} ms"
    )


if __name__ == "__main__":
    main()
