"""How much does a step cost beyond the work in it?

Two trivial Python functions on two devices of this process. From admission to result there are two
steps and the feeding and fetching of an array; where they run on the devices' own threads, also
three changes of thread (loop to lane, lane to lane, lane to loop). Functions that may run anywhere
run where they are asked for; those with effects run on their devices' threads. What the changes of
thread alone cost is measured in turn with both: queues and a wake-up of the loop, nothing else.

All of that is done several times, beside more and fewer busy processes, since it is the machine and
its load that decide what a change of thread costs: what counts is the ratio of medians in each run.
Goal: at most 1.2 times the bare changes of thread in every run.
What others take for the same two steps (anchors.py): asyncio with executors, Dask, Ray.

And inside one subgraph: a chain of 20 elementwise nodes against the same calls written by hand with
``out=``. Goal: at most 1.10 times.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import plait as pl
import trio
from anchors import ask
from measure import alternate, quantiles, save
from plait.devices.memory import View, host_arena, host_view
from plait.devices.program import bind
from plait.graph.core.ir import Graph

ITEMS = 4_000
LOADS = (0, 1, 2, 4, 0)
"""How many other processes keep a core busy, in each run."""
GOAL = 1.2
CHAIN = 20
BLOCK = 200
SPIN = "while True: pass"


@pl.operator(name="bench.same")
def same(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the input: the least that a function can do."""
    return x


@pl.operator(name="bench.tap", effects=True)
def tap(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Do the same, on the thread of the device."""
    return x


def two_steps(function: Any) -> pl.Plan:
    builder = pl.GraphBuilder("two steps")
    h = builder.call(function, builder.input("x", "float32", (1,)), name="first")
    builder.output("y", builder.call(function, h, name="second"))
    return pl.plan(builder.build(), ["cpu", "cpu:1"], pin={"first": "cpu", "second": "cpu:1"})


async def latencies(items: int) -> dict[str, Any]:
    """Return quantiles in µs per step, one item at a time, and of the bare changes of thread."""
    inputs = {"x": np.ones(1, np.float32)}
    anywhere: list[float] = []
    on_lanes: list[float] = []
    threads: list[float] = []
    with Relay() as relay:
        async with pl.Session(two_steps(same)) as session, pl.Session(two_steps(tap)) as lanes:
            for _ in range(max(2, items // BLOCK)):
                await time_calls(lambda: session.run(inputs), anywhere)
                await time_calls(lambda: lanes.run(inputs), on_lanes)
                await time_calls(relay.call, threads)
    step, lane, bare = (quantiles(one[BLOCK:]) for one in (anywhere, on_lanes, threads))
    return {
        "step_us": step,
        "step_on_lanes_us": lane,
        "bare_threads_step_us": bare,
        "ratio": step["p50"] / bare["p50"],
        "ratio_on_lanes": lane["p50"] / bare["p50"],
    }


def beside(load: int, items: int) -> dict[str, Any]:
    """Return the latencies beside so many busy processes."""
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(load)]
    try:
        return {"busy_processes": load, **trio.run(latencies, items)}
    finally:
        for one in busy:
            one.kill()
            one.wait()


def spread(runs: list[dict[str, Any]], ratio: str) -> dict[str, float]:
    """Return the median ratio of the runs, the least, and the greatest."""
    found = [run[ratio] for run in runs]
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


async def time_calls(call: Callable[[], Awaitable[object]], per_step: list[float]) -> None:
    for _ in range(BLOCK):
        start = trio.current_time()
        await call()
        per_step.append((trio.current_time() - start) * 1e6 / 2)


class Relay:
    """Two threads and the loop, handing on a baton: the least that two lanes can cost."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._queues: tuple[SimpleQueue[Any], SimpleQueue[Any]] = SimpleQueue(), SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=pair)
            for pair in ((self._queues[0], self._queues[1].put), (self._queues[1], self._wake))
        ]

    def __enter__(self) -> Relay:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for queue, thread in zip(self._queues, self._threads, strict=True):
            queue.put(None)
            thread.join()

    async def call(self) -> None:
        """Send the baton round once."""
        reached = trio.Event()
        self._queues[0].put(reached)
        await reached.wait()

    def _wake(self, reached: trio.Event) -> None:
        self._token.run_sync_soon(reached.set)

    @staticmethod
    def _run(queue: SimpleQueue[Any], hand_on: Callable[[Any], object]) -> None:
        while (baton := queue.get()) is not None:
            hand_on(baton)


def chain(size: int) -> Graph:
    builder = pl.GraphBuilder("chain")
    last = x = builder.input("x", "float32", (size,))
    for index in range(CHAIN):
        last = builder.op("Add", last, x) if index % 2 else builder.op("Relu", last)
    builder.output("y", last)
    return builder.build()


def against_numpy(size: int) -> dict[str, float]:
    """Return seconds for a chain as a program and by hand, on the same amount of memory."""
    graph = chain(size)
    views: dict[str, View] = {
        name: host_view(host_arena(spec.nbytes), 0, spec) for name, spec in graph.tensors.items()
    }
    program = bind(np, "cpu", graph, views, {})
    arrays = [views[node.outputs[0]].array for node in graph.nodes]
    x = views["x"].array

    def by_hand() -> None:
        last = x
        for index, array in enumerate(arrays):
            if index % 2:
                np.add(last, x, out=array)
            else:
                np.maximum(last, 0, out=array)
            last = array

    return alternate({"plait": program, "numpy": by_hand}, rounds=15)


def main() -> None:
    items = int(sys.argv[1]) if len(sys.argv) > 1 else ITEMS
    runs = [beside(load, items) for load in LOADS]
    ratios = {ratio: spread(runs, ratio) for ratio in ("ratio", "ratio_on_lanes")}
    figures: dict[str, Any] = {"goal": GOAL, "items": items, **ratios, "runs": runs}
    for size in (16, 1_000, 100_000):
        seconds = against_numpy(size)
        figures[f"chain of {CHAIN} over {size} floats"] = {
            "plait_us": seconds["plait"] * 1e6,
            "numpy_us": seconds["numpy"] * 1e6,
            "ratio": seconds["plait"] / seconds["numpy"],
        }
    figures["others_step_us"] = ask("steps", max(100, items // 10))
    save("step_overhead", figures)


if __name__ == "__main__":
    main()
