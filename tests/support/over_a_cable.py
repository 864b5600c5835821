"""The part of a driver on the near one of two hosts; prints what came of it as JSON.

``over_a_cable.py ADDRESS devices`` or ``ADDRESS replicas``, or ``ADDRESS shards FOLDER``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import killed_job
import numpy as np
import plait as pl
import trio
from patience import WAIT_S
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


class Watched:
    """A cluster that keeps the pool that a job has opened."""

    def __init__(self, cluster: pl.ray.Cluster) -> None:
        self.dump = cluster.dump
        self._open = cluster.blocking_replicas

    def blocking_replicas(self, *arguments: Any, **more: Any) -> pl.ray.BlockingReplicaPool:
        self.pool = self._open(*arguments, **more)
        return self.pool


def run_shards(cluster: pl.ray.Cluster, folder: Path) -> dict[str, Any]:
    """Run a job by shard, while the test ends a host that has a shard, and adds one."""
    b = pl.GraphBuilder("noise")
    x = b.input("x", "float32", (1, 64))
    b.output("y", b.op("Add", x, b.op("RandomUniformLike", x)))
    plan, watched = pl.plan(b.build()), Watched(cluster)
    items = [{"x": np.full(64, number, "float32")} for number in range(400)]
    make = partial(pl.Job, plan, items, "parquet", part_items=20, order="shard")
    nodes: list[set[str]] = []

    def is_whole() -> bool:
        every = [one for one in watched.pool.status().replicas.values() if one.ready]
        is_known = len(every) == 2 and all(one.process != lost for one in every)
        if is_known:
            nodes.append({one.node for one in every})
        return is_known

    def wait_for(reached: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not reached():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    lost = 0
    far = {one["labels"]["plait-host"]: one["id"] for one in cluster.engine.nodes()}["far"]

    def progress(done: int) -> None:
        nonlocal lost
        if done == 20:
            wait_for(is_whole)
        elif lost == 0 and done >= 60:
            (there,) = (one for one in watched.pool.status().replicas.values() if one.node == far)
            lost = there.process
            (folder / "kill").touch()
            wait_for((folder / "added").exists)
            wait_for(is_whole)

    job = make(folder / "there", cluster=watched, replicas={"n": 2})
    status = job.run(progress=progress)
    make(folder / "here").run()
    is_same = killed_job.read_files(folder / "there") == killed_job.read_files(folder / "here")
    return {"done": status.is_done, "same": is_same, "nodes": [len(one) for one in nodes]}


def main() -> None:
    address, what, *more = sys.argv[1:]
    with pl.ray.cluster(address, silence_s=5.0, start_timeout_s=120.0) as cluster:
        if what == "shards":
            found = run_shards(cluster, Path(*more))
        else:
            found = trio.run({"devices": devices, "replicas": replicas}[what], cluster)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
