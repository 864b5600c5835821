"""Views and concatenations that are written in place: right on every device, and smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import plait as pl
import pytest
import trio
from aliasing_graphs import Case, cases
from every_device import SUBJECTS, Subject, parameters
from fake_devices import PrivateDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.devices.cpu import CpuDevice
from plait.devices.device import Program
from plait.devices.formal.device import FormalDevice
from plait.devices.memory import View
from plait.devices.program import bind_steps
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.scheduler.planner.memory import memory_plan
from plait.scheduler.planner.memory.buffers import Buffer, collect_buffers
from plait.scheduler.planner.memory.happens_before import HappensBefore
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.regions import MemoryPlan

ROW = 16
"""Elements of int32 or float32 that are aligned for the cpu."""


class RecordingDevice(CpuDevice):
    """A cpu that notes which nodes take a step."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[str] = []

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        steps = bind_steps(np, "cpu", subgraph, views, subgraph.constants)
        self.bound = [node.name for node, _ in steps]
        return super().compile(subgraph, views, measure=measure)


def planned(plan: pl.Plan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


def buffers_of(plan: pl.Plan, *, joins: bool = True) -> list[Buffer]:
    assert plan.placement is not None
    order = HappensBefore(plan.placement.steps)
    return collect_buffers(plan.graph, plan.placement, plan.prototypes, order, joins=joins)


def run_recorded(builder: pl.GraphBuilder, *inputs: np.ndarray) -> tuple[list[str], list[str]]:
    """Run a graph on the cpu; return its nodes, and those that took a step."""
    device, graph = RecordingDevice(), builder.build()
    plan = pl.plan(graph, device, passes=())
    fed = dict(zip(graph.inputs, inputs, strict=True))
    found, wanted = pl.run(plan, fed), pl.run(pl.plan(graph, FormalDevice(), passes=()), fed)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)
    return [node.name for node in graph.nodes], device.bound


def copy_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans from now on concatenate by copying."""
    copied = partial(collect_buffers, joins=False)
    monkeypatch.setattr(memory_plan, "collect_buffers", lambda *a, **k: copied(*a))


def rows(count: int) -> np.ndarray:
    return np.arange(count * ROW, dtype=np.int16).reshape(count, ROW) - 7


def computed(b: pl.GraphBuilder, count: int) -> str:
    """Return a tensor of so many rows that does not lie where it is fed."""
    made: str = b.op("Cast", b.input("x", "int16", (count, ROW)), to="int32", name="cast")
    return made


def check(case: Case, plan: pl.Plan) -> None:
    found = pl.run(plan, case.inputs)
    for name, value in case.expected.items():
        np.testing.assert_array_equal(found[name], value)


# Right


@given(case=cases(), seed=st.integers(0, 1 << 30), slots=st.integers(1, 3))
def test_devices_that_share_bytes_compute_what_numpy_does(
    case: Case, seed: int, slots: int
) -> None:
    """Each plan's memory is verified too: by a fixture, as in every test."""
    random = np.random.default_rng(seed)
    devices = [CpuDevice(), CpuDevice("other"), FormalDevice(), PrivateDevice("a")]
    pins = {node.name: devices[random.integers(4)].name for node in case.graph.nodes}
    check(case, pl.plan(case.graph, devices, pin=pins, max_in_flight=slots, passes=()))


@pytest.mark.slow
@pytest.mark.parametrize("subject", parameters(SUBJECTS))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(max_nodes=10))
def test_every_device_shares_bytes_as_the_plan_says(subject: Subject, case: Case) -> None:
    device = subject.make_for_session()
    with subject.skipped_if_missing():
        _ = device.capabilities
    devices = [device, CpuDevice("other")]
    plan = pl.plan(case.graph, devices, passes=(), strategy="preference")
    with subject.skipped_if_missing():
        check(case, plan)


@settings(max_examples=30)
@given(case=cases())
def test_items_in_flight_do_not_see_each_others_bytes(case: Case) -> None:
    devices = [CpuDevice(), CpuDevice("other")]
    pins = {node.name: devices[i % 2].name for i, node in enumerate(case.graph.nodes)}
    plan = pl.plan(case.graph, devices, pin=pins, max_in_flight=3, passes=())
    items = [{name: value + i for name, value in case.inputs.items()} for i in range(5)]

    async def stream() -> list[dict[str, np.ndarray]]:
        async with pl.Session(plan) as session, session.stream(items) as results:
            return [dict(item.outputs) async for item in results]

    for item, found in zip(items, trio.run(stream), strict=True):
        wanted = pl.run(pl.plan(case.graph, passes=()), item)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def test_the_check_finds_a_part_in_the_place_of_another() -> None:
    b = pl.GraphBuilder("swapped")
    x = b.input("x", "int32", (4, ROW))
    for name in b.op("Split", x, np.array([2, 2]), axis=0, outputs=["first", "second"]):
        b.output(name, name)
    plan = pl.plan(b.build(), passes=())
    locations = dict(planned(plan).locations)
    first, second = ("first", "host"), ("second", "host")
    locations[first], locations[second] = locations[second], locations[first]
    with pytest.raises(InternalError, match="overlap while both are needed"):
        verify_memory(replace(plan, memory=replace(planned(plan), locations=locations)))


