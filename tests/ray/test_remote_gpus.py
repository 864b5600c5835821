"""GPUs on hosts: copies to and from them, and messages, while they compute."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_cluster import FakeEngine
from fake_gpu import SEEDS
from overlapping_gpu import ITEMS, NAME, OverlappingGpu
from patience import WAIT_S
from plait import devices
from plait.devices.event import Event
from plait.devices.memory import View, host_arena, host_view
from plait.devices.registry import Factory
from plait.devices.worker.launch import module_path
from plait.devices.worker.modules import Source
from plait.graph.tensor import Array, TensorSpec
from plait.scheduler.ray import Cluster
from plait.scheduler.ray.actors import ActorPlacement
from plait.scheduler.ray.remote.device import RayDevice
from plait.scheduler.ray.remote.hosts import RemoteHost
from plait.scheduler.ray.remote.staging import Staging

N = 1000
SPEC = TensorSpec("float32", (N,))
AHEAD = 3
"""So many pieces of work of a kind are sent to a device before it is heard that one has ended."""


@pytest.fixture
def host() -> Iterator[RemoteHost]:
    engine = FakeEngine()
    made = RemoteHost("enc", engine, ActorPlacement(), start_s=WAIT_S)
    yield made
    made.close()
    engine.leave()


@pytest.fixture
def offer() -> Iterator[Any]:
    """Return what registers devices until the end of the test."""
    with ExitStack() as stack:

        def register(name: str, factory: Factory) -> None:
            devices.register(name, factory)
            stack.callback(devices.unregister, name)

        yield register


def relu() -> pl.Graph:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (N,)), name="relu"))
    return b.build()


def inputs(n: int) -> list[Array]:
    return [np.random.default_rng(seed).normal(size=N).astype("float32") for seed in range(n)]


def streamed(plan: pl.Plan, given: list[Array]) -> list[Array]:
    with pl.BlockingSession(plan) as session, session.stream({"x": x} for x in given) as results:
        return [item["y"].copy() for item in results]


def are_right(found: list[Array], given: list[Array]) -> bool:
    return len(found) == len(given) and all(
        np.array_equal(y, np.maximum(x, 0)) for y, x in zip(found, given, strict=True)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_right_in_any_order_of_streams(
    seed: int, host: RemoteHost, offer: Any
) -> None:
    double, given = CupyDouble(seed, devices=8), inputs(12)
    offer(NAME, double.device)
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=3)
    assert are_right(streamed(plan, given), given)
    assert double.gpu.pageable_copies == 0


def test_an_item_arrives_and_leaves_while_another_one_is_computed(
    host: RemoteHost, offer: Any
) -> None:
    """With two items in flight, item n + 1 comes once the result of item n - 1 is with the driver.

    All the while kernel n runs: it ends once input n + 1 is uploaded.
    """
    given = inputs(ITEMS)
    offer(NAME, OverlappingGpu().device)
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=2)
    assert are_right(streamed(plan, given), given)


def test_an_item_arrives_and_leaves_while_another_one_is_computed_on_a_host_of_ray(
    ray_cluster: Cluster,
) -> None:
    given = inputs(ITEMS)
    host = ray_cluster.host("gpu", select={"gpu": "a"})
    module = str(Path(__file__).with_name("gpu_on_host.py"))
    host.link().ask("import", module_path(), [tuple(Source("Relu", "gpu_on_host", module, ""))])
    plan = pl.plan(relu(), [f"ray:gpu/{NAME}"], max_in_flight=2)
    assert are_right(streamed(plan, given), given)
    host.close()


def test_several_items_are_queued_on_the_gpu(
    host: RemoteHost, offer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    double, given, queued = CupyDouble(devices=8), inputs(AHEAD), threading.Semaphore(0)
    offer(NAME, double.device)
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=AHEAD)
    record, found = double.gpu.record, list[Array]()

    def note(*arguments: Any) -> None:
        record(*arguments)
        queued.release()

    def take(session: pl.BlockingSession) -> None:
        with session.stream({"x": x} for x in given) as results:
            found.extend(item["y"].copy() for item in results)

    with pl.BlockingSession(plan) as session:
        monkeypatch.setattr(double.gpu, "record", note)
        taking = threading.Thread(target=take, args=(session,))
        with double.gpu.paused():
            taking.start()
            for _ in range(3 * AHEAD):  # behind each upload, kernel and download
                assert queued.acquire(timeout=WAIT_S)
            assert not found
        taking.join()
    assert are_right(found, given)


def test_gpus_of_one_host_copy_behind_each_others_events(host: RemoteHost, offer: Any) -> None:
    given = inputs(8)
    for seed in SEEDS:
        double = CupyDouble(seed, devices=8)
        with ExitStack() as stack:
            for name in ("cuda:6", NAME):
                devices.register(name, double.device)
                stack.callback(devices.unregister, name)
            first, second = RayDevice(host, "cuda:6"), RayDevice(host, NAME)
            b = pl.GraphBuilder("two")
            y = b.op("Relu", b.input("x", "float32", (N,)), name="first")
            b.output("y", b.op("Relu", y, name="second"))
            pins = {"first": first.name, "second": second.name}
            plan = pl.plan(b.build(), [first, second], pin=pins, max_in_flight=3)
            assert are_right(streamed(plan, given), given)


def test_what_is_written_waits_in_memory_of_its_own(host: RemoteHost, offer: Any) -> None:
    """Two inputs of one place, both queued before the first is uploaded."""
    double, given = CupyDouble(devices=8), inputs(2)
    offer(NAME, double.device)
    device = RayDevice(host, NAME)
    device.open()
    there = device.view(device.arena(device.name, SPEC.nbytes), 0, SPEC)
    before: list[Event] = []
    found = [here(np.zeros(N, "float32")) for _ in given]
    with double.gpu.paused():
        for x, y in zip(given, found, strict=True):
            before = [device.copy(there, here(x), before)]
            before = [device.copy(y, there, before)]
    before[0].wait(WAIT_S)
    device.close()
    assert all(np.array_equal(y.array, x) for x, y in zip(given, found, strict=True))


def test_what_was_read_stays_until_it_is_sent() -> None:
    double = CupyDouble()
    with closing(double.device()) as device:
        device.open()
        staging = Staging()
        first = staging.take(device, "y", SPEC)
        assert first.view.arena.buffer.ctypes.data in double.gpu.locked
        sent: list[pickle.PickleBuffer] = []
        pickle.dumps(first.lend(), protocol=5, buffer_callback=sent.append)
        gc.collect()
        second = staging.take(device, "y", SPEC)
        assert not np.shares_memory(first.view.array, second.view.array)
        sent.clear()
        gc.collect()
        assert staging.take(device, "y", SPEC).view is first.view


def test_a_kernel_that_fails_fails_its_item_alone(host: RemoteHost, offer: Any) -> None:
    """The download behind it is queued before the host looks at what the kernel says."""


def here(x: Array) -> View:
    view = host_view(host_arena(SPEC.nbytes), 0, SPEC)
    view.array[:] = x
    return view
