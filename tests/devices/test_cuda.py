"""The CUDA device on a fake GPU that runs its streams in the worst order allowed."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import submit_from_threads
from cupy_double import CupyDouble, Stream
from cupy_double import Event as CupyEvent
from cupy_double import Graph as RecordedGraph
from fake_gpu import SEEDS, FakeGpu
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait import devices
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.parts import HELD_AT_MOST
from plait.devices.cuda.queues import CudaBackend
from plait.devices.errors import (
    DeviceMemoryError,
    DeviceUnavailableError,
)
from plait.devices.event import Event
from plait.devices.memory import host_arena
from plait.devices.streams.program import QueuedProgram
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Call
from plait.graph.values.tensor import TensorSpec

from .rig import Rig, chain, evaluate, place, small_graphs, some_items

FLOATS = TensorSpec("float32", (4,))


def agrees(graph: Graph, seed: int, n_items: int = 3) -> bool:
    """Stream items through the device, all submitted before any runs; True if all are right."""
    double, items = CupyDouble(seed), some_items(graph, n_items)
    with Rig(double.device(), graph) as rig:
        with double.gpu.paused():
            stream = rig.stream(items)
        results = stream.results()
    return all(
        np.array_equal(result[name], expected)
        for item, result in zip(items, results, strict=True)
        for name, expected in evaluate(graph, item).items()
    )


def test_asking_what_a_device_is_like_makes_no_context_on_it(double: CupyDouble) -> None:
    assert double.device().capabilities.memory_bytes == double.gpu.memory_bytes
    assert double.contexts == set()


@settings(max_examples=60)
@given(small_graphs(), st.sampled_from(SEEDS))
def test_results_are_those_of_the_cpu_in_any_order_of_streams(graph: Graph, seed: int) -> None:
    assert agrees(graph, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_right_with_threads_racing_as_they_like(seed: int) -> None:
    double, graph = CupyDouble(seed), chain("Relu", "Add", "Identity")
    items = some_items(graph, 20)
    with Rig(double.device(), graph) as rig:
        results = rig.stream(items).results()
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])
    assert double.gpu.pageable_copies == 0


def test_a_stream_that_does_not_wait_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "wait_event", lambda self, event: None)
    assert not all(agrees(chain("Relu"), seed) for seed in SEEDS)


WAITS = (
    "kernel 1 for upload 1",
    "download 1 for kernel 1",
    "upload 2 for kernel 1",
    "kernel 2 for upload 2",
    "kernel 2 for download 1",
    "download 2 for kernel 2",
)


@pytest.mark.parametrize("forgotten", WAITS)
def test_each_single_wait_matters(monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    called: list[str] = []
    real = Stream.wait_event

    def wait_event(self: Stream, event: Any) -> None:
        called.append(WAITS[len(called) % len(WAITS)])
        if called[-1] != forgotten:
            real(self, event)

    monkeypatch.setattr(Stream, "wait_event", wait_event)
    outcomes = [agrees(chain("Relu"), seed, n_items=2) for seed in SEEDS]
    assert len(called) == len(WAITS) * len(SEEDS)
    assert not all(outcomes)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_callback_sees_causes_before_effects(seed: int) -> None:
    double, order = CupyDouble(seed), list[str]()
    with Rig(double.device(), chain("Relu")) as rig:
        given, fetched = rig.host({"x": FLOATS}), rig.host({"y": FLOATS})
        device, program = rig.device, rig.program
        assert program is not None
        with double.gpu.paused():
            up = device.copy(rig.views["x"], given["x"], (), lambda _: order.append("up"))
            run = device.submit(program, [up], lambda _: order.append("run"))
            device.copy(fetched["y"], rig.views["y"], [run], lambda _: order.append("down"))
    assert order == ["up", "run", "down"]


def test_one_place_has_one_array(double: CupyDouble) -> None:
    """CuPy copies an input first that overlaps its output, unless they are the same object."""
    with Rig(double.device(), chain("Relu")) as rig:
        again = rig.device.view(rig.arena, rig.views["x"].offset, FLOATS)
        assert again.array is rig.views["x"].array
        other = rig.device.view(rig.arena, 0, TensorSpec("float32", (2, 2)))
        assert other.array is not rig.views["x"].array
        del again, other


def test_kernels_write_over_their_inputs_where_the_plan_says_so(double: CupyDouble) -> None:
    graph = chain("Relu", "Add")
    device = double.device()
    device.open()
    arena = device.arena("cuda:0", 512)
    views = {name: device.view(arena, 0, FLOATS) for name in graph.tensors}
    host = place(device, host := host_arena(1024), {"x": FLOATS, "y": FLOATS})
    host["x"].array[:] = [-1, 0, 1, 2]
    program = device.compile(graph, views)
    up = device.copy(views["x"], host["x"])
    done = device.submit(program, [up])
    device.copy(host["y"], views["y"], [done]).wait(WAIT_S)
    assert host["y"].array.tolist() == [0, 0, 2, 4]
    device.close()


def test_views_lie_on_512_bytes(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu")) as rig:
        assert rig.device.capabilities.alignment == 512
        with pytest.raises(DeviceMemoryError, match="alignment 512"):
            rig.device.view(rig.arena, 64, FLOATS)
        with pytest.raises(DeviceMemoryError, match="does not fit"):
            rig.device.view(rig.arena, 1024, FLOATS)


def test_empty_tensors_pass_through(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu", n=0)) as rig:
        assert rig.run({"x": np.empty(0, np.float32)})["y"].shape == (0,)


def test_capabilities_are_those_of_a_gpu(double: CupyDouble) -> None:
    capabilities = double.device().capabilities
    assert capabilities.memory == "cuda:0"
    assert capabilities.accesses == {"cuda:0"}
    assert capabilities.memory_bytes == double.gpu.memory_bytes
    assert capabilities.native_waits
    assert not capabilities.runs_python


def test_the_self_check_passes(double: CupyDouble) -> None:
    devices.register("cuda:7", lambda name: double.device(name))
    double.devices = 8
    try:
        status = devices.probe("cuda:7")
    finally:
        devices.unregister("cuda:7")
    assert status.found, status.reason
    assert status.memory_bytes == double.gpu.memory_bytes


def test_support_is_told_without_a_gpu_or_cupy() -> None:
    graph = chain("Relu")
    call = graph.call(graph.nodes[0])
    assert CudaDevice().supports(graph.nodes[0], call).ok
    wide = Call((TensorSpec("longdouble", (1,)),), (None,), {})
    support = CudaDevice().supports(graph.nodes[0], wide)
    assert (support.ok, support.reason) == (False, f"CuPy has no dtype {wide.spec(0).dtype.name!r}")


def test_strings_are_refused_rather_than_stumbled_over() -> None:
    graph = chain("Identity")
    strings = Call((TensorSpec("object", (1,)),), (None,), {})
    support = CudaDevice().supports(graph.nodes[0], strings)
    assert not support.ok
    assert "text goes to Python functions alone" in support.reason


def test_bfloat16_runs_where_kernels_are_generated_and_on_no_kernel_of_cupys() -> None:
    graph = chain("Relu", dtype="bfloat16")
    call = graph.call(graph.nodes[0])
    assert CudaDevice().supports(graph.nodes[0], call).ok
    support = CudaDevice(compiler=None).supports(graph.nodes[0], call)
    assert (support.ok, support.reason) == (False, "CuPy does not compute with 'bfloat16'")


def test_python_functions_do_not_run_there() -> None:
    @pl.operator(name="test.cuda.identity")
    def same(x: Any) -> Any:
        return x

    b = pl.GraphBuilder()
    b.output("y", b.call(same, b.input("x", "float32", (1,))))
    graph = b.build()
    assert not CudaDevice().supports(graph.nodes[0], graph.call(graph.nodes[0])).ok


def test_events_complete_on_threads_of_the_device(double: CupyDouble) -> None:
    names: list[str] = []
    with Rig(double.device(), chain("Relu")) as rig:
        host = rig.host({"x": FLOATS})["x"]
        assert rig.program is not None
        with double.gpu.paused():
            note = [lambda _: names.append(threading.current_thread().name)] * 3
            rig.device.submit(rig.program, (), note[0])
            up = rig.device.copy(rig.views["x"], host, (), note[1])
            rig.device.copy(host, rig.views["x"], [up], note[2])
            assert names == []
    assert sorted(names) == ["plait-cuda:0-compute", "plait-cuda:0-download", "plait-cuda:0-upload"]


def test_submitting_does_not_wait_for_the_gpu(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu")) as rig, double.gpu.paused():
        stream = rig.stream(some_items(rig.graph, 5))
        assert not any(event.done for event in stream.computed)


def test_closing_finishes_what_is_queued_and_ends_the_threads(double: CupyDouble) -> None:
    rig = Rig(double.device(), chain("Relu"))
    stream = rig.stream(some_items(rig.graph, 5))
    rig.device.close()
    assert all(event.done and event.error is None for event in stream.computed)
    assert not [t for t in threading.enumerate() if t.name.startswith("plait-cuda")]
    rig.device.close()  # twice is allowed
    with pytest.raises(DeviceUnavailableError, match="'cuda:0' is closed"):
        rig.compute()
    stream.computed.clear()


def test_closing_waits_for_what_callbacks_submit(double: CupyDouble) -> None:
    rig = Rig(double.device(), chain("Relu"))
    program, chained = rig.program, list[Event]()
    assert program is not None
    rig.device.submit(program, (), lambda _: chained.append(rig.device.submit(program)))
    rig.device.close()
    assert [event.done for event in chained] == [True]
    rig.program = None


def test_a_closed_device_opens_again(double: CupyDouble) -> None:
    device, graph = double.device(), chain("Relu")
    for _ in range(2):
        with Rig(device, graph) as rig:
            assert rig.run({"x": np.ones(4, np.float32)})["y"].tolist() == [1, 1, 1, 1]


def test_many_threads_may_submit(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu")) as rig:
        assert len(submit_from_threads(rig.compute, 25)) == 100


def test_measured_work_has_the_gpus_own_times(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu", "Add"), measure=True) as rig:
        with double.gpu.paused():
            stream = rig.stream(some_items(rig.graph, 1))
        stream.results()
    (up,), run, (down,) = stream.uploaded[0], stream.computed[0], stream.downloaded[0]
    assert 0 < up.started_ns < up.ended_ns < run.started_ns
    assert run.started_ns < run.ended_ns < down.started_ns < down.ended_ns
    assert run.node_ns is not None
    assert len(run.node_ns) == 2
    assert min(run.node_ns) > 0
    assert sum(run.node_ns) <= run.ended_ns - run.started_ns
    assert up.node_ns is None


def test_work_is_timed_by_the_gpu_while_a_program_measures_and_no_longer(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, record = list[bool](), CudaBackend.record

    def recorded(backend: CudaBackend, stream: Any, *, timed: bool) -> Any:
        asked.append(timed)
        return record(backend, stream, timed=timed)

    graph = chain("Relu")
    monkeypatch.setattr(CudaBackend, "record", recorded)
    (item,) = some_items(graph, 1)
    with Rig(double.device(), graph, measure=True) as rig:
        rig.run(item)
        assert set(asked) == {True}
        rig.program = rig.device.compile(graph, rig.views)
        gc.collect()
        asked.clear()
        rig.run(item)
        assert asked == [False] * 3  # one event each: of upload, kernel and download


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 1), (3, 2)])
def test_an_item_takes_a_copy_an_event_and_a_wait_for_each_tensor_and_one_graph(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch, inputs: int, outputs: int
) -> None:
    """Each call takes the host microseconds: a small item is bound by their number."""
    b = pl.GraphBuilder("several")
    total = reduce(add, [b.input(f"x{number}", "float32", (4,)) for number in range(inputs)])
    for number in range(outputs):
        b.output(f"y{number}", (total * float(number + 1)).softmax())
    calls = Counter[str]()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*given: Any) -> Any:
            calls[name] += 1
            return call(*given)

        return count

    monkeypatch.setattr(Stream, "wait_event", counted("wait", Stream.wait_event))
    monkeypatch.setattr(CupyEvent, "record", counted("record", CupyEvent.record))
    monkeypatch.setattr(RecordedGraph, "launch", counted("launch", RecordedGraph.launch))
    runtime = double.cuda.runtime
    runtime.memcpyAsync = counted("copy", runtime.memcpyAsync)
    (item,) = some_items(b.build(), 1)
    with Rig(double.generating(), b.build()) as rig:
        rig.run(item)
        calls.clear()
        with double.gpu.paused():
            stream = rig.stream([item])
        (result,) = stream.results()
    tensors = inputs + outputs
    assert calls == {"copy": tensors, "wait": tensors, "record": tensors + 1, "launch": 1}
    assert np.isclose(result["y0"].sum(), 1)


def test_work_that_is_not_measured_has_the_hosts_times(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu")) as rig:
        event = rig.compute()
        event.wait(WAIT_S)
    assert 0 < event.started_ns <= event.ended_ns
    assert event.node_ns is None


def test_an_old_anchor_is_replaced(double: CupyDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.devices.streams.backend.ANCHOR_S", 0.0)
    with Rig(double.device(), chain("Relu"), measure=True) as rig:
        events = [rig.compute() for _ in range(3)]
        for event in events:
            event.wait(WAIT_S)
    times = [t for event in events for t in (event.started_ns, event.ended_ns)]
    assert all(t > 0 for t in times)
    assert all(event.started_ns < event.ended_ns for event in events)


def test_the_steady_state_allocates_nothing_on_the_gpu(double: CupyDouble) -> None:
    with Rig(double.device(), chain("Relu", "Add", "Identity")) as rig:
        rig.compute().wait(WAIT_S)
        before = double.gpu._next_address
        for _ in range(10):
            rig.compute().wait(WAIT_S)
        assert double.gpu._next_address == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_measured_program_begins_once_all_of_it_is_queued(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a short kernel would be found to take as long as it takes to queue the next one."""
    double, graph = CupyDouble(seed), chain("Softmax", "Softmax", "Softmax", n=8)
    queued, begun = list[None](), list[int]()
    launch, run = FakeGpu.launch, FakeGpu._run_kernel

    def launched(gpu: FakeGpu, stream: int, kernel: Any) -> None:
        queued.append(None)
        launch(gpu, stream, kernel)
        device.poll()  # as fast as any GPU

    def counted(gpu: FakeGpu, kernel: Any) -> None:
        begun.append(len(queued))
        run(gpu, kernel)

    monkeypatch.setattr(FakeGpu, "launch", launched)
    monkeypatch.setattr(FakeGpu, "_run_kernel", counted)
    [item] = some_items(graph, 1)
    device = double.generating()
    with Rig(device, graph, measure=True) as rig:
        rig.run(item)  # which loads the kernels
        del queued[:], begun[:]
        result = rig.run(item)
    np.testing.assert_allclose(result["y"], pl.run(graph, item, devices=["cpu"])["y"], rtol=1e-6)
    assert begun == [3, 3, 3]


