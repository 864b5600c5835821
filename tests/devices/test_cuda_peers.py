"""Copies between GPUs, on two that do not exist and whose memories are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from cupy_double import CupyDouble, Stream
from fake_cuda_errors import CUDARuntimeError
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices import Device
from plait.devices.cuda.device import CudaDevice
from plait.devices.errors import DeviceLostError
from plait.devices.event import Event
from plait.devices.memory import View, host_arena
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec
from plait.scheduler.plans.placement import Transfer
from virtual_streams import layered_graphs

from .rig import chain

FLOATS = TensorSpec("float32", (4,))
NAMES = "cuda:0", "cuda:1"
SPLIT = {"relu0": "cuda:0", "add1": "cuda:1"}


class Pair:
    """Two GPUs: the first computes, the second copies that and computes on; the host fetches."""

    def __init__(self, double: CupyDouble) -> None:
        self.devices = [double.device(name) for name in NAMES]
        self.views: list[Mapping[str, View]] = []
        self.programs = []
        for device, op in zip(self.devices, ("Relu", "Add"), strict=True):
            device.open()
            arena = device.arena(device.name, 1024)
            views = {"x": device.view(arena, 0, FLOATS), "y": device.view(arena, 512, FLOATS)}
            self.views.append(views)
            self.programs.append(device.compile(chain(op), views))
        there = self.views[0]["y"]
        self.result = self.devices[1].view(there.arena, there.offset, FLOATS)

    def item(self, x: Array, before: list[Event]) -> tuple[Array, list[Event]]:
        """Queue an item behind the events of the one before; return its result and events."""
        first, second = self.devices
        host = host_arena(1024)
        fed, fetched = first.view(host, 0, FLOATS), second.view(host, 512, FLOATS)
        fed.array[:] = x
        _, ran, crossed, ended, left = before or [Event()] * 5
        up = first.copy(self.views[0]["x"], fed, [ran] if before else [])
        ran = first.submit(self.programs[0], [up, *([crossed] if before else [])])
        crossed = second.copy(self.views[1]["x"], self.result, [ran, *([ended] if before else [])])
        ended = second.submit(self.programs[1], [crossed, *([left] if before else [])])
        left = second.copy(fetched, self.views[1]["y"], [ended])
        return fetched.array, [up, ran, crossed, ended, left]

    def close(self) -> None:
        for device in self.devices:
            device.close()


def agrees(double: CupyDouble, n_items: int = 3) -> bool:
    """Queue all items before any runs; True if all results are right."""
    pair = Pair(double)
    items = [np.arange(4, dtype=np.float32) - number for number in range(n_items)]
    events: list[Event] = []
    results = []
    with double.gpu.paused():
        for x in items:
            result, events = pair.item(x, events)
            results.append(result)
    events[-1].wait(WAIT_S)
    pair.close()
    return all(
        np.array_equal(result, 2 * np.maximum(x, 0))
        for result, x in zip(results, items, strict=True)
    )


@pytest.mark.parametrize("seed", range(len(SEEDS) + 8))
def test_what_is_copied_over_is_right_in_any_order_of_streams(seed: int) -> None:
    assert agrees(CupyDouble(seed, devices=2))


WAITS = {
    "the kernel for the upload": 0,
    "the copy for the kernel": 1,
    "the other kernel for the copy": 2,
    "the download for the other kernel": 3,
    "the next upload for the kernel": 4,
    "the next kernel for the copy": 6,
    "the next copy for the other kernel": 8,
    "the next other kernel for the download": 10,
}


@pytest.mark.slow
@pytest.mark.parametrize("number", WAITS.values(), ids=WAITS)
def test_each_single_wait_between_gpus_matters(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    waits: list[object] = []
    real = Stream.wait_event

    def wait_event(self: Stream, event: Any) -> None:
        waits.append(event)
        if len(waits) != number + 1:
            real(self, event)

    monkeypatch.setattr(Stream, "wait_event", wait_event)
    outcomes = []
    for seed in range(40):
        waits.clear()
        outcomes.append(agrees(CupyDouble(seed, devices=2), n_items=2))
        assert len(waits) == 12
    assert not all(outcomes)


def planned(graph: Graph, double: CupyDouble, pins: dict[str, str], in_flight: int) -> pl.Plan:
    devices: list[Device | str] = [*map(double.device, NAMES), "cpu"]
    return pl.plan(graph, devices, pin=pins, max_in_flight=in_flight)


async def results_of(
    plan: pl.Plan, double: CupyDouble, feeds: list[dict[str, Array]]
) -> list[Mapping[str, Array]]:
    """Run items at once; nothing runs before all is queued that can be."""
    found: dict[int, Mapping[str, Array]] = {}

    async with pl.Session(plan) as session:

        async def run(number: int) -> None:
            found[number] = await session.run(feeds[number])

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                with double.gpu.paused():
                    for number in range(len(feeds)):
                        nursery.start_soon(run, number)
                    await trio.testing.wait_all_tasks_blocked()
    return [found[number] for number in range(len(feeds))]


@settings(max_examples=25, deadline=None)
@given(layered_graphs(), st.integers(0, 15), st.integers(1, 3), st.data())
def test_a_graph_over_two_gpus_and_the_cpu_is_right_in_any_order(
    graph: Graph, seed: int, in_flight: int, data: st.DataObject
) -> None:
    double = CupyDouble(seed, devices=2)
    places = st.sampled_from([*NAMES, *NAMES, "cpu"])
    pins = {node.name: data.draw(places) for node in graph.nodes}
    feeds = [
        {name: np.arange(64, dtype=np.int32) * (item + 2) - 9 for name in graph.inputs}
        for item in range(in_flight)
    ]
    plan = planned(graph, double, pins, in_flight)
    for fed, found in zip(feeds, trio.run(results_of, plan, double, feeds), strict=True):
        for name, wanted in pl.run(graph, fed, ["cpu"]).items():
            np.testing.assert_array_equal(found[name], wanted)


def test_one_copy_leads_from_gpu_to_gpu() -> None:
    double = CupyDouble(devices=3)
    plan = planned(chain("Relu", "Add"), double, SPLIT, 1)
    moves = [step for step in plan.steps if isinstance(step.work, Transfer)]
    assert [(step.name.partition(": ")[2], step.device) for step in moves] == [
        ("host to cuda:0", "cuda:0"),
        ("cuda:0 to cuda:1", "cuda:1"),
        ("cuda:1 to host", "cuda:1"),
    ]


@pytest.mark.parametrize("direct", [True, False])
def test_the_report_says_how_copies_between_gpus_go(direct: bool) -> None:
    plan = planned(chain("Relu", "Add"), CupyDouble(devices=2, direct=direct), SPLIT, 1)
    way = "directly" if direct else "staged by the driver in host memory"
    assert f"cuda:0 to cuda:1, 16 bytes, {way}" in plan.report()
    assert "host to cuda:0, 16 bytes\n" in plan.report()


def test_access_is_opened_both_ways_and_only_between_gpus_in_use() -> None:
    """A third one would be given a context, which takes hundreds of megabytes."""
    double = CupyDouble(devices=3)
    assert agrees(double)
    assert sorted(double.accesses) == [(0, 1), (1, 0)]


def test_access_that_another_library_has_opened_is_fine() -> None:
    double = CupyDouble(devices=2)
    double.accesses.append((1, 0))
    assert agrees(double)


def test_gpus_without_access_to_each_other_copy_through_the_driver() -> None:
    double = CupyDouble(devices=2, direct=False)
    assert agrees(double)
    assert double.accesses == []


def test_a_gpu_that_is_alone_has_no_peers() -> None:
    assert CupyDouble().device().capabilities.copies_from == frozenset()
    assert CupyDouble(devices=3).device("cuda:1").capabilities.copies_from == {"cuda:0", "cuda:2"}


def test_an_error_that_opens_no_access_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    double = CupyDouble(devices=2)

    def refuse(peer: int) -> None:
        raise CUDARuntimeError(801)

    double.cuda.runtime.deviceEnablePeerAccess = refuse
    first, second = (double.device(name) for name in NAMES)
    for device in (first, second):
        device.open()
    with pytest.raises(pl.DeviceError, match="not supported"):
        second.view(first.arena("cuda:0", 512), 0, FLOATS)
    for device in (first, second):
        device.close()


def test_a_kernel_that_reads_another_gpus_memory_is_found_out() -> None:
    double = CupyDouble(devices=2)
    first, second = (double.device(name) for name in NAMES)
    for device in (first, second):
        device.open()
    arena = first.arena("cuda:0", 1024)
    views = {"x": second.view(arena, 0, FLOATS), "y": second.view(arena, 512, FLOATS)}
    program = second.compile(chain("Relu"), views)
    with pytest.raises(pl.DeviceError):
        second.submit(program).wait(WAIT_S)
    for device in (first, second):
        device.close()


def test_what_a_lost_gpu_should_have_made_is_not_copied() -> None:
    double = CupyDouble(devices=2)
    pair = Pair(double)
    with double.gpu.paused():
        double.gpu.break_next()
        _, events = pair.item(np.zeros(4, np.float32), [])
    for event in events[1:]:
        with pytest.raises(pl.DeviceError, match="lost"):
            event.wait(WAIT_S)
    pair.close()


def test_a_copy_fails_with_its_source_though_its_own_gpu_is_well() -> None:
    pair, made = Pair(CupyDouble(devices=2)), Event()
    copied = pair.devices[1].copy(pair.views[1]["x"], pair.result, [made])
    made.complete(DeviceLostError("device 'cuda:0' is lost"))
    with pytest.raises(DeviceLostError, match="'cuda:0' is lost"):
        copied.wait(WAIT_S)
    pair.close()


def test_copies_between_gpus_have_the_gpus_times_when_measured() -> None:
    double = CupyDouble(devices=2)
    plan = planned(chain("Relu", "Add"), double, SPLIT, 1)

    async def profile() -> pl.Profile:
        async with pl.Session(plan, measure=True) as session:
            for _ in range(3):
                await session.run({"x": np.zeros(4, np.float32)})
        return session.profile()

    found = trio.run(profile)
    links = pl.Costs.from_profile(found, plan).links
    assert ("cuda:0", "cuda:1") in links


def test_a_device_of_a_gpu_keeps_its_arenas_apart() -> None:
    double = CupyDouble(devices=2)
    device: CudaDevice = double.device("cuda:1")
    device.open()
    arena = device.arena("cuda:1", 512)
    assert double.gpu.memory(arena.buffer.ptr, 512, device=1)[1] == 0
    with pytest.raises(CUDARuntimeError, match="illegal"):
        double.gpu.memory(arena.buffer.ptr, 512, device=0)
    device.close()
