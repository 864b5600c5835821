from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from patience import WAIT_S
from plait.devices.cpu import CpuDevice
from plait.devices.device import Program
from plait.devices.errors import DeviceMemoryError, DeviceUnavailableError, KernelError
from plait.devices.event import Event
from plait.devices.host import read_physical_memory
from plait.devices.memory import HOST, SHARED, SharedArena, View
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.ir import Graph
from plait.graph.functions.python import operator
from plait.graph.values.tensor import Array, TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")

SPEC = TensorSpec("float32", (3,))


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    made = CpuDevice("cpu")
    made.open()
    yield made
    made.close()


def relu_graph() -> Graph:
    b = GraphBuilder("g")
    b.output("y", b.op("Relu", b.input("x", "float32", (3,)), name="relu"))
    return b.build()


def place(device: CpuDevice, graph: Graph, memory: str = HOST) -> dict[str, View]:
    arena = device.arena(memory, 64 * len(graph.tensors))
    return {
        name: device.view(arena, 64 * index, spec)
        for index, (name, spec) in enumerate(graph.tensors.items())
    }


def failing_program(device: CpuDevice) -> Program:
    @operator(SPEC, name="test.fail")
    def fail(x: Array) -> Array:
        raise LookupError("no such thing")

    b = GraphBuilder("g")
    b.output("y", b.call(fail, b.input("x", "float32", (3,))))
    graph = b.build()
    return device.compile(graph, place(device, graph))


def test_it_accesses_host_and_shared_memory_and_runs_python() -> None:
    capabilities = CpuDevice().capabilities
    assert capabilities.accesses == {HOST, SHARED}
    assert (capabilities.memory, capabilities.runs_python) == (HOST, True)
    assert not capabilities.native_waits


def test_it_knows_how_much_memory_the_machine_has() -> None:
    assert CpuDevice().capabilities.memory_bytes == read_physical_memory()
    assert (read_physical_memory() or 2**60) > 2**26


def test_it_supports_what_has_a_kernel() -> None:
    graph = relu_graph()
    node = graph.nodes[0]
    assert CpuDevice().supports(node, graph.call(node)).ok


def test_its_kernels_say_what_scratch_they_need() -> None:
    graph = relu_graph()
    node = graph.nodes[0]
    assert CpuDevice().scratch(node, graph.call(node), graph.output_specs(node)) == ()


@pytest.mark.parametrize("memory", [HOST, SHARED])
def test_a_program_runs_in_either_memory(device: CpuDevice, memory: str) -> None:
    graph = relu_graph()
    views = place(device, graph, memory)
    views["x"].array[...] = [-1, 0, 1]
    device.submit(device.compile(graph, views)).wait(WAIT_S)
    assert views["y"].array.tolist() == [0, 0, 1]
    views["x"].arena.close()


def test_constants_are_used_where_they_lie(device: CpuDevice) -> None:
    b = GraphBuilder()
    b.output("y", b.op("Add", b.input("x", "float32", (3,)), np.ones(3, np.float32)))
    graph = b.build()
    views = place(device, graph)
    del views[graph.nodes[0].inputs[1]]
    device.submit(device.compile(graph, views)).wait(WAIT_S)
    assert views["y"].array.tolist() == [1, 1, 1]


def test_programs_and_copies_run_in_the_order_of_submission(device: CpuDevice) -> None:
    graph = relu_graph()
    views, elsewhere = place(device, graph), place(device, graph)
    elsewhere["x"].array[...] = [1, -2, 3]
    device.copy(views["x"], elsewhere["x"])
    device.submit(device.compile(graph, views))
    device.copy(elsewhere["y"], views["y"]).wait(WAIT_S)
    assert elsewhere["y"].array.tolist() == [1, 0, 3]


def test_submitting_never_blocks(device: CpuDevice) -> None:
    gate = threading.Event()

    @operator(SPEC, name="test.wait")
    def wait(x: Array) -> Array:
        gate.wait(WAIT_S)
        return x

    b = GraphBuilder()
    b.output("y", b.call(wait, b.input("x", "float32", (3,))))
    graph = b.build()
    program = device.compile(graph, place(device, graph))
    events = [device.submit(program) for _ in range(10)]
    assert not any(event.done for event in events)
    gate.set()
    events[-1].wait(WAIT_S)


def test_completion_is_told_on_the_device_s_thread(device: CpuDevice) -> None:
    told: list[str] = []
    gate = threading.Event()

    def on_done(event: Event) -> None:
        told.append(threading.current_thread().name)
        gate.set()

    graph = relu_graph()
    views = place(device, graph)
    device.submit(device.compile(graph, views), on_done=on_done)
    assert gate.wait(WAIT_S)
    gate.clear()
    device.copy(views["y"], views["x"], on_done=on_done)
    assert gate.wait(WAIT_S)
    assert told == ["plait-cpu", "plait-cpu"]


def test_a_failure_stays_with_its_event(device: CpuDevice) -> None:
    graph = relu_graph()
    program = device.compile(graph, place(device, graph))
    failed, after = device.submit(failing_program(device)), device.submit(program)
    after.wait(WAIT_S)
    with pytest.raises(KernelError, match="no such thing"):
        failed.wait(WAIT_S)


def test_a_measured_program_leaves_its_times_with_each_event(device: CpuDevice) -> None:
    graph = relu_graph()
    program = device.compile(graph, place(device, graph), measure=True)
    first, second = device.submit(program), device.submit(program)
    second.wait(WAIT_S)
    assert [event.node_ns is not None and len(event.node_ns) for event in (first, second)] == [1, 1]


def test_an_unmeasured_program_leaves_none(device: CpuDevice) -> None:
    graph = relu_graph()
    event = device.submit(device.compile(graph, place(device, graph)))
    event.wait(WAIT_S)
    assert event.node_ns is None


def test_too_large_an_arena_is_refused(device: CpuDevice) -> None:
    with pytest.raises(DeviceMemoryError):
        device.arena(HOST, 2**60)


def test_its_shared_arenas_can_be_mapped_by_others(device: CpuDevice) -> None:
    arena = device.arena(SHARED, 64)
    assert isinstance(arena, SharedArena)
    arena.close()


def test_a_closed_device_takes_no_work() -> None:
    device = CpuDevice()
    graph = relu_graph()
    program = device.compile(graph, place(device, graph))
    with pytest.raises(DeviceUnavailableError, match="lane 'plait-cpu' is closed"):
        device.submit(program)


def test_closing_finishes_what_is_queued(device: CpuDevice) -> None:
    graph = relu_graph()
    program = device.compile(graph, place(device, graph))
    events = [device.submit(program) for _ in range(20)]
    device.close()
    assert all(event.done for event in events)


def test_closing_twice_and_opening_again_is_allowed(device: CpuDevice) -> None:
    device.close()
    device.close()
    device.open()
    graph = relu_graph()
    device.submit(device.compile(graph, place(device, graph))).wait(WAIT_S)