@pytest.mark.parametrize("kernels", [1, HELD_AT_MOST // 2 + 1])
def test_a_program_too_long_for_the_queue_begins_while_it_is_queued(kernels: int) -> None:
    """CUDA would block for ever when more is queued; and a single kernel waits for no other."""
    graph = chain(*["Softmax"] * kernels)
    device = CupyDouble().generating(cublas=None)
    with Rig(device, graph, measure=True) as rig:
        assert isinstance(rig.program, QueuedProgram)
        assert rig.program.measures
        assert not rig.program.starts_whole


def test_a_stream_is_not_held_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """To queue may mean to wait for the GPU: while a kernel is loaded, or a queue is full."""
    monkeypatch.setattr("plait.devices.cuda.queues.HELD_S", 0.0)
    double, graph, held = CupyDouble(), chain("Softmax", "Softmax"), list[object]()
    wait = CudaBackend._wait
    launch = FakeGpu.launch

    def launched(gpu: FakeGpu, stream: int, kernel: Any) -> None:
        launch(gpu, stream, kernel)
        gpu.drain(stream)

    def counted(self: CudaBackend, over: threading.Event) -> None:
        held.append(self)
        wait(self, over)

    monkeypatch.setattr(FakeGpu, "launch", launched)
    monkeypatch.setattr(CudaBackend, "_wait", counted)
    [item] = some_items(graph, 1)
    with Rig(double.generating(), graph, measure=True) as rig:
        results = [rig.run(item)["y"] for _ in range(4)]
    for result in results:
        np.testing.assert_allclose(result, pl.run(graph, item, devices=["cpu"])["y"], rtol=1e-6)
    assert len(held) == 1, "it is never tried again"
