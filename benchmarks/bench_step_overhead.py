"""How much does a step cost beyond the work in it?

Two trivial Python functions on two devices of this process. From admission to result there are two
steps, three changes of thread (loop to lane, lane to lane, lane to loop) and the feeding and
fetching of an array. What the changes of thread alone cost on this machine is measured in turn with
it: queues and a wake-up of the loop, nothing else. One item at a time gives the latency of a step,
a stream the cost of a step when the lanes are never idle.
Goal: at most 17 µs a step at the median and 62 µs at the 99th percentile, over 100,000 items.
What others take for the same two steps (anchors.py): asyncio with executors, Dask, Ray.

And inside one subgraph: a chain of 20 elementwise nodes against the same calls written by hand with
``out=``. Goal: at most 1.10 times.
"""

from __future__ import annotations

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
from plait.graph.ir import Graph

ITEMS = 100_000
CHAIN = 20
BLOCK = 1000


@pl.operator(name="bench.same")
def same(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the input: the least that a function can do."""
    return x


def two_steps() -> pl.Plan:
    builder = pl.GraphBuilder("two steps")
    h = builder.call(same, builder.input("x", "float32", (1,)), name="first")
    builder.output("y", builder.call(same, h, name="second"))
    return pl.plan(builder.build(), ["cpu", "cpu:1"], pin={"first": "cpu", "second": "cpu:1"})


async def latencies(items: int) -> dict[str, Any]:
    """Return quantiles in µs per step, one item at a time, and of the bare changes of thread."""
    inputs = {"x": np.ones(1, np.float32)}
    plait: list[float] = []
    threads: list[float] = []
    with Relay() as relay:
        async with pl.Session(two_steps()) as session:
            for _ in range(max(1, items // BLOCK)):
                await time_calls(lambda: session.run(inputs), plait)
                await time_calls(relay.call, threads)
            start = trio.current_time()
            async with session.stream([inputs] * items, max_in_flight=8) as results:
                async for _ in results:
                    pass
            streamed = (trio.current_time() - start) * 1e6 / items / 2
    return {
        "items": items,
        "step_us": quantiles(plait),
        "bare_threads_step_us": quantiles(threads),
        "streamed_step_us": streamed,
    }


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
    figures: dict[str, Any] = trio.run(latencies, items)
    for size in (16, 1_000, 100_000):
        seconds = against_numpy(size)
        figures[f"chain of {CHAIN} over {size} floats"] = {
            "plait_us": seconds["plait"] * 1e6,
            "numpy_us": seconds["numpy"] * 1e6,
            "ratio": seconds["plait"] / seconds["numpy"],
        }
    figures["others_step_us"] = ask("steps", max(100, items // 200))
    save("step_overhead", figures)


if __name__ == "__main__":
    main()