# Spared


def test_the_parts_of_a_split_take_no_step() -> None:
    b = pl.GraphBuilder("parts")
    x = computed(b, 5)
    first, second = b.op("Split", x, np.array([2, 3]), axis=0, outputs=2, name="split")
    cut = b.op("Slice", second, *map(np.array, ([1], [3], [0])), name="cut")
    b.output("y", b.op("Neg", cut))
    b.output("z", b.op("Abs", first))
    nodes, bound = run_recorded(b, rows(5))
    assert bound == [name for name in nodes if name not in ("split", "cut")]


def test_parts_are_overwritten_one_by_one() -> None:
    """Neither is in the other's way: all of it happens in the bytes of x."""
    b = pl.GraphBuilder("parts")
    x = b.input("x", "int32", (4, ROW))
    first, second = b.op("Split", x, np.array([2, 2]), axis=0, outputs=2)
    b.output("y", b.op("Neg", first))
    b.output("z", b.op("Neg", second))
    (buffer,) = buffers_of(pl.plan(b.build(), passes=()))
    assert buffer.nbytes == 4 * ROW * 4


def test_a_part_that_is_still_read_is_not_overwritten_through_the_whole() -> None:
    b = pl.GraphBuilder("whole")
    h = b.op("Neg", b.input("x", "int32", (4, ROW)))
    part = b.op("Slice", h, *map(np.array, ([1], [2], [0])))
    b.output("y", b.op("Neg", h))
    b.output("part", part)
    plan = pl.plan(b.build(), passes=())
    (shared,) = [buffer for buffer in buffers_of(plan) if ("part", "host") in buffer.offsets]
    assert (h, "host") in shared.offsets
    assert ("y", "host") not in shared.offsets


def test_a_slice_at_an_offset_that_is_not_aligned_is_copied() -> None:
    b = pl.GraphBuilder("odd")
    x = b.input("x", "int32", (4, ROW - 1))
    b.output("y", b.op("Slice", x, *map(np.array, ([1], [2], [0])), name="cut"))
    assert run_recorded(b, rows(4)[:, 1:].astype(np.int32))[1] == ["cut"]


def test_a_concatenation_of_what_is_computed_takes_no_step() -> None:
    b = pl.GraphBuilder("joined")
    x = computed(b, 3)
    b.output("y", b.op("Concat", b.op("Neg", x), b.op("Abs", x), axis=0, name="join"))
    nodes, bound = run_recorded(b, rows(3))
    assert bound == [name for name in nodes if name != "join"]


def test_what_follows_from_fed_tensors_alone_is_joined_without_a_copy() -> None:
    """In place it would lie where they are fed, and be copied from there."""
    b = pl.GraphBuilder("joined")
    x, z = b.input("x", "int32", (3, ROW)), b.input("z", "int32", (3, ROW))
    b.output("y", b.op("Concat", b.op("Neg", b.op("Abs", x)), b.op("Neg", z), axis=0, name="join"))
    plan = pl.plan(b.build(), passes=())
    (joined,) = [buffer for buffer in buffers_of(plan) if buffer.nbytes == 6 * ROW * 4]
    assert sorted(joined.offsets.values()) == [0, 0, 3 * ROW * 4]
    fed = {"x": rows(3).astype(np.int32), "z": rows(3).astype(np.int32) + 1}
    wanted = np.concatenate([-np.abs(fed["x"]), -fed["z"]])
    np.testing.assert_array_equal(pl.run(plan, fed)["y"], wanted)


def test_what_is_fed_constant_or_named_twice_is_copied_into_a_concatenation() -> None:
    b = pl.GraphBuilder("joined")
    x = b.input("x", "int32", (3, ROW))
    h = b.op("Neg", x)
    constant = rows(1).astype(np.int32)
    b.output("y", b.op("Concat", h, x, constant, h, axis=0, name="join"))
    plan = pl.plan(b.build(), passes=())
    (joined,) = [buffer for buffer in buffers_of(plan) if buffer.nbytes == 10 * ROW * 4]
    assert joined.offsets == {(h, "host"): 0, ("y", "host"): 0}
    nodes, bound = run_recorded(b, rows(3).astype(np.int32))
    assert bound == nodes


def test_concatenations_nest() -> None:
    b = pl.GraphBuilder("nested")
    x = computed(b, 1)
    inner = b.op("Concat", b.op("Neg", x), b.op("Abs", x), axis=0, name="inner")
    b.output("y", b.op("Concat", b.op("Sign", x), inner, axis=0, name="outer"))
    nodes, bound = run_recorded(b, rows(1))
    assert bound == [name for name in nodes if name not in ("inner", "outer")]


