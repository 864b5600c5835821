"""The simulated device: exact times, right results, faults on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import submit_from_threads
from hypothesis import given, settings
from patience import WAIT_S
from plait import devices
from plait.devices.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    KernelError,
)
from plait.devices.event import CancelledWorkError, Event
from plait.devices.sim.clock import RealClock, VirtualClock
from plait.devices.sim.device import POISON, Faults, SimDevice, SimModel
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Cost
from plait.graph.values.tensor import TensorSpec

from .rig import Rig, chain, evaluate, small_graphs, some_items

# One element per microsecond, four bytes per microsecond copied, launches and latencies of 1 µs.
MODEL = SimModel(
    flops_per_s=1e6,
    bytes_per_s=1e15,
    copy_bytes_per_s=4e6,
    copy_latency_s=1e-6,
    launch_s=1e-6,
)
US = 1_000


def sim(clock: VirtualClock | None = None, **figures: Any) -> SimDevice:
    return SimDevice("sim:test", replace(MODEL, **figures), clock or VirtualClock())


def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic_plus_the_launch() -> None:
    model = SimModel(flops_per_s=100, bytes_per_s=10, launch_s=1)
    assert model.kernel_s("Add", Cost(flops=1000, nbytes=10)) == 11
    assert model.kernel_s("Add", Cost(flops=10, nbytes=200)) == 21


def test_a_copy_takes_its_latency_and_its_bytes() -> None:
    assert SimModel(copy_latency_s=2, copy_bytes_per_s=8).copy_s(24) == 5


@pytest.mark.parametrize("figure", ["flops_per_s", "bytes_per_s", "copy_bytes_per_s"])
def test_a_speed_must_be_above_zero(figure: str) -> None:
    figures: dict[str, Any] = {figure: 0}
    with pytest.raises(DeviceError, match=f"{figure} is 0"):
        SimModel(**figures)


@pytest.mark.parametrize("figure", ["launch_s", "copy_latency_s", "memory_bytes"])
def test_a_time_or_size_must_not_be_below_zero(figure: str) -> None:
    figures: dict[str, Any] = {figure: -1}
    with pytest.raises(DeviceError, match=f"{figure} is -1"):
        SimModel(**figures)


def test_a_chain_takes_the_sum_of_its_parts() -> None:
    clock = VirtualClock()
    with Rig(sim(clock), chain("Relu", "Add", "Identity", n=4)) as rig:
        stream = rig.stream(some_items(rig.graph, 1))
        stream.results()
    (upload,), compute, (download,) = stream.uploaded[0], stream.computed[0], stream.downloaded[0]
    # 1 + 16/4 µs for each copy; three kernels of 1 + 4 µs, but Identity's cost is its own.
    identity = compute.ended_ns - compute.started_ns - 2 * 5 * US
    assert (upload.started_ns, upload.ended_ns) == (0, 5 * US)
    assert compute.started_ns == 5 * US
    assert 1 * US <= identity <= 5 * US
    assert download.started_ns == compute.ended_ns
    assert download.ended_ns == compute.ended_ns + 5 * US == clock.now_ns()


def test_copies_of_one_item_overlap_the_kernels_of_another() -> None:
    clock = VirtualClock()
    with Rig(sim(clock), chain("Relu", n=4)) as rig:
        specs = {"x": TensorSpec("float32", (4,))}
        elsewhere = rig.device.arena(rig.device.name, 512)
        target = rig.device.view(elsewhere, 0, specs["x"])
        computed = rig.compute()
        copied = rig.device.copy(target, rig.host(specs)["x"])
        computed.wait()
        copied.wait()
        elsewhere.close()
    assert (computed.started_ns, computed.ended_ns) == (0, 5 * US)
    assert (copied.started_ns, copied.ended_ns) == (0, 5 * US)
    assert clock.now_ns() == 5 * US


def test_one_engine_does_one_thing_at_a_time() -> None:
    with Rig(sim(), chain("Relu", n=4)) as rig:
        first, second = rig.compute(), rig.compute()
        second.wait()
    assert second.started_ns == first.ended_ns == 5 * US


def test_a_pipeline_is_bound_by_its_slowest_engine() -> None:
    """Per item 5 µs up, 20 µs of kernels, 5 µs down: after the first, 20 µs each."""
    clock = VirtualClock()
    graph = chain("Relu", "Relu", "Relu", "Relu", n=4)
    device = sim(clock)
    with Rig(device, graph) as rig, Rig(device, graph) as other:
        for lane in (rig, other):  # two sets of buffers, so that copies need not wait
            lane.stream(some_items(graph, 1))
        rig.device.close()
    assert clock.now_ns() == 5 * US + 2 * 20 * US + 5 * US


def test_work_starts_no_earlier_than_it_is_submitted() -> None:
    clock = VirtualClock()
    with Rig(sim(clock), chain("Relu", n=4)) as rig:
        clock.advance(1e-3)
        event = rig.compute()
        event.wait()
    assert event.started_ns == 1_000_000


def test_nothing_happens_until_the_clock_moves() -> None:
    clock = VirtualClock()
    with Rig(sim(clock), chain("Relu", n=4)) as rig:
        event = rig.compute()
        assert not event.done
        clock.advance(4.999e-6)
        assert not event.done
        clock.advance(0.001e-6)
        assert event.done


@settings(max_examples=40)
@given(small_graphs())
def test_results_are_those_of_the_cpu_for_any_graph(graph: Graph) -> None:
    items = some_items(graph, 3)
    with Rig(sim(), graph) as rig:
        results = rig.stream(items).results()
    for item, result in zip(items, results, strict=True):
        for name, expected in evaluate(graph, item).items():
            np.testing.assert_array_equal(result[name], expected)


def test_the_same_work_gives_the_same_times() -> None:
    def times() -> list[int]:
        clock = VirtualClock()
        with Rig(sim(clock), chain("Relu", "Add", n=7)) as rig:
            stream = rig.stream(some_items(rig.graph, 5))
            stream.results()
        return [event.ended_ns for event in stream.computed] + [clock.now_ns()]

    assert times() == times()


def test_an_upload_that_does_not_wait_is_seen() -> None:
    """The kernel reads its input when the modelled work ends, so a bad plan gives bad results."""
    with Rig(sim(copy_latency_s=1e-3), chain("Relu", n=4)) as rig:
        given = rig.host({"x": rig.graph.tensors["x"]})
        fetched = rig.host({"y": rig.graph.tensors["y"]})
        given["x"].array[:] = 7
        rig.device.copy(rig.views["x"], given["x"])
        early = rig.compute()  # should have waited for the upload
        rig.device.copy(fetched["y"], rig.views["y"], [early]).wait()
    assert not np.array_equal(fetched["y"].array, np.full(4, 7))


def test_memory_is_poisoned_when_it_is_allocated() -> None:
    with Rig(sim(), chain("Relu", n=4)) as rig:
        fetched = rig.host({"x": rig.graph.tensors["x"]})
        rig.device.copy(fetched["x"], rig.views["x"]).wait()
    assert fetched["x"].array.tobytes() == bytes([POISON]) * 16


def test_memory_is_poisoned_when_it_is_freed() -> None:
    device = sim()
    device.open()
    arena = device.arena(device.name, 64)
    view = device.view(arena, 0, TensorSpec("uint8", (64,)))
    view.array[:] = 1
    arena.close()
    device.close()
    assert set(view.array) == {POISON}


def test_an_arena_over_the_modelled_memory_is_refused() -> None:
    device = sim(memory_bytes=1000)
    device.open()
    arena = device.arena(device.name, 600)
    with pytest.raises(DeviceMemoryError, match=r"cannot allocate 401 bytes .* 400 bytes are free"):
        device.arena(device.name, 401)
    arena.close()
    arena.close()  # closing twice gives nothing back twice
    device.arena(device.name, 1000).close()
    device.close()


def graph_with_constant() -> Graph:
    b = pl.GraphBuilder("biased")
    b.output("y", b.op("Add", b.input("x", "float32", (4,)), np.arange(4, dtype=np.float32)))
    return b.build()


def test_constants_lie_in_the_device_once_for_all_programs_and_go_with_the_last() -> None:
    graph = graph_with_constant()
    device = sim(memory_bytes=4096)
    with Rig(device, graph) as rig:
        free_bytes = 4096 - rig.arena.nbytes - 64  # the constant takes one cache line
        more: list[Any] = [device.compile(graph, rig.views) for _ in range(3)]
        device.arena(device.name, free_bytes).close()
        with pytest.raises(DeviceMemoryError):
            device.arena(device.name, free_bytes + 1)
        assert rig.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]
        more.clear()
    device.arena(device.name, 4096).close()


def test_a_program_waits_for_an_event_that_is_not_complete() -> None:
    clock = VirtualClock()
    with Rig(sim(clock), chain("Relu", n=4)) as rig:
        gate = Event()
        event = rig.compute([gate])
        clock.hasten(lambda: event.done)
        assert not event.done
        gate.ended_ns = 12 * US
        gate.complete()
        event.wait()
    assert event.started_ns == 12 * US


def test_a_program_does_not_run_when_what_it_waited_for_failed() -> None:
    failure = KernelError("upstream")
    with Rig(sim(), chain("Relu", n=4)) as rig:
        gate = Event()
        event = rig.compute([gate])
        after = rig.compute([event])
        gate.complete(failure)
        with pytest.raises(KernelError):
            after.wait()
        assert event.error is after.error is failure
        fetched = rig.host({"y": rig.graph.tensors["y"]})
        rig.device.copy(fetched["y"], rig.views["y"]).wait()
    assert set(fetched["y"].array.tobytes()) == {POISON}
    assert event.ended_ns == event.started_ns


def test_cancelled_work_is_skipped_and_takes_no_time() -> None:
    with Rig(sim(), chain("Relu", n=4)) as rig:
        first, second = rig.compute(), rig.compute()
        second.cancel()
        with pytest.raises(CancelledWorkError):
            second.wait()
        assert first.error is None
    assert second.ended_ns == second.started_ns == first.ended_ns


@pytest.mark.parametrize(
    ("model", "graph"),
    [
        (SimModel(launch_s=1e300), chain("Relu", n=4)),
        (SimModel(flops_per_s=5e-324), chain("Exp", n=4)),
        (SimModel(bytes_per_s=1e-300), chain("Relu", n=4)),
        (SimModel(operators={"Relu": 1e300}), chain("Relu", n=4)),
    ],
)
def test_a_program_longer_than_clocks_count_is_refused(model: SimModel, graph: Graph) -> None:
    with (
        pytest.raises(DeviceError, match=r"by the model of 'sim:a' a program .* takes") as caught,
        Rig(SimDevice("sim:a", model, VirtualClock()), graph),
    ):
        pass
    assert caught.value.fix


def test_measuring_gives_modelled_times_for_each_node() -> None:
    with Rig(sim(), chain("Relu", "Relu", n=4), measure=True) as rig:
        event = rig.compute()
        event.wait()
    assert event.node_ns == (5 * US, 5 * US)


def test_not_measuring_gives_no_times_for_nodes() -> None:
    with Rig(sim(), chain("Relu", n=4)) as rig:
        event = rig.compute()
        event.wait()
    assert event.node_ns is None


def test_a_faulty_node_fails_its_program_and_nothing_else() -> None:
    faults = Faults(fail_nodes={"relu1": ValueError("bit flip")})
    with Rig(sim(faults=faults), chain("Relu", "Relu", n=4)) as rig:
        event = rig.compute()
        with pytest.raises(KernelError, match="ValueError: bit flip") as raised:
            event.wait()
        assert "relu1" in str(raised.value)
        assert "'sim:test'" in str(raised.value)
        fetched = rig.host({"x": rig.graph.tensors["x"]})
        rig.device.copy(fetched["x"], rig.views["x"]).wait()


def test_a_fault_does_not_grow_its_traceback_with_each_run() -> None:
    error = ValueError("again")
    with Rig(sim(faults=Faults(fail_nodes={"relu0": error})), chain("Relu", n=4)) as rig:
        for _ in range(5):
            with pytest.raises(KernelError):
                rig.compute().wait()
    frames, tb = 0, error.__traceback__
    while tb is not None:
        frames, tb = frames + 1, tb.tb_next
    assert frames <= 3


def test_a_device_is_lost_after_so_many_submits_and_whole_again_when_reopened() -> None:
    with Rig(sim(faults=Faults(lost_after=2)), chain("Relu", n=4)) as rig:
        rig.compute().wait()
        held, last = rig.compute(), rig.compute()
        for event in (held, last, rig.compute()):
            with pytest.raises(DeviceLostError, match="'sim:test' is lost: a fault was injected"):
                event.wait()
        rig.device.close()
        rig.device.open()
        rig.compute().wait()


def test_a_device_can_be_lost_by_hand() -> None:
    device = sim()
    with Rig(device, chain("Relu", n=4)) as rig:
        device.lose("unplugged")
        with pytest.raises(DeviceLostError, match="unplugged"):
            rig.compute().wait()


def test_closing_moves_a_virtual_clock_until_all_work_is_done() -> None:
    clock = VirtualClock()
    rig = Rig(sim(clock), chain("Relu", n=4))
    stream = rig.stream(some_items(rig.graph, 3))
    rig.device.close()
    assert all(event.done for events in stream.downloaded for event in events)
    assert clock.now_ns() == stream.downloaded[-1][0].ended_ns
    rig.device.close()  # twice is allowed


def test_a_closed_device_refuses_work() -> None:
    rig = Rig(sim(), chain("Relu", n=4))
    rig.device.close()
    with pytest.raises(DeviceUnavailableError, match="'sim:test' is closed") as raised:
        rig.compute()
    assert raised.value.fix == "open it"


def test_callbacks_may_submit_more_work() -> None:
    with Rig(sim(), chain("Relu", n=4)) as rig:
        assert rig.program is not None
        program, chained = rig.program, list[Event]()
        rig.device.submit(program, (), lambda _: chained.append(rig.device.submit(program)))
        rig.device.close()
    assert [event.done for event in chained] == [True]


def test_the_model_says_which_operators_it_has() -> None:
    graph = chain("Relu", "Add")
    relu, add = graph.nodes
    named = sim(supports=frozenset({"Relu"}))
    asked = sim(supports=lambda node: node.name != "relu0")
    assert named.supports(relu, graph.call(relu)).ok
    assert named.supports(add, graph.call(add)) == (False, "'sim:test' is modelled without 'Add'")
    assert not asked.supports(relu, graph.call(relu)).ok
    assert asked.supports(add, graph.call(add)).ok


def test_python_functions_do_not_run_there() -> None:
    @pl.operator(name="test.sim.identity")
    def same(x: Any) -> Any:
        return x

    b = pl.GraphBuilder()
    b.output("y", b.call(same, b.input("x", "float32", (1,))))
    graph = b.build()
    node: Node = graph.nodes[0]
    assert not sim().supports(node, graph.call(node)).ok
    assert not sim().capabilities.runs_python


@pytest.fixture
def registered() -> Iterator[str]:
    devices.register("sim:registered", lambda name: SimDevice(name, clock=VirtualClock()))
    yield "sim:registered"
    devices.unregister("sim:registered")


def test_a_registered_model_is_found_by_name_and_passes_the_self_check(registered: str) -> None:
    status = devices.probe(registered)
    assert status.found, status.reason
    assert status.memory_bytes == SimModel().memory_bytes


def test_the_default_device_runs_on_the_real_clock() -> None:
    device = devices.find("sim:npu")
    assert isinstance(device, SimDevice)
    assert isinstance(device.clock, RealClock)
    with Rig(device, chain("Relu", "Add", n=4)) as rig:
        assert rig.run({"x": np.array([-1, 0, 1, 2], np.float32)})["y"].tolist() == [0, 0, 2, 4]
        event = rig.compute()
        event.wait(WAIT_S)
    assert event.ended_ns - event.started_ns >= 2 * round(SimModel().launch_s * 1e9)


def test_many_threads_may_submit() -> None:
    with Rig(SimDevice("sim:busy", SimModel(launch_s=0)), chain("Relu", n=4)) as rig:
        assert len(submit_from_threads(rig.compute, 50)) == 200
