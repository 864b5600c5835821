"""What do the passes gain on real models, in nodes, memory and time, and what do they cost?

Each of `real_models`, one item at a time: planned without any pass, with folding alone, and with
all of them; sessions take turns. What passes take in planning is timed too, for graphs of many
nodes as well, and the results are compared.

Nothing that keeps every product and convolution can be faster than those alone, so the time without
passes, divided by theirs in a profile of it, is about the most that passes could gain; the last
column tells how much of the time that they may save they do. The goal is a speed-up of 1.3 times,
as a geometric mean, from passes alone.
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
from plait.graph.passes import PASSES
from plait.graph.passes.fold_constants import fold_constants
from plait.graph.passes.pipeline import run_passes
from plait.graph.values.tensor import Array
from plait.scheduler.plans.placement import Transfer
from plait.scheduler.plans.plan import Plan
from plait.scheduler.shapes.specialise import specialise
from real_models import REAL_MODELS

WITHOUT, FOLDED, WITH = "without any pass", "with folding alone", "with all passes"

PRODUCTS = ("Conv", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Integer", "QLinear")
"""Parts of the names of operators whose arithmetic passes leave as it is."""

SCALES = (10_000, 100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=None, metavar="PART", help="of their names")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-least-s", type=float, default=0.2, help="per turn")
    parser.add_argument("--scales", nargs="*", type=int, default=SCALES, metavar="NODES")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, model in REAL_MODELS.items():
        if options.models is not None and not any(part in name for part in options.models):
            continue
        fed = model.feeds(1)
        graph = pl.load(model.path())
        figures[name] = trio.run(measure, graph, fed, options)
        print(f"{name:32} {line(figures[name])}", flush=True)
    summary = means(figures)
    scales = {str(count): at_scale(count) for count in options.scales}
    save("passes", {"device": options.device, "models": figures, **summary, "scales": scales})


async def measure(
    graph: pl.Graph, fed: Mapping[str, Array], options: argparse.Namespace
) -> dict[str, Any]:
    """Return what plans with and without passes have and take."""
    shapes = {name: value.shape for name, value in fed.items()}
    chosen = {WITHOUT: (), FOLDED: (fold_constants,), WITH: PASSES}
    plans = {
        name: pl.plan(graph, [options.device], shapes=shapes, passes=passes)
        for name, passes in chosen.items()
    }
    figures: dict[str, Any] = {name: size_of(plan) for name, plan in plans.items()}
    figures["passes"] = [str(one) for one in plans[WITH].applied]
    async with (
        pl.Session(plans[WITHOUT]) as without,
        pl.Session(plans[FOLDED]) as folded,
        pl.Session(plans[WITH]) as simple,
    ):
        sessions = {WITHOUT: without, FOLDED: folded, WITH: simple}
        results = {name: await session.run(fed) for name, session in sessions.items()}
        figures["largest_difference"] = difference(results[WITHOUT], results[WITH])
        calls = {name: _calling(session, fed) for name, session in sessions.items()}
        seconds = await alternate(calls, options.rounds, options.at_least_s)
    for name, each in seconds.items():
        figures[name]["milliseconds"] = 1e3 * each
    figures["speed_up"] = seconds[WITHOUT] / seconds[WITH]
    figures["speed_up_over_folding"] = seconds[FOLDED] / seconds[WITH]
    share = await share_of_products(plans[WITHOUT], fed, options.rounds)
    figures["most_possible"] = 1 / share if share else None
    saved = 1 - seconds[WITH] / seconds[WITHOUT]
    figures["saved_of_what_may_be"] = saved / (1 - share) if share < 1 else None
    figures["planning"] = planning(graph, shapes)
    return figures


def _calling(session: pl.Session, fed: Mapping[str, Array]) -> Callable[[], Awaitable[object]]:
    return lambda: session.run(fed)


async def share_of_products(plan: Plan, fed: Mapping[str, Array], rounds: int) -> float:
    """Return the share of products and convolutions in the time of all nodes."""
    async with pl.Session(plan, measure=True) as session:
        for _ in range(rounds):
            await session.run(fed)
        nodes = session.profile().nodes
    products = sum(n.total_ns for n in nodes if any(part in n.op for part in PRODUCTS))
    return products / sum(node.total_ns for node in nodes)


def means(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return and print geometric means over the models."""
    found: dict[str, float] = {}
    for key in ("speed_up", "speed_up_over_folding", "most_possible"):
        values = [each[key] for each in figures.values() if each[key] is not None]
        if values:
            found[key] = statistics.geometric_mean(values)
            print(f"geometric mean of {key}: {found[key]:.2f} times")
    return found


def at_scale(count: int) -> dict[str, float]:
    """Return the seconds that passes take for a graph of so many nodes, and then nodes."""
    graph = layered(count)
    start = time.perf_counter()
    simple, _ = run_passes(graph, PASSES)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    run_passes(simple, PASSES)
    again = time.perf_counter() - start
    figures = {"nodes": len(graph.nodes), "left": len(simple.nodes)}
    print(f"{len(graph.nodes):,} nodes: {seconds:.2f} s, {len(simple.nodes):,} left, {again:.2f} s")
    return {**figures, "seconds": seconds, "again_seconds": again}


def layered(count: int) -> pl.Graph:
    """Return a graph of about so many nodes, with something for most passes in each layer."""
    b = pl.GraphBuilder("layers")
    x = b.input("x", "float32", (4, 4))
    for index in range(-(-count // 10)):
        x = b.op("Mul", b.op("Identity", x), np.float32(index % 7))
        x = b.op("Mul", x, b.op("Sigmoid", x))
        turned = b.op("Transpose", b.op("Relu", b.op("Transpose", x)))
        bias = b.op("Mul", np.float32(2), np.float32(index % 5))
        x = b.op("Add", b.op("Add", turned, bias), b.op("Neg", x))
    b.output("y", x)
    return b.build()


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
    before, folded, after = (figures[name] for name in (WITHOUT, FOLDED, WITH))
    planned, most = figures["planning"], figures["most_possible"]
    reached = figures["saved_of_what_may_be"]
    return (
        f"nodes {before['nodes']:4} -> {folded['nodes']:4} -> {after['nodes']:4}  "
        f"item {before['item_bytes'] / 1e6:6.1f} -> {after['item_bytes'] / 1e6:6.1f} MB  "
        f"{before['milliseconds']:8.2f} -> {folded['milliseconds']:8.2f} -> "
        f"{after['milliseconds']:8.2f} ms  "
        f"{figures['speed_up']:.2f} times of {'any' if most is None else f'{most:.2f}'}, "
        f"{'all' if reached is None else f'{reached:.0%}'} of what may be saved  "
        f"off by {figures['largest_difference']:.0e}  "
        f"passes {planned['first_ms']:.0f} ms, again {planned['again_ms']:.1f} ms"
    )


if __name__ == "__main__":
    main()