def test_a_part_does_not_take_its_whole_along_where_other_bytes_are_wanted() -> None:
    b = pl.GraphBuilder("part")
    h = computed(b, 4)
    first, _ = b.op("Split", h, np.array([1, 3]), axis=0, outputs=2, name="split")
    other = b.op("Concat", b.op("Abs", h), first, axis=0, name="last")
    b.output("y", b.op("Concat", first, other, axis=0, name="first"))
    nodes, bound = run_recorded(b, rows(4))
    assert [name for name in nodes if name not in bound] == ["split"]


def test_a_concatenation_of_all_parts_in_order_is_what_was_split() -> None:
    b = pl.GraphBuilder("again")
    h = computed(b, 4)
    first, second = b.op("Split", h, np.array([1, 3]), axis=0, outputs=2, name="split")
    b.output("same", b.op("Concat", first, second, axis=0, name="same"))
    b.output("other", b.op("Concat", second, first, axis=0, name="other"))
    nodes, bound = run_recorded(b, rows(4))
    assert [name for name in nodes if name not in bound] == ["split", "same"]


# Smaller


def dense_block(layers: int, cells: int = 16) -> Graph:
    """Return a DenseNet's block: every layer reads all that came before it, concatenated."""
    b = pl.GraphBuilder("dense")
    x = b.input("x", "float32", (1, 3, cells, cells))
    features = [b.op("Conv", x, np.ones((8, 3, 1, 1), np.float32))]
    for _ in range(layers):
        joined = b.op("Concat", *features, axis=1) if len(features) > 1 else features[0]
        channels = 8 * len(features)
        features.append(b.op("Conv", joined, np.ones((8, channels, 1, 1), np.float32)))
    b.output("y", b.op("Concat", *features, axis=1))
    return b.build()


def test_a_dense_block_is_one_buffer_that_grows() -> None:
    """Copied, the concatenations would take a sum of sums."""
    graph = dense_block(6)
    plan = pl.plan(graph)
    block = 7 * 8 * 16 * 16 * 4
    (shared,) = [b for b in buffers_of(plan) if (plan.graph.outputs[0], "host") in b.offsets]
    joined = {node.outputs[0] for node in plan.graph.nodes if node.op == "Concat"}
    assert shared.nbytes == block
    assert joined <= {name for name, _ in shared.offsets}
    apart = sum(buffer.nbytes for buffer in buffers_of(plan, joins=False))
    assert sum(buffer.nbytes for buffer in buffers_of(plan)) < apart / 2


@pytest.mark.parametrize("width", [2, 5])
def test_what_is_joined_and_not_copied_is_there_once(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches, and their concatenation, which copied would be there beside them."""
    b = pl.GraphBuilder("branches")
    x = b.input("x", "float32", (1, 1, 32, 32))
    branches = [b.op("Conv", x, np.ones((8, 1, 1, 1), np.float32)) for _ in range(width)]
    y = b.op("Concat", *branches, axis=1)
    b.output("y", b.op("ReduceSum", y, np.array([0, 1, 2, 3], np.int64)))
    graph = b.build()
    in_place = planned(pl.plan(graph, passes=())).pools["host"].nbytes
    copy_all(monkeypatch)
    apart = planned(pl.plan(graph, passes=())).pools["host"].nbytes
    assert (in_place, apart) == ((8 * width + 1) * 32 * 32 * 4, 2 * 8 * width * 32 * 32 * 4)


def test_skip_connections_are_written_where_they_are_joined() -> None:
    b = pl.GraphBuilder("u")
    x = b.input("x", "float32", (1, 3, 16, 16))
    skip = b.op("Conv", x, np.ones((8, 3, 1, 1), np.float32))
    deep = b.op("MaxPool", skip, kernel_shape=(2, 2), strides=(2, 2))
    up = b.op("ConvTranspose", deep, np.ones((8, 8, 2, 2), np.float32), strides=(2, 2))
    b.output("y", b.op("Relu", b.op("Concat", up, skip, axis=1, name="join")))
    plan = pl.plan(b.build())
    joined = plan.graph.nodes[[node.name for node in plan.graph.nodes].index("join")]
    (shared,) = [c for c in buffers_of(plan) if (joined.outputs[0], "host") in c.offsets]
    assert {(up, "host"), (skip, "host")} <= set(shared.offsets)
    assert shared.writers == {
        point for c in buffers_of(plan, joins=False) for point in c.writers
        if {(up, "host"), (skip, "host")} & set(c.offsets)
    }  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "compiled"])
def test_convolutions_write_the_same_numbers_wherever_they_lie(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "compiled":
        pytest.importorskip("numba")
    graph = dense_block(4)
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    plan = pl.plan(graph, device)
    assert len({node.op for node in plan.graph.nodes}) == 2
    in_place = pl.run(plan, {"x": x})["y"]
    copy_all(monkeypatch)
    np.testing.assert_array_equal(pl.run(pl.plan(graph, device), {"x": x})["y"], in_place)
