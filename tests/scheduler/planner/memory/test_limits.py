"""Memory limits: respected, by waits if need be, or refused with the sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from interleavings import Interleaving
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.regions import MemoryPlan
from random_graphs import expected, feeds, graphs


def planned(plan: pl.Plan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


def towers(count: int, rows: int = 64) -> tuple[Graph, list[Device], dict[str, str]]:
    """Return chains that know nothing of each other, each on a device, wide in the middle."""
    b = pl.GraphBuilder("towers")
    pins: dict[str, str] = {}
    for index in range(count):
        x = b.input(f"x{index}", "float32", (1, 64))
        wide = b.op("Add", x, np.ones((rows, 64), np.float32), name=f"widen{index}")
        wide = b.op("Relu", wide, name=f"relu{index}")
        y = b.op("ReduceMax", wide, np.array([0]), keepdims=1, name=f"narrow{index}")
        b.output(f"y{index}", y)
        pins |= {f"{name}{index}": f"d{index}" for name in ("widen", "relu", "narrow")}
    devices: list[Device] = [CpuDevice(f"d{index}") for index in range(count)]
    return b.build(), devices, pins


def plan_towers(count: int, limits: Mapping[str, int] | None = None) -> pl.Plan:
    graph, devices, pins = towers(count)
    return pl.plan(graph, devices, pin=pins, passes=(), memory_limits=limits)


def half(plan: pl.Plan) -> dict[str, int]:
    """Return the limit that leaves half of the plan's regions."""
    pool = planned(plan).pools["host"]
    return {"host": pool.constants_nbytes + pool.nbytes // 2}


def total(plan: pl.Plan, memory: str = "host") -> int:
    pool = planned(plan).pools[memory]
    return pool.nbytes + pool.constants_nbytes


# Respected


def test_a_plan_within_its_limit_is_as_it_would_be_without() -> None:
    free = plan_towers(2)
    limited = plan_towers(2, {"host": total(free)})
    assert planned(limited) == planned(free)


def test_steps_wait_for_others_where_they_do_not_fit_beside_them() -> None:
    free = plan_towers(2)
    limited = plan_towers(2, {"host": total(free) - 1})
    verify_memory(limited)
    assert planned(limited).added_edges == ((0, 1),)
    assert limited.steps[1].waits == (0,)
    assert total(limited) < total(free) - 60 * 64 * 4
    assert planned(limited).slowdown > 1.5


def test_no_more_steps_wait_than_must() -> None:
    """Of three, two may still run at once."""
    free = plan_towers(3)
    serial = plan_towers(3, half(free))
    some = plan_towers(3, {"host": total(free) - 1})
    verify_memory(some)
    verify_memory(serial)
    assert 0 < len(planned(some).added_edges) <= len(planned(serial).added_edges)
    assert 1 < planned(some).slowdown < planned(serial).slowdown


def test_a_plan_that_waits_for_memory_computes_the_same() -> None:
    plan = plan_towers(3, half(plan_towers(3)))
    inputs = {n: np.arange(64, dtype=np.float32).reshape(1, 64) - 9 for n in plan.graph.inputs}
    found, wanted = pl.run(plan, inputs), pl.run(plan_towers(3), inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def scattered(
    graph: Graph, seed: int, slots: int, limits: Mapping[str, int] | None = None
) -> pl.Plan:
    """Plan a graph with its nodes on random devices of one memory."""
    random = np.random.default_rng(seed)
    devices: list[Device] = [CpuDevice(name) for name in ("a", "b", "c")]
    pins = {node.name: devices[random.integers(3)].name for node in graph.nodes}
    return pl.plan(graph, devices, pin=pins, max_in_flight=slots, passes=(), memory_limits=limits)


@settings(max_examples=80)
@given(graphs(max_nodes=24), st.integers(0, 1 << 30), st.integers(1, 3))
def test_limited_plans_are_sound_and_keep_the_limit(graph: Graph, seed: int, slots: int) -> None:
    limit = total(scattered(graph, seed, slots)) - 1
    try:
        plan = scattered(graph, seed, slots, {"host": limit})
    except pl.DoesNotFitError:
        return
    verify_memory(plan)
    assert total(plan) <= limit
    Interleaving(plan, 6, seed).run()
    inputs = feeds(graph, seed)
    found = pl.run(plan, inputs)
    for name, value in expected(graph, inputs).items():
        np.testing.assert_array_equal(found[name], value)


@settings(max_examples=80)
@given(graphs(max_nodes=24), st.integers(0, 1 << 30))
def test_a_plan_without_one_of_its_waits_is_refused(graph: Graph, seed: int) -> None:
    free = scattered(graph, seed, 1)
    try:
        plan = scattered(graph, seed, 1, {"host": total(free) - 1})
    except pl.DoesNotFitError:
        return
    edges = planned(plan).added_edges
    assume(edges)  # the packing may have found room without
    assert free.placement is not None
    for edge in edges:
        kept = free.placement.with_waits([other for other in edges if other != edge])
        with pytest.raises(InternalError, match="overlap"):
            verify_memory(replace(plan, placement=kept))


def test_fewer_items_have_a_copy_where_more_would_not_fit() -> None:
    b = pl.GraphBuilder("chain")
    last = b.input("x", "float32", (64, 64))
    for index in range(4):
        last = b.op("MatMul", last, np.eye(64, dtype=np.float32), name=f"n{index}")
    b.output("y", last)
    devices: list[Device] = [CpuDevice("a"), CpuDevice("b")]
    pins = {f"n{index}": "ab"[index // 2] for index in range(4)}
    graph, two = b.build(), 2 * 2 * 64 * 64 * 4
    limit = {"host": two + 4 * 64 * 64 * 4}
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=8, passes=(), memory_limits=limit)
    verify_memory(plan)
    assert total(plan) <= limit["host"]


def test_small_items_share_copies_where_one_each_would_not_fit() -> None:
    b = pl.GraphBuilder("small")
    b.output("y", b.op("Exp", b.input("x", "float32", (1, 256))))
    graph = b.build()
    (item,) = planned(pl.plan(graph, "cpu", max_in_flight=1)).pools.values()
    limit = {"host": 3 * item.nbytes}
    plan = pl.plan(graph, "cpu", max_in_flight=8, memory_limits=limit)
    assert total(plan) <= limit["host"]


def test_items_follow_each_other_where_there_is_room_for_one() -> None:
    devices: list[Device] = [CpuDevice("a"), CpuDevice("b")]
    b = pl.GraphBuilder("two")
    x = b.input("x", "float32", (64, 64))
    b.output("y", b.op("Exp", b.op("Exp", x, name="first"), name="second"))
    graph, pins = b.build(), {"first": "a", "second": "b"}
    one = total(pl.plan(graph, devices, pin=pins, passes=()))
    plan = pl.plan(
        graph, devices, pin=pins, max_in_flight=4, passes=(), memory_limits={"host": one}
    )
    verify_memory(plan)
    assert planned(plan).pools["host"].layout == "serial"
    assert total(plan) == one
    Interleaving(plan, 6, seed=0).run()
    with pytest.raises(pl.DoesNotFitError):
        pl.plan(
            graph, devices, pin=pins, max_in_flight=4, passes=(), memory_limits={"host": one - 1}
        )


# Refused


def test_the_refusal_names_all_the_sizes() -> None:
    with pytest.raises(pl.DoesNotFitError) as caught:
        plan_towers(2, {"host": 1000})
    text = str(caught.value)
    assert "memory_limits['host'] has 1,000" in text
    assert "bytes of memory 'host', 32,784 of them constants" in text
    assert "the largest tensors are" in text
    assert "(16,384)" in text


def test_the_refusal_names_scratch_by_its_node() -> None:
    b = pl.GraphBuilder("conv")
    x = b.input("x", "float32", (1, 3, 9, 9))
    weights = np.ones((5, 3, 3, 3), np.float32)
    b.output("y", b.op("Conv", x, weights, pads=(1, 1, 1, 1), name="conv"))
    with pytest.raises(pl.DoesNotFitError, match="scratch of 'conv'"):
        pl.plan(b.build(), memory_limits={"cpu": 1000})


def test_constants_count() -> None:
    free = plan_towers(1)
    pool = planned(free).pools["host"]
    assert pool.constants_nbytes == 64 * 64 * 4 + 8
    with pytest.raises(pl.DoesNotFitError, match="constants"):
        plan_towers(1, {"host": pool.nbytes + pool.constants_nbytes - 1})


def test_a_constant_that_devices_of_this_process_share_counts_once() -> None:
    b = pl.GraphBuilder("shared")
    x = b.input("x", "float32", (256,))
    weights = b.constant(np.ones(256, np.float32))
    h = b.op("Add", x, weights, name="first")
    b.output("y", b.op("Mul", h, weights, name="second"))
    graph = b.build()
    devices: list[Device] = [CpuDevice("a"), CpuDevice("b")]
    plan = pl.plan(graph, devices, pin={"first": "a", "second": "b"}, passes=())
    assert planned(plan).pools["host"].constants_nbytes == 1024


def test_a_device_of_its_own_memory_has_its_own_constants() -> None:
    b = pl.GraphBuilder("private")
    b.output("y", b.op("Add", b.input("x", "float32", (256,)), np.ones(256, np.float32)))
    plan = pl.plan(b.build(), PrivateDevice("npu"), passes=())
    pools = planned(plan).pools
    assert pools["memory of npu"].constants_nbytes == 1024
    assert pools["host"].constants_nbytes == 0


def test_a_devices_name_stands_for_its_memory() -> None:
    b = pl.GraphBuilder("private")
    b.output("y", b.op("Neg", b.input("x", "float32", (256,))))
    graph = b.build()
    pl.plan(graph, PrivateDevice("npu"), memory_limits={"npu": 1024})
    for name in ("npu", "memory of npu"):
        with pytest.raises(pl.DoesNotFitError, match=rf"memory_limits\['{name}'\] has 1,023"):
            pl.plan(graph, PrivateDevice("npu"), memory_limits={name: 1023})


def test_of_two_limits_the_lower_holds() -> None:
    b = pl.GraphBuilder("private")
    b.output("y", b.op("Neg", b.input("x", "float32", (256,))))
    with pytest.raises(pl.DoesNotFitError, match="npu has 1,000"):
        pl.plan(b.build(), PrivateDevice("npu", nbytes=1000), memory_limits={"npu": 5000})


def test_a_limit_of_something_unknown_is_refused() -> None:
    with pytest.raises(pl.PlanError, match=r"(?s)'gpu', which is neither.*use one of d0, host"):
        plan_towers(1, {"gpu": 1 << 30})


@pytest.mark.parametrize("nbytes", [-1, 1.5, "1 GB", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(nbytes: object) -> None:
    with pytest.raises(pl.PlanError, match="whole bytes"):
        plan_towers(1, {"host": nbytes})  # type: ignore[dict-item]
