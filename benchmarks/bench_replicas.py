"""Replicas on a cluster on loopback: what does a trip cost, what do calls of several items save?

- One tiny item at a time: seconds from `run` until its result is there.
- Streams of tiny items: as pools deal them, and one item in each call; what of it the driver's CPU
  takes.
- Streams of items of 1 MB, 4 in flight, and as many as by default.
- A host is killed in the middle of a stream: how long until the next result, and is any result
  lost, wrong or there twice?
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import quantiles, save
from plait.graph.values.tensor import Array
from plait.scheduler.ray.cluster import Cluster
from plait.scheduler.ray.pools.replicas import ReplicaPool

Figures = dict[str, Any]

TINY, MB = 16, 1 << 18
ROUNDS = 5


def doubling(length: int) -> pl.Plan:
    b = pl.GraphBuilder("doubling")
    x = b.input("x", "float32", (length,))
    b.output("y", b.op("Add", x, x))
    return pl.plan(b.build())


async def one_by_one(pool: ReplicaPool, length: int, items: int) -> Figures:
    feeds = {"x": np.ones(length, np.float32)}
    seconds = []
    for _ in range(items):
        start = time.perf_counter()
        await pool.run(feeds)
        seconds.append(time.perf_counter() - start)
    return {
        f"{name}_ms": round(s * 1e3, 3) for name, s in quantiles(seconds[items // 10 :]).items()
    }


async def streamed(pool: ReplicaPool, length: int, items: int, **options: Any) -> Figures:
    """Return the medians of some rounds, for an item."""
    feeds = {"x": np.ones(length, np.float32)}
    wall, cpu = [], []
    for _ in range(ROUNDS):
        start, used = time.perf_counter(), time.process_time()
        async with pool.stream([feeds] * items, **options) as results:
            async for item in results:
                assert item["y"][0] == 2
        wall.append((time.perf_counter() - start) / items)
        cpu.append((time.process_time() - used) / items)
    return {
        "ms_per_item": round(statistics.median(wall) * 1e3, 3),
        "driver_cpu_ms_per_item": round(statistics.median(cpu) * 1e3, 3),
    }


async def killed(cluster: Cluster, items: int, n: int) -> Figures:
    """Kill a host when half of the results are there."""

    def source() -> Iterator[dict[str, Array]]:
        return ({"x": np.full(1000, value, np.float32)} for value in range(items))

    taken: list[float] = []
    moments = []
    async with (
        cluster.replicas(doubling(1000), n=n) as pool,
        pool.stream(source(), max_in_flight=8) as results,
    ):
        async for item in results:
            moments.append(time.perf_counter())
            taken.append(float(item["y"][0]))
            if item.index == items // 2:
                busiest = max(pool.status().replicas.values(), key=lambda one: one.under_way)
                os.kill(busiest.process, signal.SIGKILL)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    return {
        "items": items,
        "lost_wrong_or_doubled": sum(value != 2 * index for index, value in enumerate(taken))
        + abs(len(taken) - items),
        "longest_gap_s": round(max(gaps), 3),
        "median_gap_s": round(statistics.median(gaps), 5),
    }


async def measured(cluster: Cluster, items: int) -> Figures:
    found: Figures = {}
    for n in (1, 2):
        rows: Figures = {}
        start = time.perf_counter()
        async with cluster.replicas(doubling(TINY), n=n) as pool:
            rows["open_s"] = round(time.perf_counter() - start, 2)
            rows["run, tiny"] = await one_by_one(pool, TINY, items)
            rows["stream, tiny"] = await streamed(pool, TINY, items * 4)
        async with cluster.replicas(doubling(TINY), n=n, max_in_flight=1) as pool:
            rows["stream, tiny, one item in a call"] = await streamed(pool, TINY, items)
        async with cluster.replicas(doubling(MB), n=n) as pool:
            await streamed(pool, MB, 20)
            rows["stream, 1 MB, 4 in flight"] = await streamed(
                pool, MB, items // 4, max_in_flight=4
            )
            rows["stream, 1 MB"] = await streamed(pool, MB, items // 4)
        rows["a host is killed"] = await killed(cluster, items * 2, n)
        found[f"{n} replicas"] = rows
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=400)
    arguments = parser.parse_args()
    start = time.perf_counter()
    nodes = [pl.ray.RayNode({"gpu": "a"}), pl.ray.RayNode({"gpu": "b"})]
    with pl.ray.cluster("local", nodes=nodes) as cluster:
        up_s = round(time.perf_counter() - start, 2)
        found = trio.run(measured, cluster, arguments.items)
    save("replicas", {"load": os.getloadavg()[0], "cluster_up_s": up_s, **found})


if __name__ == "__main__":
    main()
