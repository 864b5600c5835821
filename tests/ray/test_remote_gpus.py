"""GPUs on hosts: copies to and from them, and messages, while they compute."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_cluster import FakeEngine
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from overlapping_gpu import ITEMS, NAME, OverlappingGpu
from patience import WAIT_S
from plait import devices
from plait.devices import Program
from plait.devices.codegen.pieces import Trap
from plait.devices.cuda.device import CudaDevice
from plait.devices.event import Event
from plait.devices.memory import View, host_arena, host_view
from plait.devices.registry import Factory
from plait.devices.streams.program import QueuedProgram, Traps
from plait.devices.worker.launch import list_module_path
from plait.devices.worker.modules import Source
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec
from plait.scheduler.ray import Cluster
from plait.scheduler.ray.actors import ActorPlacement
from plait.scheduler.ray.remote.device import RayDevice
from plait.scheduler.ray.remote.hosts import RemoteHost
from plait.scheduler.ray.remote.serving_work import Staging
from plait.scheduler.runtime.events import DeviceLost, SessionEvent
from virtual_streams import layered_graphs

Offer: TypeAlias = Callable[[str, Factory], None]

N = 1000
SPEC = TensorSpec("float32", (N,))
AHEAD = 3
"""So many pieces of work of a kind are sent to a device before it is heard that one has ended."""


@pytest.fixture
def offer() -> Iterator[Offer]:
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


def streamed(plan: pl.Plan, xs: list[Array]) -> list[Array]:
    with pl.BlockingSession(plan) as session, session.stream({"x": x} for x in xs) as results:
        return [item["y"].copy() for item in results]


def are_right(found: list[Array], xs: list[Array]) -> bool:
    return len(found) == len(xs) and all(
        np.array_equal(y, np.maximum(x, 0)) for y, x in zip(found, xs, strict=True)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_right_in_any_order_of_streams(
    seed: int, host: RemoteHost, offer: Offer
) -> None:
    double, xs = CupyDouble(seed, devices=8), inputs(12)
    offer(NAME, double.device)
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=3)
    assert are_right(streamed(plan, xs), xs)
    assert double.gpu.pageable_copies == 0


def test_an_item_arrives_and_leaves_while_another_one_is_computed(
    host: RemoteHost, offer: Offer
) -> None:
    """With two items in flight, item n + 1 comes once the result of item n - 1 is with the driver.

    All the while kernel n runs: it ends once input n + 1 is uploaded.
    """
    xs = inputs(ITEMS)
    offer(NAME, OverlappingGpu().device)
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=2)
    assert are_right(streamed(plan, xs), xs)


def test_an_item_arrives_and_leaves_while_another_one_is_computed_on_a_host_of_ray(
    ray_cluster: Cluster,
) -> None:
    xs = inputs(ITEMS)
    host = ray_cluster.host("gpu", select={"gpu": "a"})
    module = str(Path(__file__).with_name("gpu_on_host.py"))
    host.link().ask(
        "import", list_module_path(), [tuple(Source("Relu", "gpu_on_host", module, ""))]
    )
    plan = pl.plan(relu(), [f"ray:gpu/{NAME}"], max_in_flight=2)
    assert are_right(streamed(plan, xs), xs)
    host.close()


def test_several_items_are_queued_on_the_gpu(
    host: RemoteHost, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    double, xs, queued = CupyDouble(devices=8), inputs(AHEAD), threading.Semaphore(0)
    offer(NAME, double.device)
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=AHEAD)
    record, found = double.gpu.record, list[Array]()

    def note(*arguments: Any) -> None:
        record(*arguments)
        queued.release()

    def take(session: pl.BlockingSession) -> None:
        with session.stream({"x": x} for x in xs) as results:
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
    assert are_right(found, xs)


@settings(max_examples=30, deadline=None)
@given(layered_graphs(), st.integers(0, 15), st.integers(1, 4), st.data())
def test_graphs_over_devices_of_a_host_are_right_in_any_order_of_streams(
    graph: Graph, seed: int, in_flight: int, data: st.DataObject
) -> None:
    double, kinds = CupyDouble(seed, devices=8), ("cuda:6", NAME, "cpu", "sim:a")
    feeds = [
        {name: np.arange(64, dtype=np.int32) * (item + 2) - 9 for name in graph.inputs}
        for item in range(6)
    ]
    with ExitStack() as stack:
        for name in kinds[:2]:
            devices.register(name, double.device)
            stack.callback(devices.unregister, name)
        engine = FakeEngine()
        stack.callback(engine.leave)
        host = RemoteHost("enc", engine, ActorPlacement(), start_s=WAIT_S)
        stack.callback(host.close)
        there = [RayDevice(host, kind) for kind in kinds]
        places = st.sampled_from([*(device.name for device in there), there[1].name, "cpu"])
        pins = {node.name: data.draw(places) for node in graph.nodes}
        plan = pl.plan(graph, [*there, "cpu"], pin=pins, max_in_flight=in_flight)
        with pl.BlockingSession(plan) as session, session.stream(feeds) as results:
            for fed, item in zip(feeds, results, strict=True):
                for name, wanted in pl.run(graph, fed, ["cpu"]).items():
                    np.testing.assert_array_equal(item[name], wanted)
    assert double.gpu.pageable_copies == 0


def test_what_is_written_waits_in_memory_of_its_own(host: RemoteHost, offer: Offer) -> None:
    """Two inputs of one place, both queued before the first is uploaded."""
    double, xs = CupyDouble(devices=8), inputs(2)
    offer(NAME, double.device)
    device = RayDevice(host, NAME)
    device.open()
    there = device.view(device.arena(device.name, SPEC.nbytes), 0, SPEC)
    before: list[Event] = []
    found = [here(np.zeros(N, "float32")) for _ in xs]
    with double.gpu.paused():
        for x, y in zip(xs, found, strict=True):
            before = [device.copy(there, here(x), before)]
            before = [device.copy(y, there, before)]
    before[0].wait(WAIT_S)
    device.close()
    assert all(np.array_equal(y.array, x) for x, y in zip(xs, found, strict=True))


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


def test_memory_that_there_is_not_is_an_error_that_says_so() -> None:
    with pytest.raises(pl.DeviceMemoryError, match=f"cannot allocate {1 << 62} bytes"):
        Staging().take(pl.device("cpu"), "y", TensorSpec("float32", (1 << 60,)))


def test_a_kernel_that_fails_fails_its_item_alone(host: RemoteHost, offer: Offer) -> None:
    """What follows is queued, and runs, before the host looks at what the kernel says."""
    double, xs, run = CupyDouble(devices=8), inputs(6), itertools.count()
    offer(NAME, lambda name: _FailingDevice(name, double, run))
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=3)
    found, errors = list[Array](), dict[int, BaseException]()
    with pl.BlockingSession(plan) as session, session.stream({"x": x} for x in xs) as results:
        for item in results:
            if item.error is None:
                found.append(item["y"].copy())
            else:
                errors[item.index] = item.error
    assert are_right(found, xs[:2] + xs[3:])
    assert list(errors) == [2]
    assert isinstance(errors[2], pl.KernelError)
    assert errors[2].what == "index 9 is outside"
    assert "'ray:enc/cuda:7'" in str(errors[2].at)


def test_a_host_whose_gpu_breaks_is_replaced_and_nothing_is_lost(
    host: RemoteHost, engine: FakeEngine, offer: Offer
) -> None:
    doubles, xs = [CupyDouble(devices=8), CupyDouble(devices=8)], inputs(12)
    offer(NAME, lambda name: doubles[len(engine.actors) - 1].device(name))
    seen: list[SessionEvent] = []

    def source() -> Iterator[dict[str, Array]]:
        for index, x in enumerate(xs):
            if index == 4:
                doubles[0].gpu.break_next()
            yield {"x": x}

    plan, found = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=3), list[Array]()
    with pl.BlockingSession(plan, on_event=seen.append) as session:
        with session.stream(source()) as results:
            found.extend(item["y"].copy() for item in results)
    assert are_right(found, xs)
    lost = [str(one.error).splitlines()[0] for one in seen if isinstance(one, DeviceLost)]
    assert lost == [
        f"host 'enc' is lost: device '{NAME}' is lost: cudaErrorIllegalAddress: an illegal memory "
        "access was encountered"
    ]


def test_a_host_whose_gpu_broke_while_it_was_idle_is_replaced_by_who_opens_it(
    host: RemoteHost, engine: FakeEngine, offer: Offer
) -> None:
    doubles, xs = [CupyDouble(devices=8), CupyDouble(devices=8)], inputs(3)
    offer(NAME, lambda name: doubles[len(engine.actors) - 1].device(name))
    plan = pl.plan(relu(), [RayDevice(host, NAME)], max_in_flight=2)
    assert are_right(streamed(plan, xs), xs)
    doubles[0].gpu.break_next()
    with pytest.raises(pl.DeviceLostError):  # somebody else in its process
        pl.run(relu(), {"x": xs[0]}, [doubles[0].device("cuda:7")])
    assert are_right(streamed(plan, xs), xs)
    assert len(engine.actors) == 2


class _FailingDevice(CudaDevice):
    """In the third of all its runs a kernel leaves a word in its trap."""

    def __init__(self, name: str, double: CupyDouble, run: Iterator[int]) -> None:
        super().__init__(name, cupy=double, launch=double.launch, compiler=None)
        self._double, self._run = double, run

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        program = super().compile(subgraph, views, measure=measure)
        assert isinstance(program, QueuedProgram)
        words, launch = np.zeros(1, np.int64), program.run
        trap = Trap("", subgraph.nodes[0], "index {} is outside")
        program.traps = Traps(self.name, [trap], words, lambda: words.fill(0))

        def launched() -> None:
            launch()
            if next(self._run) == 2:
                stream = self._double.current.streams[-1]
                self._double.gpu.queue(stream, lambda: words.fill(9))

        program.run = launched  # type: ignore[assignment]
        return program


def here(x: Array) -> View:
    view = host_view(host_arena(SPEC.nbytes), 0, SPEC)
    view.array[:] = x
    return view
