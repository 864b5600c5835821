"""What do elementwise chains gain by running block by block, as one node?

Chains on tensors of some sizes, planned with `fuse_chains` and without: the time of their nodes in
profiles of sessions that take turns, and what memory an item takes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save
from plait.graph.core.ir import Graph
from plait.scheduler.plans.plan import Plan

WITHOUT = ["-fuse_chains", "-fuse_activation", "-reduce_strength"]
"""Gelu stays written out, on both sides."""

WIDTH = 1000
RUNS = 5
"""Of each session."""


def image(b: pl.GraphBuilder, length: int) -> Any:
    """Bytes of three channels, made float, scaled and normalised."""
    x = b.input("x", "uint8", (1, 3, length // (3 * WIDTH), WIDTH))
    mean, scale = (np.array(v, np.float32).reshape(3, 1, 1) for v in ([0.5, 0.4, 0.3], [4, 4, 5]))
    made = b.op("Mul", b.op("Cast", x, to="float32"), np.float32(1 / 255))
    return b.op("Mul", b.op("Sub", made, mean), scale)


def clipped(b: pl.GraphBuilder, length: int) -> Any:
    """(x / 255 - mean) / deviation, clipped."""
    made = b.op("Div", b.input("x", "float32", (length,)), np.float32(255))
    made = b.op("Div", b.op("Sub", made, np.float32(0.45)), np.float32(0.22))
    return b.op("Clip", made, np.float32(-2), np.float32(2))


def gelu(b: pl.GraphBuilder, length: int) -> Any:
    """Gelu by Erf, x · (1 + erf(x / √2)) / 2."""
    x = b.input("x", "float32", (length,))
    made = b.op("Add", b.op("Erf", b.op("Mul", x, np.float32(0.5**0.5))), np.float32(1))
    return b.op("Mul", b.op("Mul", x, made), np.float32(0.5))


def ten(b: pl.GraphBuilder, length: int) -> Any:
    """Ten nodes, scales and shifts in turn."""
    made = b.input("x", "float32", (length,))
    for index in range(5):
        made = b.op("Add", b.op("Mul", made, np.float32(1.1 + index)), np.float32(0.3))
    return made


CHAINS: Mapping[str, Callable[[pl.GraphBuilder, int], Any]] = {
    "image": image,
    "clipped": clipped,
    "gelu": gelu,
    "ten": ten,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=[4_000_000, 16_000_000])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, make in CHAINS.items():
        for size in options.sizes:
            b = pl.GraphBuilder(name)
            b.output("y", make(b, size))
            figures[f"{name} {size}"] = row = compare(b.build(), options.rounds)
            print(f"{name:10} {size:12,}  " + "  ".join(f"{k} {v:.3f}" for k, v in row.items()))
    save("chains", figures)


def compare(graph: Graph, rounds: int) -> dict[str, float]:
    """Return the times of both plans, their ratio, and their memory in MB."""
    plans = [pl.plan(graph, passes=WITHOUT), pl.plan(graph, passes=WITHOUT[1:])]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for plan, taken in zip(plans, times, strict=True):
            taken.append(trio.run(node_ms, plan))
    single, fused = (statistics.median(taken) for taken in times)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    memory = [
        sum(p.nbytes for p in plan.memory.pools.values()) / 1e6 for plan in plans if plan.memory
    ]
    found = {"single_ms": single, "fused_ms": fused, "ratio": ratio}
    return found | dict(zip(("single_mb", "fused_mb"), memory, strict=True))


async def node_ms(plan: Plan) -> float:
    """Return what the nodes of a plan take together, the mean of a few runs."""
    spec = plan.graph.tensors["x"]
    x = np.random.default_rng(0).integers(0, 255, spec.static_shape).astype(spec.dtype)
    async with pl.Session(plan, measure=True) as session:
        for _ in range(RUNS):
            await session.run({"x": x})
        nodes = session.profile().nodes
    return sum(node.total_ns / node.runs for node in nodes if node.runs) / 1e6


if __name__ == "__main__":
    main()
