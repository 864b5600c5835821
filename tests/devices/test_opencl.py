"""The OpenCL device on PoCL: what the conformance tests do not ask of every device."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from patience import WAIT_S
from plait.devices.codegen import pieces
from plait.devices.codegen.registry import Kernel
from plait.devices.cpu import CpuDevice
from plait.devices.errors import DeviceError, DeviceLostError
from plait.devices.event import Event
from plait.devices.opencl.device import OpenClDevice
from plait.devices.opencl.streams import OpenClBackend, Stream
from plait.devices.streams.queues import COMPUTE, UPLOAD
from plait.graph.values.tensor import TensorSpec
from pocl import pocl_device
from small_graphs import FLOATS, IN_PLACE, X, counting, doubling, unary

from .rig import Rig, chain, evaluate, some_items

ALONE = 2
"""The references that Python counts where there is one: the call takes another."""


@pytest.fixture(scope="module")
def device() -> Iterator[OpenClDevice]:
    made = OpenClDevice(device=pocl_device())
    made.open()
    yield made
    made.close()


@contextmanager
def hold(device: OpenClDevice, lane: str, status: int = 0) -> Iterator[None]:
    """Let nothing start on a queue that is put there meanwhile; then go on, or fail."""
    opened = device._get_open()
    gate = opened.cl.UserEvent(opened.context)
    opened.queues.stream(lane).wait_event(gate)
    try:
        yield
    finally:
        gate.set_status(status)


def reach_the_end(device: OpenClDevice) -> None:
    """Wait for all that is on the device, but for what is held."""
    opened = device._get_open()
    opened.cl.enqueue_marker(opened.setup).wait()


def is_over(event: Event) -> bool:
    """True when the device has done it, whether or not anybody knows."""
    return event.done or event.native.command_execution_status == 0


# Order


def test_programs_and_downloads_wait_for_uploads_that_have_not_begun() -> None:
    graph = chain("Relu", "Add")
    items = some_items(graph, 3)
    device = OpenClDevice(device=pocl_device())
    with Rig(device, graph) as rig:
        with hold(device, UPLOAD):
            stream = rig.stream(items)
            reach_the_end(device)
            assert not any(is_over(event) for event in stream.computed)
        results = stream.results()
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])


def test_a_queue_that_does_not_wait_is_found_out(
    device: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bound(device, doubling()) as bound, hold(device, UPLOAD):
        monkeypatch.setattr(Stream, "wait_event", lambda self, event: None)
        upload = device.copy(bound.views["x"], bound.hosts["x"])
        run = bound.submit([upload])
        run.native.wait()  # for good, if it waited
        assert not upload.done
    run.wait(WAIT_S)


def test_uploads_overlap_with_what_is_computed(device: OpenClDevice) -> None:
    with Bound(device, counting(), onto=IN_PLACE) as bound, Bound(device, doubling()) as other:
        with hold(device, COMPUTE):
            running = bound.submit()
            other.put({"x": X})
            assert not running.done
        running.wait(WAIT_S)


def test_the_cpu_works_while_the_device_does(device: OpenClDevice) -> None:
    cpu = CpuDevice()
    cpu.open()
    with Bound(device, doubling()) as there, Bound(cpu, doubling()) as here:
        there.put({"x": X})
        with hold(device, COMPUTE):
            running = there.submit()
            np.testing.assert_array_equal(here.run(x=X)["y"], X + X)
            assert not running.done
        running.wait(WAIT_S)
        np.testing.assert_array_equal(there.get()["y"], X + X)
    cpu.close()


# Programs


def test_a_subgraph_is_one_program_that_slots_share(device: OpenClDevice) -> None:
    graph = chain("Neg", "Abs", "Neg", n=7)
    before = len(device._get_open().binder._programs)
    with Bound(device, graph) as first, Bound(device, graph) as second:
        assert len(device._get_open().binder._programs) == before + 1
        x = np.arange(7, dtype=np.float32) - 3
        for bound in (first, second):
            np.testing.assert_array_equal(bound.run(x=x)["y"], -np.abs(x))


def test_programs_that_nobody_uses_are_let_go(device: OpenClDevice) -> None:
    with Bound(device, chain("Neg", n=11)):
        programs = device._get_open().binder._programs
        source = next(source for source in programs if " 11" in source)
    gc.collect()
    assert source not in programs


def test_a_program_keeps_the_memory_that_it_uses() -> None:
    device = OpenClDevice(device=pocl_device())
    device.open()
    nbytes = device.capabilities.alignment
    arena = device.arena(device.capabilities.memory, nbytes)
    views = {"x": device.view(arena, 0, FLOATS), "y": device.view(arena, 0, FLOATS)}
    buffer = views["x"].array
    program = device.compile(doubling(), views)
    views.clear()
    arena.close()
    assert sys.getrefcount(buffer) > ALONE
    device.submit(program).wait(WAIT_S)
    device.close()
    del program
    gc.collect()
    assert sys.getrefcount(buffer) == ALONE


def test_a_kernel_that_the_compiler_refuses_is_an_error_with_its_words(
    device: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Kernel("refused", (), "nonsense;", groups=1)
    code = pieces.Piece(doubling().nodes, (pieces.Launch(refused, ()),))
    monkeypatch.setattr("plait.devices.opencl.program.fuse", lambda *_, **__: (code,))
    with pytest.raises(DeviceError, match=r"refuses generated kernels: .*nonsense") as raised:
        Bound(device, doubling())
    assert "build" in str(raised.value.__cause__).lower()


def test_a_kernel_is_run_once_in_each_program_that_has_it_before_items_come(
    device: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    cl, run = device._get_open().cl, list[str]()
    launch = cl.enqueue_nd_range_kernel

    def spy(queue: object, kernel: Any, *rest: object, **options: object) -> object:
        run.append(kernel.function_name.partition("_")[0])
        return launch(queue, kernel, *rest, **options)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", spy)
    b = pl.GraphBuilder("two")
    h = b.op("Softplus", b.input("x", "float32", (6,)), name="first")
    b.output("y", h)
    b.output("z", b.op("ReduceSum", h, name="second"))
    both = b.build()
    alone = both.extract([both.nodes[0]], "one")
    with Bound(device, alone), Bound(device, alone):
        assert run == ["softplus"]
        with Bound(device, both):
            assert run[:2] == ["softplus"] * 2
            assert len(run) == 3


def test_views_of_the_same_bytes_have_one_sub_buffer(device: OpenClDevice) -> None:
    with Bound(device, doubling()) as bound:
        x = bound.views["x"]
        as_bytes = device.view(x.arena, x.offset, TensorSpec("uint8", (16,)))
        half = device.view(x.arena, x.offset, TensorSpec("uint8", (8,)))
        assert as_bytes.array is x.array
        assert half.array is not x.array
        del x, as_bytes, half


def test_a_sub_buffer_goes_with_its_last_view(device: OpenClDevice) -> None:
    arena = device.arena(device.capabilities.memory, 1 << 12)
    buffer = device.view(arena, 0, FLOATS).array
    gc.collect()
    assert sys.getrefcount(buffer) == ALONE
    arena.close()


def test_float64_is_refused_where_the_device_has_none() -> None:
    class Narrow:
        extensions = "cl_khr_byte_addressable_store"

    graph = unary("Relu", TensorSpec("float64", (4,)))
    (node,) = graph.nodes
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    support = OpenClDevice(device=Narrow()).supports(node, graph.call(node))
    assert support == (False, "the device has no float64")
    assert OpenClDevice(device=pocl_device()).supports(node, graph.call(node)).ok


# Times


def test_measured_work_has_the_devices_times_on_the_hosts_clock() -> None:
    """Of nodes that are one kernel, the last one has the time."""
    graph = chain("Relu", "Add")
    with Rig(OpenClDevice(device=pocl_device()), graph, measure=True) as rig:
        stream = rig.stream(some_items(graph, 1))
        stream.results()
    (up,), run, (down,) = stream.uploaded[0], stream.computed[0], stream.downloaded[0]
    assert up.started_ns < up.ended_ns <= run.started_ns
    assert run.started_ns < run.ended_ns <= down.started_ns < down.ended_ns
    assert run.node_ns is not None
    relu_ns, add_ns = run.node_ns
    assert relu_ns == 0
    assert 0 < add_ns <= run.ended_ns - run.started_ns


def test_copies_have_the_hosts_times_once_no_program_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, record = list[bool](), OpenClBackend.record

    def recorded(backend: OpenClBackend, stream: Any, *, timed: bool) -> Any:
        asked.append(timed)
        return record(backend, stream, timed=timed)

    monkeypatch.setattr(OpenClBackend, "record", recorded)
    graph = chain("Relu")
    with Rig(OpenClDevice(device=pocl_device()), graph, measure=True) as rig:
        rig.program = rig.device.compile(graph, rig.views)
        gc.collect()
        asked.clear()
        rig.run(some_items(graph, 1)[0])
    assert set(asked) == {False}


# What goes wrong


def test_work_that_fails_on_the_device_loses_it() -> None:
    device = OpenClDevice(device=pocl_device())
    with Rig(device, doubling()) as rig:
        with hold(device, COMPUTE, status=-5):
            failed = rig.compute()
        with pytest.raises(DeviceLostError, match="'opencl:0' is lost"):
            failed.wait(WAIT_S)
        assert device.failure is failed.error
        later = rig.compute()
        with pytest.raises(DeviceLostError):
            later.wait(WAIT_S)
        del failed, later
    assert device.failure is None, "it may be opened again"


def test_too_large_an_arena_says_what_to_do(device: OpenClDevice) -> None:
    with pytest.raises(pl.DeviceMemoryError, match="does not give as much at once") as raised:
        device.arena(device.capabilities.memory, 1 << 60)
    assert raised.value.fix is not None
    assert "max_in_flight" in raised.value.fix
