"""The device protocol's promises of memory and programs, asked of every device."""

from __future__ import annotations

import gc
import math
import re

import numpy as np
import plait as pl
import pytest
from arrays import EVERY
from bound import Bound
from every_device import Subject
from patience import WAIT_S
from plait.devices import Device
from plait.devices.memory import HOST, SHARED, SharedArena, host_arena
from plait.graph.core.operator import define
from plait.graph.values.tensor import Array, TensorSpec
from small_graphs import FLOATS, IN_PLACE, X, counting, doubling, flattened, unary

# What it is like


def test_capabilities_make_sense(device: Device) -> None:
    capabilities = device.capabilities
    assert capabilities.memory in capabilities.accesses
    assert capabilities.alignment > 0
    assert capabilities.alignment & (capabilities.alignment - 1) == 0, "no power of two"
    assert capabilities.memory_bytes is None or capabilities.memory_bytes > 0


def test_a_device_says_what_it_is_like_before_it_is_open(subject: Subject, device: Device) -> None:
    made, graph = subject.make(), unary("Relu")
    (node,) = graph.nodes
    assert made.name == device.name
    assert made.capabilities == device.capabilities
    assert made.supports(node, graph.call(node)).ok
    assert made.scratch(node, graph.call(node), graph.output_specs(node)) == ()


@pytest.mark.usefixtures("forget_operators")
def test_an_operator_without_a_kernel_is_refused_with_the_reason(device: Device) -> None:
    define("test.Lacking", inputs="x")(lambda call: (call.spec(0),))
    graph = unary("test.Lacking")
    (node,) = graph.nodes
    support = device.supports(node, graph.call(node))
    assert not support.ok
    assert re.match(r"no (kernel for|definition of) 'test\.Lacking'", support.reason)


def test_python_functions_are_supported_where_they_run(subject: Subject, device: Device) -> None:
    b = pl.GraphBuilder()
    b.output("y", b.call(subject.functions.fail, b.input("x", "float32", (4,))))
    graph = b.build()
    (node,) = graph.nodes
    support = device.supports(node, graph.call(node))
    assert support.ok == device.capabilities.runs_python
    assert "Python function" in support.reason


# Its life


@pytest.mark.slow
def test_a_device_opens_twice_closes_twice_and_opens_again(subject: Subject) -> None:
    with subject.opened() as device:
        device.open()
        for cores in (None, 1):
            with Bound(device, doubling()) as bound:
                np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)
            device.close()
            device.close()
            device.open(cores)


def test_a_device_that_never_opened_closes(subject: Subject) -> None:
    subject.make().close()


def test_a_closed_device_refuses_work(subject: Subject) -> None:
    with subject.opened() as device, Bound(device, doubling()) as bound:
        device.close()
        with pytest.raises(pl.DeviceUnavailableError, match="closed"):
            bound.submit()
        with pytest.raises(pl.DeviceUnavailableError, match="closed"):
            device.copy(bound.views["x"], bound.hosts["x"])


def test_closing_finishes_what_is_queued(subject: Subject) -> None:
    with subject.opened() as device, Bound(device, counting(), onto=IN_PLACE) as bound:
        bound.put({"x": X})
        events = [bound.submit() for _ in range(30)]
        device.close()
        assert [(event.done, event.error) for event in events] == [(True, None)] * 30


# Its memory


def test_an_arena_that_is_too_large_is_refused_and_the_device_lives_on(device: Device) -> None:
    with pytest.raises(pl.DeviceMemoryError):
        device.arena(device.capabilities.memory, 1 << 60)
    with Bound(device, doubling()) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)


def test_each_memory_that_a_device_accesses_has_arenas_for_its_programs(device: Device) -> None:
    for memory in device.capabilities.accesses:
        with Bound(device, doubling(), memory=memory) as bound:
            assert bound.views["x"].arena.memory == memory
            np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)


@pytest.mark.parametrize("memory", [HOST, SHARED])
def test_copies_go_in_and_out_of_either_host_memory(device: Device, memory: str) -> None:
    step = device.capabilities.alignment
    outside = host_arena(2 * step) if memory == HOST else SharedArena(2 * step)
    inside = device.arena(device.capabilities.memory, step)
    source, target = (device.view(outside, offset, FLOATS) for offset in (0, step))
    there = device.view(inside, 0, FLOATS)
    np.copyto(source.array, X)
    device.copy(there, source).wait(WAIT_S)
    device.copy(target, there).wait(WAIT_S)
    np.testing.assert_array_equal(target.array, X)
    inside.close()
    outside.close()


@pytest.mark.parametrize("memory", [HOST, SHARED])
def test_arenas_may_be_empty(device: Device, memory: str) -> None:
    spec = TensorSpec("float32", (0, 3))
    outside = host_arena(0) if memory == HOST else SharedArena(0)
    inside = device.arena(device.capabilities.memory, 0)
    source, there = device.view(outside, 0, spec), device.view(inside, 0, spec)
    device.copy(there, source).wait(WAIT_S)
    program = device.compile(doubling(spec), {"x": there, "y": there})
    device.submit(program).wait(WAIT_S)
    device.copy(source, there).wait(WAIT_S)
    assert source.array.shape == (0, 3)
    inside.close()
    outside.close()


