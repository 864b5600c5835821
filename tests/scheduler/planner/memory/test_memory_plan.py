from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.cpu import CpuDevice
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.regions import MemoryPlan, Pool
from random_graphs import expected, feeds, graphs


def planned(plan: pl.Plan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


def pool(plan: pl.Plan, memory: str = "host") -> Pool:
    return planned(plan).pools[memory]


def relu_chain(length: int, shape: Sequence[int] = (256,)) -> Graph:
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", shape)
    for _ in range(length):
        last = builder.op("Relu", last)
    builder.output("y", last)
    return builder.build()


@given(graphs(), st.integers(0, 1 << 30), st.integers(1, 4))
def test_no_two_live_tensors_share_a_byte(graph: Graph, seed: int, slots: int) -> None:
    random = np.random.default_rng(seed)
    devices = [PrivateDevice("a"), PrivateDevice("b"), CpuDevice(), AtomicDevice("atomic")]
    pins = {node.name: devices[random.integers(4)].name for node in graph.nodes}
    verify_memory(pl.plan(graph, devices, pin=pins, max_in_flight=slots))


@given(graphs(max_nodes=8), st.data())
def test_the_check_finds_a_tensor_moved_onto_a_live_one(graph: Graph, data: st.DataObject) -> None:
    plan = pl.plan(graph)
    locations = dict(planned(plan).locations)
    fed = [(name, "host") for name in plan.graph.inputs if plan.graph.consumers[name]]
    first = plan.graph.nodes[0]
    read = [placed for placed in fed if placed[0] in first.inputs]
    written = first.outputs[0], "host"
    if not read or first.operator.views or locations[read[0]] == locations[written]:
        return  # shares by right
    victim = data.draw(st.sampled_from(read))
    memory = replace(planned(plan), locations={**locations, written: locations[victim]})
    if first.operator.inplace and first.inputs.count(victim[0]) == 1:
        return  # the kernel may do that, whatever else reads it is another matter
    with pytest.raises(InternalError, match="overlap"):
        verify_memory(replace(plan, memory=memory))


def test_a_plan_in_which_everything_lies_at_zero_is_refused() -> None:
    builder = pl.GraphBuilder("two")
    x = builder.input("x", "float32", (4,))
    builder.output("y", builder.op("Add", builder.op("Relu", x), x))
    plan = pl.plan(builder.build())
    zero = {name: replace(where, offset=0) for name, where in planned(plan).locations.items()}
    with pytest.raises(InternalError, match="overlap"):
        verify_memory(replace(plan, memory=replace(planned(plan), locations=zero)))


def test_a_location_outside_its_region_is_refused() -> None:
    plan = pl.plan(relu_chain(1))
    far = {name: replace(where, offset=4096) for name, where in planned(plan).locations.items()}
    with pytest.raises(InternalError, match="outside"):
        verify_memory(replace(plan, memory=replace(planned(plan), locations=far)))


def test_a_chain_of_elementwise_nodes_needs_one_buffer() -> None:
    assert pool(pl.plan(relu_chain(9))).nbytes == 1024


def test_an_input_that_is_read_again_later_is_not_overwritten() -> None:
    builder = pl.GraphBuilder("later")
    x = builder.input("x", "float32", (256,))
    builder.output("y", builder.op("Add", builder.op("Relu", x), x))
    assert pool(pl.plan(builder.build())).nbytes == 2048


def test_a_fetched_tensor_is_not_overwritten() -> None:
    builder = pl.GraphBuilder("fetched")
    h = builder.op("Relu", builder.input("x", "float32", (256,)))
    builder.output("h", h)
    builder.output("y", builder.op("Add", h, 1.0))
    assert pool(pl.plan(builder.build())).nbytes == 2048


def test_a_view_costs_nothing() -> None:
    builder = pl.GraphBuilder("view")
    x = builder.input("x", "float32", (16, 16))
    flat = builder.op("Reshape", builder.op("Relu", x), np.array([256], np.int64))
    builder.output("y", builder.op("Relu", flat))
    assert pool(pl.plan(builder.build())).nbytes == 1024


def test_the_peak_is_never_below_the_bound() -> None:
    plan = pl.plan(relu_chain(3))
    assert pool(plan).lower_bound <= pool(plan).item_nbytes


def test_what_single_steps_touch_is_allocated_once_for_all_items() -> None:
    builder = pl.GraphBuilder("inner")
    x = builder.input("x", "float32", (16,))
    wide = builder.op("Add", builder.op("Reshape", x, np.array([16, 1], np.int64)),
                      np.zeros((1, 4096), np.float32))  # fmt: skip
    back = builder.op("ReduceSum", builder.op("Relu", wide), np.array([1], np.int64), keepdims=0)
    builder.output("y", back)
    graph = builder.build()
    single, eight = (pool(pl.plan(graph, max_in_flight=k)) for k in (1, 8))
    assert eight.nbytes < 2 * single.nbytes
    assert eight.regions["lane cpu"].nbytes >= 16 * 4096 * 4


def test_offsets_are_aligned_for_every_device_that_reaches_the_memory() -> None:
    plan = pl.plan(relu_chain(2, (3,)), max_in_flight=3)
    assert all(where.offset % 64 == 0 for where in planned(plan).locations.values())


def test_a_plan_that_does_not_fit_says_by_how_much() -> None:
    device = PrivateDevice("npu", nbytes=1000)
    with pytest.raises(pl.DoesNotFitError, match=r"1,024 bytes.*npu has 1,000"):
        pl.plan(relu_chain(2), device)


def test_scratch_is_planned_like_any_tensor() -> None:
    builder = pl.GraphBuilder("conv")
    x = builder.input("x", "float32", (1, 3, 9, 9))
    weights = np.ones((5, 3, 3, 3), np.float32)
    builder.output("y", builder.op("Conv", x, weights, pads=(1, 1, 1, 1), name="conv"))
    plan = pl.plan(builder.build())
    assert any(name.startswith("conv\0scratch") for name, _ in planned(plan).locations)
    verify_memory(plan)


# Programs that are one piece


@given(graphs(), st.integers(0, 1 << 30), st.integers(1, 3))
def test_atomic_programs_find_their_inputs_whole(graph: Graph, seed: int, slots: int) -> None:
    """They ruin their outputs before they read their inputs: nothing may lie on these."""
    random = np.random.default_rng(seed)
    devices = [AtomicDevice("atomic"), CpuDevice()]
    pins = {node.name: devices[random.integers(2)].name for node in graph.nodes}
    inputs = feeds(graph, seed)
    found = pl.run(pl.plan(graph, devices, pin=pins, max_in_flight=slots), inputs)
    for name, value in expected(graph, inputs).items():
        np.testing.assert_array_equal(found[name], value)


def test_an_atomic_program_needs_room_for_its_inputs_and_outputs_alone() -> None:
    assert pool(pl.plan(relu_chain(9), AtomicDevice("atomic"))).nbytes == 2 * 1024


def test_a_view_does_not_lie_on_the_input_of_an_atomic_program() -> None:
    builder = pl.GraphBuilder("view")
    x = builder.input("x", "float32", (16, 16))
    builder.output("y", builder.op("Reshape", x, np.array([256], np.int64)))
    assert pool(pl.plan(builder.build(), AtomicDevice("atomic"))).nbytes == 2 * 1024


@pytest.mark.parametrize("victim", ["x", "h"])
def test_the_check_finds_what_an_atomic_program_would_ruin(victim: str) -> None:
    """Node after node, y could lie on x, and h as well: both have been read by then."""
    builder = pl.GraphBuilder("ruined")
    x = builder.input("x", "float32", (256,))
    builder.output("h", builder.op("Relu", x, outputs=["h"])[0])
    builder.output("y", builder.op("Neg", builder.op("Neg", "h"), outputs=["y"])[0])
    plan = pl.plan(builder.build(), AtomicDevice("atomic"))
    locations = dict(planned(plan).locations)
    locations["y", "host"] = locations[victim, "host"]
    with pytest.raises(InternalError, match="overlap while both are needed"):
        verify_memory(replace(plan, memory=replace(planned(plan), locations=locations)))


def test_the_check_expects_no_buffers_inside_of_an_atomic_program() -> None:
    plan = pl.plan(relu_chain(3), AtomicDevice("atomic"))
    assert len(planned(plan).locations) == 2
    verify_memory(plan)


def test_what_follows_an_atomic_program_may_overwrite_its_output() -> None:
    pins = {"relu.[01]": "atomic", "relu.2": "cpu"}
    plan = pl.plan(relu_chain(3), [AtomicDevice("atomic"), "cpu"], pin=pins)
    assert pool(plan).nbytes == 2 * 1024
