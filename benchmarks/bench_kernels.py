"""How fast are the kernels of each kind of device, by operator: whence built-in figures are.

Every node of `real_models`, and graphs of one operator for what these lack, on one thread of each
device: the shortest of many runs, by the node's own clock, or ONNX Runtime's profiler. For each
family of kernels it says by what factor they take longer than by the roofline of `BASE`: that is
what `operators` of `plait.devices.kinds.MODELS` holds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import trio
from measure import save
from plait.devices.model import name_family
from plait.devices.ort import profiling
from plait.devices.ort.threads import ONE_THREAD
from plait.graph.core.infer import get_cost
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS

DEVICES = ("cpu", "compiled", "ort")
FLOPS_PER_S, BYTES_PER_S = 150e9, 20e9
"""What the best products and streams do on one core of the machine that this was written on."""

TINY_S = 2e-7
"""Kernels that the roofline says take less tell the launch."""

LEAST_ROOFLINE_S = 1e-5
"""Of all nodes of a family together, for its factor to be worth stating."""

Feeds = Mapping[str, Array]


class Sample(NamedTuple):
    """A node's shortest run, and what the roofline says."""

    family: str
    seconds: float
    roofline_s: float


def single_operators() -> Iterator[tuple[pl.Graph, Feeds]]:
    """Yield graphs of operators that the real models have too little of."""
    x = np.full((64, 4096), 0.5, np.float32)
    for op in ("Tanh", "Exp", "Erf", "Sigmoid", "Sqrt", "Div", "Mul", "Relu", "ReduceMean"):
        b = pl.GraphBuilder(op)
        fed = b.input("x", "float32", x.shape)
        b.output("y", b.op(op, fed, fed) if op in ("Div", "Mul") else b.op(op, fed))
        yield b.build(), {"x": x}
    for features in (1, 2, 4, 8):  # few channels: the masks and maps that networks end with
        for channels, height, width in ((8, 3, 3), (32, 7, 3), (64, 3, 3), (16, 5, 5), (8, 3, 39)):
            b = pl.GraphBuilder(f"Conv of {height} x {width} to {features}")
            fed = b.input("x", "float32", (1, channels, 96, 96))
            w = b.constant(np.full((features, channels, height, width), 0.01, np.float32))
            b.output("y", b.op("Conv", fed, w, auto_pad="SAME_UPPER"))
            yield b.build(), {"x": np.ones((1, channels, 96, 96), np.float32)}
    for op, gates in (("LSTM", 4), ("GRU", 3)):
        b = pl.GraphBuilder(op)
        fed = b.input("x", "float32", (32, 1, 128))
        w, r = (b.constant(np.full((1, gates * 128, 128), 0.01, np.float32)) for _ in range(2))
        b.output("y", b.op(op, fed, w, r, hidden_size=128))
        yield b.build(), {"x": np.ones((32, 1, 128), np.float32)}


def networks(names: list[str]) -> Iterator[tuple[pl.Graph, Feeds]]:
    for name in names:
        print(name, file=sys.stderr)
        yield pl.load(REAL_MODELS[name].path()), REAL_MODELS[name].feeds(1)


def samples(graph: pl.Graph, feeds: Feeds, device: str, seconds: float) -> Iterator[Sample]:
    """Yield the nodes of a graph; nothing where shapes depend on values."""
    plan = pl.plan(graph, [device], shapes={name: array.shape for name, array in feeds.items()})
    if not plan.is_static:
        return
    timed = {} if device == "ort" else trio.run(node_seconds, plan, feeds, seconds)
    for subgraph in plan.subgraphs:
        if device == "ort":
            timed = profiling.measure_seconds(subgraph.graph, ONE_THREAD, device)
        for node in subgraph.graph.nodes:
            if node.name in timed:
                cost = get_cost(subgraph.graph, node)
                roofline_s = max(cost.flops / FLOPS_PER_S, cost.nbytes / BYTES_PER_S)
                yield Sample(name_family(subgraph.graph, node), timed[node.name], roofline_s)


async def node_seconds(plan: pl.Plan, feeds: Feeds, seconds: float) -> dict[str, float]:
    async with pl.Session(plan, measure=True) as session:
        until = time.monotonic() + seconds
        for run in range(10_000):
            if run >= 5 and time.monotonic() > until:
                break
            await session.run(feeds)
        return {node.name: node.min_ns / 1e9 for node in session.profile().nodes}


def fitted(found: list[Sample]) -> dict[str, Any]:
    """Return a device's launch, and the factor of each family."""
    tiny = [one.seconds for one in found if 0 < one.roofline_s < TINY_S and one.seconds > 0]
    launch_s = statistics.median(tiny)
    families: dict[str, list[Sample]] = {}
    for one in found:
        families.setdefault(one.family, []).append(one)
    factors = {
        name: sum(max(one.seconds - launch_s, 0.0) for one in ones)
        / sum(one.roofline_s for one in ones)
        for name, ones in sorted(families.items())
        if sum(one.roofline_s for one in ones) >= LEAST_ROOFLINE_S
    }
    return {
        "launch_s": launch_s,
        "operators": {name: round(factor, 2) for name, factor in factors.items()},
        "nodes": {name: len(families[name]) for name in factors},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=";".join(REAL_MODELS), help="names, separated by ;")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each model and device")
    given = parser.parse_args()
    profiling.RUNS, profiling.BUDGET_S = 100, given.seconds
    found: dict[str, list[Sample]] = {device: [] for device in DEVICES}
    for graph, feeds in (*single_operators(), *networks(given.models.split(";"))):
        for device in DEVICES:
            found[device] += samples(graph, feeds, device, given.seconds)
    base = {"flops_per_s": FLOPS_PER_S, "bytes_per_s": BYTES_PER_S}
    devices = {device: fitted(ones) for device, ones in found.items()}
    save("kernels", {"base": base, "devices": devices})


if __name__ == "__main__":
    main()
