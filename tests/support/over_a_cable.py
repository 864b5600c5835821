"""The part of a driver on the near one of two hosts; prints what came of it as JSON.

``over_a_cable.py ADDRESS devices`` or ``ADDRESS replicas``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import trio
from plait.graph.values.tensor import Array

SHAPE = 512, 512
"""1 MB of float32."""


MEAN = np.full((SHAPE[1], SHAPE[1]), 1 / SHAPE[1], "float32")


def graph(means: int = 0) -> pl.Graph:
    """Return the graph y = 3 x - 1, after means of rows, which take some milliseconds each."""
    b = pl.GraphBuilder("cable")
    x = b.input("x", "float32", SHAPE)
    for _ in range(means):
        x = b.op("MatMul", x, MEAN)
    h = b.op("Mul", x, 3.0, name="first")
    b.output("y", b.op("Sub", h, 1.0, name="second"))
    return b.build()


def feeds(count: int) -> Iterator[dict[str, Array]]:
    for number in range(count):
        yield {"x": np.full(SHAPE, number, "float32")}


def cut() -> None:
    """Pull the cable out at this end."""
    subprocess.run(["ip", "link", "set", "cable-near", "down"], check=True)


async def devices(cluster: pl.ray.Cluster) -> dict[str, Any]:
    """Stream over the cable in both directions; then it is cut in the middle of another stream."""
    far, here = "ray:far/cpu", ["ray:far/cpu", "cpu"]
    plan = pl.plan(graph(), here, pin={"first": far, "second": "cpu"}, max_in_flight=4)
    policy = pl.FaultPolicy(standby=False, replays=0)
    wrong, late, lost = 0, 0, 0
    async with pl.Session(plan, faults=policy) as session:
        async with session.stream(feeds(100), max_in_flight=4) as results:
            started = time.perf_counter()
            async for item in results:
                wrong += bool((item["y"] != 3 * item.index - 1).any())
            seconds = time.perf_counter() - started
        async with session.stream(feeds(24), max_in_flight=4, deadline_s=1.0) as results:
            async for item in results:
                if item.index == 8:
                    cut()
                late += isinstance(item.error, pl.DeadlineError)
                lost += isinstance(item.error, pl.DeviceLostError)
    return {"wrong": wrong, "seconds": seconds, "late": late, "lost": lost}


async def replicas(cluster: pl.ray.Cluster) -> dict[str, Any]:
    """The cable is cut in the middle of a stream; what was beyond it is run again on this side."""
    plan = pl.plan(graph(means=4), ["cpu"], max_in_flight=2)
    found: list[int] = []
    gap_s = 0.0
    (far,) = (
        node["id"] for node in cluster.engine.nodes() if node["labels"]["plait-host"] == "far"
    )
    under_way = 0

    async with cluster.replicas(plan, n=2) as pool:
        while not all(one.ready for one in pool.status().replicas.values()):
            await pool.run(next(feeds(1)))
        nodes = {one.node for one in pool.status().replicas.values()}
        async with pool.stream(feeds(120), max_in_flight=8) as results:
            last = time.perf_counter()
            async for item in results:
                there = (one for one in pool.status().replicas.values() if one.node == far)
                if item.index >= 20 and not under_way and (under_way := next(there).under_way):
                    cut()
                gap_s = max(gap_s, time.perf_counter() - last)
                last = time.perf_counter()
                if item.error is None and (item["y"] == 3 * item.index - 1).all():
                    found.append(item.index)
    in_order = found == list(range(120))
    return {"nodes": len(nodes), "beyond": under_way, "in order": in_order, "gap_s": gap_s}


def main() -> None:
    address, what = sys.argv[1:]
    with pl.ray.cluster(address, silence_s=5.0, start_timeout_s=120.0) as cluster:
        found = trio.run({"devices": devices, "replicas": replicas}[what], cluster)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
