"""How much of the work of two devices is done at the same time, within one item?

Graphs of eight shapes on two simulated devices, whose nodes take 5 ms each and whose nodes are
pinned, so that it is the runtime that is measured, in real time. The bound is the longer of the
critical path and the busiest device, with copies and hand-overs for nothing; a runtime that ran one
subgraph after the other would take the sum of all nodes. Goal: at most 1.05 times the bound.

Then a balanced diamond of matrix products on two real cores, `cpu` and `worker:0`, against the same
graph on `cpu` alone, in turns. What two plain threads of one process gain with the same products
says how much this machine has to give. Goal: at least 1.8 times as fast as one device.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from quiet import Watch

NODE_S = 5e-3
MODEL = SimModel(
    flops_per_s=1e15,
    bytes_per_s=1e15,
    copy_bytes_per_s=1e12,
    copy_latency_s=5e-6,
    launch_s=NODE_S,
    submit_s=0,
)
GOALS = {"of the bound, at most": 1.05, "of one device, at least": 1.8}


class Sketch:
    """A graph being drawn: nodes on devices ``a`` and ``b``, of 5 ms each."""

    def __init__(self, name: str) -> None:
        self.builder = pl.GraphBuilder(name)
        self.x: str = self.builder.input("x", "float32", (16,))
        self.pins: dict[str, str] = {}
        self._depths: dict[str, int] = {self.x: 0}
        self._count = 0

    def node(self, device: str, *reads: str) -> str:
        """Draw a node; return what it makes."""
        name = f"n{self._count}"
        self._count += 1
        self.pins[name] = f"sim:{device}"
        made: str = self.builder.op("Sum", *reads, name=name)
        self._depths[made] = 1 + max(map(self._depths.__getitem__, reads))
        return made

    def chain(self, device: str, length: int, start: str) -> str:
        """Draw nodes in a row."""
        for _ in range(length):
            start = self.node(device, start)
        return start

    def bound_s(self) -> float:
        """Return the longer of the critical path and the busiest device."""
        pins = list(self.pins.values())
        return NODE_S * max(*self._depths.values(), *map(pins.count, pins))

    def serial_s(self) -> float:
        """Return what one node after the other takes."""
        return NODE_S * len(self.pins)


def halves(sketch: Sketch) -> list[str]:
    """Draw a row of nodes of which each device has one half: nothing can overlap."""
    return [sketch.chain("b", 6, sketch.chain("a", 6, sketch.x))]


def independent(sketch: Sketch) -> list[str]:
    """Draw two rows that have nothing to do with each other."""
    return [sketch.chain(device, 8, sketch.x) for device in "ab"]


def diamond(sketch: Sketch) -> list[str]:
    """Draw two branches between a common start and a common end."""
    start = sketch.node("a", sketch.x)
    return [sketch.node("a", *(sketch.chain(device, 6, start) for device in "ab"))]


def fork_join(sketch: Sketch) -> list[str]:
    """Draw eight branches, four on each device, and their sum."""
    start = sketch.node("a", sketch.x)
    return [sketch.node("a", *(sketch.chain(device, 2, start) for device in "ab" * 4))]


def short_beside_long(sketch: Sketch) -> list[str]:
    """Draw a short branch that the other device waits for, and a long sibling drawn before it."""
    start = sketch.node("a", sketch.x)
    long = sketch.chain("a", 6, start)
    short = sketch.node("a", start)
    return [long, sketch.chain("b", 6, short)]


def ladder(sketch: Sketch) -> list[str]:
    """Draw two rows, each of whose nodes needs the one before of both."""
    left = right = sketch.x
    for _ in range(6):
        left, right = sketch.node("a", left, right), sketch.node("b", left, right)
    return [left, right]


def tree(sketch: Sketch) -> list[str]:
    """Draw a sum of eight branches in pairs, the halves on different devices."""
    sums = []
    for device in "ab":
        level = [sketch.chain(device, 2, sketch.x) for _ in range(4)]
        while len(level) > 1:
            level = [sketch.node(device, *level[i : i + 2]) for i in range(0, len(level), 2)]
        sums += level
    return [sketch.node("a", *sums)]


def blocks(sketch: Sketch) -> list[str]:
    """Draw three blocks of four branches, as in Inception."""
    last = sketch.x
    for _ in range(3):
        last = sketch.node("a", *(sketch.chain(device, 2, last) for device in "abab"))
    return [last]


SHAPES = (halves, independent, diamond, fork_join, short_beside_long, ladder, tree, blocks)


async def on_two_simulated(rounds: int) -> dict[str, dict[str, float]]:
    """Return, for each shape, its median makespan against the bound and against the sum."""
    return {shape.__name__: await one_shape(shape, rounds) for shape in SHAPES}


async def one_shape(shape: Callable[[Sketch], list[str]], rounds: int) -> dict[str, float]:
    sketch = Sketch(shape.__name__)
    for index, last in enumerate(shape(sketch)):
        sketch.builder.output(f"y{index}", last)
    devices = [SimDevice(name, MODEL) for name in ("sim:a", "sim:b")]
    plan = pl.plan(sketch.builder.build(), devices, pin=sketch.pins)
    inputs = {"x": np.ones(16, np.float32)}
    seconds = []
    async with pl.Session(plan) as session:
        for _ in range(rounds + 1):  # the first one warms up
            start = perf_counter()
            await session.run(inputs)
            seconds.append(perf_counter() - start)
    makespan = statistics.median(seconds[1:])
    return {
        "makespan_ms": makespan * 1e3,
        "of_the_bound": makespan / sketch.bound_s(),
        "of_the_sum": makespan / sketch.serial_s(),
    }


@dataclass(frozen=True)
class Products:
    """A diamond: two branches of matrix products, between a sum at the start and one at the end."""

    side: int
    length: int

    def graph(self) -> Graph:
        """Build it."""
        b = pl.GraphBuilder("products")
        x, weights = b.input("x", "float32", (self.side,) * 2), self.weights()
        start = b.op("Relu", x, name="start")
        ends = []
        for branch in ("left", "right"):
            last = start
            for index in range(self.length):
                last = b.op("MatMul", last, weights, name=f"{branch}.{index}")
            ends.append(last)
        b.output("y", b.op("Add", *ends, name="end"))
        return b.build()

    def weights(self) -> np.ndarray[Any, Any]:
        """Return what is multiplied with: values stay as they are, for any length."""
        return np.eye(self.side, dtype=np.float32)

    def by_hand(self, start: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Compute one branch."""
        weights, last = self.weights(), start
        for _ in range(self.length):
            last = last @ weights
        return last


