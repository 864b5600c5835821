"""Remote devices on a real cluster: what only another process, or another node, can show."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.devices import probe
from plait.graph.values.tensor import Array
from plait.scheduler.ray import Cluster, RayNode
from plait.scheduler.ray.remote.hosts import RemoteHost
from plait.scheduler.runtime.events import DeviceLost, SessionEvent
from resources import held, left_since

from .remote_functions import die_once, divide, linger

MB = 1 << 18  # float32 elements


@pytest.fixture
def hosts(ray_cluster: Cluster) -> Iterator[tuple[RemoteHost, RemoteHost]]:
    """Two hosts, one on each of the labelled nodes."""
    enc = ray_cluster.host("enc", select={"gpu": "a"})
    dec = ray_cluster.host("dec", select={"gpu": "b"})
    yield enc, dec
    enc.close()
    dec.close()


def pipeline(n: int = 64) -> pl.Graph:
    b = pl.GraphBuilder("pipeline")
    x = b.input("x", "float32", (n,))
    first = b.op("Mul", x, 3.0, name="first")
    second = b.op("Relu", first, name="second")
    b.output("y", b.op("Add", second, 1.0, name="third"))
    return b.build()


def numbers(seed: int, n: int = 64) -> Array:
    return np.random.default_rng(seed).normal(size=n).astype("float32")


def right(x: Array) -> Array:
    return np.maximum(x * np.float32(3), 0) + np.float32(1)


def over_two(n: int = 64, **options: Any) -> pl.Plan:
    pins = {"first": "ray:enc/cpu", "*": "ray:dec/cpu"}
    return pl.plan(pipeline(n), ["ray:enc/cpu", "ray:dec/cpu"], pin=pins, **options)


def kill(host: RemoteHost) -> None:
    if host.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(host.pid, signal.SIGKILL)


@pytest.mark.usefixtures("hosts")
def test_a_graph_on_two_hosts_gives_the_bits_that_it_gives_here() -> None:
    plan = over_two()
    outputs = pl.run(plan, {"x": numbers(0)})
    assert np.array_equal(outputs["y"], pl.run(pipeline(), {"x": numbers(0)}, devices="cpu")["y"])
    assert "ray:enc/cpu: on host enc" in plan.report()


def test_a_host_that_nobody_declared_is_on_the_node_with_its_label(ray_cluster: Cluster) -> None:
    assert probe("ray:find/cpu").reason == "self-check passed"
    ray_cluster.host("find", select={"plait-host": "find"}).close()


@pytest.mark.extended
@pytest.mark.usefixtures("hosts")
def test_a_stream_of_a_thousand_large_items_is_whole_and_in_order() -> None:
    inputs = [numbers(seed, MB) for seed in range(4)]
    answers = [right(x) for x in inputs]
    plan = pl.plan(pipeline(MB), ["ray:enc/cpu"], max_in_flight=4)
    with pl.BlockingSession(plan) as session:
        source = ({"x": inputs[number % 4]} for number in range(1000))
        with session.stream(source) as results:
            wrong = sum(not np.array_equal(item["y"], answers[item.index % 4]) for item in results)
    assert wrong == 0


def test_a_host_that_is_killed_in_a_stream_costs_no_item(
    hosts: tuple[RemoteHost, RemoteHost],
) -> None:
    seen: list[SessionEvent] = []

    def source() -> Iterator[dict[str, Array]]:
        for seed in range(200):
            if seed == 50:
                kill(hosts[0])
            yield {"x": numbers(seed)}

    with pl.BlockingSession(over_two(max_in_flight=4), on_event=seen.append) as session:
        with session.stream(source()) as results:
            found = [item["y"].copy() for item in results]
    assert len(found) == 200
    assert all(np.array_equal(y, right(numbers(seed))) for seed, y in enumerate(found))
    counts = Counter(type(event).__name__ for event in seen)
    assert (counts["DeviceLost"], counts["ItemDone"]) == (1, 200)


@pytest.mark.extended
def test_a_node_that_is_removed_is_stood_in_for_until_another_joins(
    ray_cluster: Cluster,
) -> None:
    number = ray_cluster.add_node(RayNode({"gpu": "c"}))
    host = ray_cluster.host("third", select={"gpu": "c"})
    pins = {"first": "ray:third/cpu"}
    plan = pl.plan(pipeline(), ["ray:third/cpu", "cpu"], pin=pins, max_in_flight=2)
    lost = threading.Event()

    def note(event: SessionEvent) -> None:
        if isinstance(event, DeviceLost):
            lost.set()

    with pl.BlockingSession(plan, on_event=note) as session:
        assert np.array_equal(session.run({"x": numbers(0)})["y"], right(numbers(0)))
        ray_cluster.remove_node(number)
        assert np.array_equal(session.run({"x": numbers(1)})["y"], right(numbers(1)))
        assert lost.wait(WAIT_S)
        ray_cluster.add_node(RayNode({"gpu": "c"}))
        deadline = time.monotonic() + WAIT_S
        while host.pid is None and time.monotonic() < deadline:
            session.run({"x": numbers(2)})
        assert np.array_equal(session.run({"x": numbers(3)})["y"], right(numbers(3)))
    assert host.pid is not None
    host.close()


def test_what_a_function_raises_arrives_as_what_it_is(
    hosts: tuple[RemoteHost, RemoteHost],
) -> None:
    b = pl.GraphBuilder("failing")
    b.output("y", b.call(divide, b.input("x", "float32", (2,)), name="division"))
    plan = pl.plan(b.build(), ["ray:enc/cpu"])
    with pytest.raises(pl.KernelError, match="nothing to divide by") as raised:
        pl.run(plan, {"x": np.zeros(2, "float32")})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value.at is not None
    assert "'division'" in raised.value.at
    assert "'ray:enc/cpu'" in raised.value.at


def test_a_deadline_ends_an_item_and_the_session_goes_on(
    hosts: tuple[RemoteHost, RemoteHost],
) -> None:
    b = pl.GraphBuilder("slow")
    t = b.input("x", "float32", (1,))
    for index in range(20):
        t = b.call(linger, t, name=f"part{index}")
    b.output("y", t)
    plan = pl.plan(b.build(), ["ray:enc/cpu"])
    with pl.BlockingSession(plan) as session:
        pid = hosts[0].pid
        with pytest.raises(pl.DeadlineError):
            session.run({"x": np.full(1, 0.2, "float32")}, deadline_s=0.1)
        assert session.run({"x": np.zeros(1, "float32")})["y"].tolist() == [0]
    assert hosts[0].pid == pid, "it was stopped between two nodes, not killed"


def test_a_host_that_dies_between_items_is_started_again(
    hosts: tuple[RemoteHost, RemoteHost],
) -> None:
    before: Counter[str] = Counter()
    with pl.BlockingSession(pl.plan(pipeline(), ["ray:dec/cpu"])) as session:
        for number in range(3):
            assert np.array_equal(session.run({"x": numbers(1)})["y"], right(numbers(1)))
            if number == 1:
                gc.collect()
                before = held()
            if number < 2:
                kill(hosts[1])
    left = {name: n for name, n in left_since(before).items() if "plait" in name}
    assert left == {}


@pytest.mark.usefixtures("hosts")
def test_a_host_whose_worker_dies_is_started_again(tmp_path: Path) -> None:
    b = pl.GraphBuilder("dying")
    b.output("y", b.call(die_once, b.input("x", "float32", (2,)), path=str(tmp_path / "died")))
    plan = pl.plan(b.build(), ["ray:enc/worker:0"])
    seen: list[SessionEvent] = []
    with pl.BlockingSession(plan, on_event=seen.append) as session:
        assert session.run({"x": np.ones(2, "float32")})["y"].tolist() == [1, 1]
    lost = [str(one.error).splitlines()[0] for one in seen if isinstance(one, DeviceLost)]
    assert lost == ["host 'enc' is lost: worker:0 died: exited with status 3"]


async def test_a_cluster_is_entered_once_and_its_nodes_are_known(ray_cluster: Cluster) -> None:
    with pytest.raises(pl.DeviceUnavailableError, match="joined already"):
        async with ray_cluster:
            pass
    labels = [node["labels"].get("gpu") for node in ray_cluster.engine.nodes()]
    assert {"a", "b"} <= set(labels)