def test_views_lie_where_they_are_planned(device: Device) -> None:
    """Numbers go in through views side by side, and come out as bytes through one over them all."""
    step = device.capabilities.alignment
    numbers = {
        offset: np.full(step // 4, offset + 1, "int32") for offset in range(0, 4 * step, step)
    }
    whole = TensorSpec("uint8", (4 * step,))
    arena, host = device.arena(device.capabilities.memory, 4 * step), host_arena(5 * step)
    for offset, values in numbers.items():
        source = device.view(host, 0, TensorSpec("int32", values.shape))
        np.copyto(source.array, values)
        device.copy(device.view(arena, offset, source.spec), source).wait(WAIT_S)
    target = device.view(host, step, whole)
    device.copy(target, device.view(arena, 0, whole)).wait(WAIT_S)
    assert target.array.tobytes() == b"".join(values.tobytes() for values in numbers.values())
    arena.close()
    host.close()


def test_the_same_place_and_spec_are_the_same_bytes(device: Device) -> None:
    with Bound(device, doubling()) as bound:
        first = bound.views["x"]
        again = device.view(first.arena, first.offset, first.spec)
        bound.put({"x": X})
        device.copy(bound.hosts["y"], again).wait(WAIT_S)
        np.testing.assert_array_equal(bound.hosts["y"].array, X)
        del again


@pytest.mark.parametrize("place", ["misaligned", "over the end", "before the start"])
def test_a_view_outside_of_its_arena_is_refused(device: Device, place: str) -> None:
    step = device.capabilities.alignment
    offset = {"misaligned": step // 2, "over the end": 2 * step, "before the start": -step}[place]
    arena = device.arena(device.capabilities.memory, 2 * step)
    with pytest.raises(pl.DeviceMemoryError, match="does not fit at offset"):
        device.view(arena, offset, FLOATS)
    arena.close()


def bits(dtype: str, count: int) -> Array:
    """Return every kind of number, infinities and NaNs of any payload among them."""
    kind, rng = np.dtype(dtype), np.random.default_rng(3)
    if kind.kind == "b":
        return rng.random(count) < 0.5
    return np.frombuffer(rng.bytes(count * kind.itemsize), kind)


@pytest.mark.parametrize("dtype", EVERY)
def test_every_dtype_goes_in_and_out_unchanged(device: Device, dtype: str) -> None:
    values = bits(dtype, 1003)
    graph = unary("Identity", TensorSpec(dtype, values.shape))
    support = device.supports(graph.nodes[0], graph.call(graph.nodes[0]))
    if not support.ok:
        pytest.skip(f"{device.name} has no {dtype}: {support.reason}")
    with Bound(device, graph) as bound:
        found = bound.run(x=values)["y"]
        assert found.dtype == dtype
        assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)], ids=str)
def test_tensors_without_axes_or_elements_are_tensors(
    device: Device, shape: tuple[int, ...]
) -> None:
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1
    with Bound(device, doubling(TensorSpec("float32", shape))) as bound:
        found = bound.run(x=values)["y"]
        assert found.shape == shape
        np.testing.assert_array_equal(found, values * 2)


# Its programs


def test_an_output_may_lie_on_an_input(device: Device) -> None:
    with Bound(device, doubling(), onto=IN_PLACE) as bound:
        np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)
        bound.submit().wait(WAIT_S)
        np.testing.assert_array_equal(bound.get()["y"], X * 4)


@pytest.mark.parametrize("onto", [{}, {"flat": "x"}], ids=["apart", "on the same bytes"])
def test_a_reshaped_tensor_may_lie_on_its_bytes(device: Device, onto: dict[str, str]) -> None:
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    with Bound(device, flattened(), onto=onto) as bound:
        assert bound.run(x=x)["y"].tolist() == [1, 0, 3, 0, 5, 0]


def test_a_program_computes_anew_each_time(device: Device) -> None:
    with Bound(device, doubling()) as bound:
        for factor in (1, 3, -2):
            np.testing.assert_array_equal(bound.run(x=X * np.float32(factor))["y"], 2 * factor * X)


def test_programs_of_one_graph_do_not_disturb_each_other(device: Device) -> None:
    graph = counting()
    with Bound(device, graph) as first, Bound(device, graph) as second:
        first.put({"x": X})
        second.put({"x": -X})
        for event in [first.submit(), second.submit()]:
            event.wait(WAIT_S)
        np.testing.assert_array_equal(first.get()["y"], X + 1)
        np.testing.assert_array_equal(second.get()["y"], 1 - X)


def test_constants_stay_for_as_long_as_a_program_uses_them(device: Device) -> None:
    with Bound(device, counting()) as bound:
        with Bound(device, bound.graph) as other:  # may share them
            other.run(x=X)
        del other
        gc.collect()
        np.testing.assert_array_equal(bound.run(x=X)["y"], X + 1)