async def on_two_cores(products: Products, rounds: int) -> dict[str, float]:
    """Return how much faster two devices are than one, and two plain threads than one.

    All take turns: how much two cores are worth on a machine that others share, changes.
    """
    graph, inputs = products.graph(), {"x": np.ones((products.side,) * 2, np.float32)}
    plans = {
        "cpu": pl.plan(graph, "cpu"),
        "cpu and worker": pl.plan(
            graph, ["cpu", "worker:0"], pin={"right.*": "worker:0", "*": "cpu"}
        ),
    }
    branch = partial(products.by_hand, inputs["x"])
    seconds: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        runs: dict[str, Callable[[], Awaitable[object]]] = {}
        for name, plan in plans.items():
            session = await stack.enter_async_context(pl.Session(plan))
            runs[name] = partial(session.run, inputs)
        threads = stack.enter_context(ThreadPoolExecutor(2))
        runs["one thread"] = partial(by_threads, branch, None)
        runs["two threads"] = partial(by_threads, branch, threads)
        for index in range(rounds + 1):
            for name, run in runs.items():
                start = perf_counter()
                await run()
                if index:  # the first one warms up
                    seconds.setdefault(name, []).append(perf_counter() - start)
    ms = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
    return {
        **{f"{name}_ms": each for name, each in ms.items()},
        "times_as_fast": ms["cpu"] / ms["cpu and worker"],
        "two_threads_times_as_fast": ms["one thread"] / ms["two threads"],
    }


async def by_threads(branch: Callable[[], object], threads: ThreadPoolExecutor | None) -> None:
    """Compute both branches without plait; the session has set the BLAS to one thread."""
    if threads is None:
        branch()
        branch()
    else:
        for each in [threads.submit(branch) for _ in range(2)]:
            each.result()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 31
    watch = Watch()
    shapes = trio.run(on_two_simulated, rounds)
    diamonds = {
        f"{products.length} products of {products.side}": trio.run(on_two_cores, products, rounds)
        for products in (Products(256, 40), Products(512, 12))
    }
    figures = {
        "goals": GOALS,
        "disturbance": watch.disturbance(),
        "shapes": shapes,
        "worst_of_the_bound": max(each["of_the_bound"] for each in shapes.values()),
        "diamonds": diamonds,
    }
    save("overlap", figures)


if __name__ == "__main__":
    main()
