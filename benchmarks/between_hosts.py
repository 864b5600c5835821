"""A driver's figures with the other host beyond a cable, as JSON: `bench_two_hosts.py` runs it.

``python between_hosts.py ADDRESS`` joins the cluster there, whose other node is called far.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import quantiles
from plait.graph.values.tensor import Array

Figures = dict[str, Any]

MB = 1 << 20
ROUNDS = 7
FAR = "ray:far/cpu"
WARM = 60
"""Items of each round before anything counts: Ray starts spare processes meanwhile."""


def scaled(nbytes: int) -> pl.Graph:
    """Return the graph y = 3 x, for one float32 array, and the sum of y."""
    b = pl.GraphBuilder("scaled")
    y = b.op("Mul", b.input("x", "float32", (nbytes // 4,)), 3.0)
    b.output("y", y)
    b.output("sum", b.op("ReduceMean", y, keepdims=False))
    return b.build()


def feeds(count: int, nbytes: int) -> Iterator[dict[str, Array]]:
    arrays = [np.full(nbytes // 4, number, "float32") for number in range(8)]
    return ({"x": arrays[number % 8]} for number in range(count))


async def lone_items(count: int) -> Figures:
    """Run items of 64 bytes one after the other, awaiting each."""
    (fed,) = feeds(1, 64)
    taken = []
    async with pl.Session(pl.plan(scaled(64), [FAR])) as session:
        for _ in range(count):
            started = time.perf_counter()
            await session.run(fed)
            taken.append(1e3 * (time.perf_counter() - started))
    return quantiles(taken[20:])


async def streamed(open_stream: Callable[..., Any], fetches: str, count: int) -> Figures:
    """Stream items of 1 MB, four in flight; results have 1 MB too, or four bytes."""
    rounds, cpu_s, wrong = [], [], 0
    for _ in range(ROUNDS):
        started, cpu = time.perf_counter(), time.process_time()
        async with open_stream(feeds(count, MB), max_in_flight=4, fetches=fetches) as results:
            async for item in results:
                wrong += bool(np.any(item[fetches] != 3 * (item.index % 8)))
        rounds.append((time.perf_counter() - started) / count)
        cpu_s.append((time.process_time() - cpu) / count)
    return {
        "ms_per_item": 1e3 * statistics.median(rounds),
        "driver_cpu_ms_per_item": 1e3 * statistics.median(cpu_s),
        "wrong": wrong,
    }


async def measured(cluster: pl.ray.Cluster) -> Figures:
    found: Figures = {"lone item, ms": await lone_items(300)}
    async with pl.Session(pl.plan(scaled(MB), [FAR], max_in_flight=4)) as session:
        await streamed(session.stream, "y", WARM)
        for fetches, name in (("sum", "there"), ("y", "there and back")):
            found[f"device: 1 MB {name}"] = await streamed(session.stream, fetches, 50)
    plan = pl.plan(scaled(MB), ["cpu"], max_in_flight=2)
    async with cluster.replicas(plan, select={"plait-host": "far"}) as pool:
        await streamed(pool.stream, "y", WARM)
        for fetches, name in (("sum", "there"), ("y", "there and back")):
            found[f"replica: 1 MB {name}"] = await streamed(pool.stream, fetches, 50)
    return found


def main() -> None:
    with pl.ray.cluster(sys.argv[1]) as cluster:
        print(json.dumps(trio.run(measured, cluster)))


if __name__ == "__main__":
    main()
