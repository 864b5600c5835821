"""How fast are devices on other hosts, and how long is the gap when one dies?

A Ray cluster of a head and two nodes on this machine's loopback. Small items show what a call
costs, items of 1 MB what a byte costs, over one host and over two; a host is killed in the middle
of a stream. Baselines: a bare call of an actor, and the same graph on the ``cpu`` device.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import plait as pl
from measure import quantiles, save
from plait.graph.values.tensor import Array
from plait.scheduler.ray import Cluster, RayNode
from plait.scheduler.ray.actors import ActorPlacement, wait_result
from plait.scheduler.ray.host import Host

MB = 1 << 18
"""Elements of float32 in 1 MB."""

ITEMS = 200


def pipeline(n: int) -> pl.Graph:
    b = pl.GraphBuilder("pipeline")
    first = b.op("Mul", b.input("x", "float32", (n,)), 3.0, name="first")
    b.output("y", b.op("Relu", first, name="second"))
    return b.build()


def runs_ms(plan: pl.Plan, x: Array) -> dict[str, float]:
    """Return how long single runs take, in ms."""
    spent = []
    with pl.BlockingSession(plan) as session:
        for _ in range(ITEMS):
            start = time.perf_counter()
            session.run({"x": x})
            spent.append(1e3 * (time.perf_counter() - start))
    return quantiles(spent[ITEMS // 10 :])


def item_ms(plan: pl.Plan, x: Array, items: int = ITEMS) -> float:
    """Return how long an item of a stream takes, in ms, the first ones left out."""
    source = ({"x": x} for _ in range(items))
    with pl.BlockingSession(plan) as session, session.stream(source) as results:
        moments = [time.perf_counter() for _ in results]
    skipped = items // 10
    return 1e3 * (moments[-1] - moments[skipped]) / (items - 1 - skipped)


def gap_s(cluster: Cluster) -> float:
    """Return for how long nothing comes when a host is killed in the middle of a stream."""
    host = cluster.host("enc", select={"gpu": "a"})
    plan = pl.plan(pipeline(1000), ["ray:enc/cpu"], max_in_flight=4)
    x = np.ones(1000, np.float32)

    def source() -> Iterator[dict[str, Array]]:
        for number in range(ITEMS):
            if number == ITEMS // 2 and host.pid is not None:
                os.kill(host.pid, signal.SIGKILL)
            yield {"x": x}

    with pl.BlockingSession(plan) as session, session.stream(source()) as results:
        moments = [time.perf_counter() for _ in results]
    assert len(moments) == ITEMS
    return max(after - before for before, after in pairwise(moments))


def call_ms(cluster: Cluster) -> dict[str, float]:
    """Return how long a bare call takes, in ms."""
    actor = cluster.start(Host, "bare", placing=ActorPlacement({"gpu": "a"}))
    wait_result(actor.call("hello"))
    spent = []
    for _ in range(ITEMS):
        start = time.perf_counter()
        wait_result(actor.call("clock_ns"))
        spent.append(1e3 * (time.perf_counter() - start))
    actor.kill()
    return quantiles(spent)


def main() -> None:
    small, large = np.ones(1000, np.float32), np.ones(MB, np.float32)
    start = time.perf_counter()
    with pl.ray.cluster("local", nodes=[RayNode({"gpu": "a"}), RayNode({"gpu": "b"})]) as cluster:
        figures: dict[str, object] = {"cluster_up_s": time.perf_counter() - start}
        cluster.host("enc", select={"gpu": "a"})
        cluster.host("dec", select={"gpu": "b"})
        start = time.perf_counter()
        plan = pl.plan(pipeline(1000), ["ray:enc/cpu"])
        figures["host_start_and_plan_s"] = time.perf_counter() - start
        figures["bare_call_ms"] = call_ms(cluster)
        figures["small_run_ms"] = runs_ms(plan, small)
        figures["small_run_on_cpu_ms"] = runs_ms(pl.plan(pipeline(1000), "cpu"), small)
        plan = pl.plan(pipeline(1000), ["ray:enc/cpu"], max_in_flight=8)
        figures["small_stream_ms"] = item_ms(plan, small, 5 * ITEMS)
        plan = pl.plan(pipeline(MB), ["ray:enc/cpu"], max_in_flight=4)
        figures["mb_stream_one_host_ms"] = item_ms(plan, large)
        pins = {"first": "ray:enc/cpu", "second": "ray:dec/cpu"}
        plan = pl.plan(pipeline(MB), list(pins.values()), pin=pins, max_in_flight=4)
        figures["mb_stream_two_hosts_ms"] = item_ms(plan, large)
        figures["gap_after_a_kill_s"] = gap_s(cluster)
    figures["load_average"] = os.getloadavg()[0]
    save("remote_devices", figures)


if __name__ == "__main__":
    main()
