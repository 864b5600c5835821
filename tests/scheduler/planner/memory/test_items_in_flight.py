"""Items that share the copies of regions: never a byte too early, and cheaper than K arenas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from interleavings import CorruptionError, Interleaving
from plait.devices.cpu import CpuDevice
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.scheduler.packing import Packing
from plait.scheduler.planner.memory import memory_plan
from plait.scheduler.planner.memory.layouts import BufferGroup, name_uniquely
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.regions import MemoryPlan, Pool, Region
from random_graphs import graphs


@contextmanager
def bytes_counted() -> Iterator[None]:
    """Small plans have K copies of everything; here, none is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_plan, "SMALL_NBYTES", -1)
        yield


def scattered(graph: Graph, seed: int, slots: int) -> pl.Plan:
    """Plan a graph with its nodes on random devices."""
    random = np.random.default_rng(seed)
    devices = [PrivateDevice("a"), CpuDevice(), CpuDevice("other"), AtomicDevice("atomic")]
    pins = {node.name: devices[random.integers(4)].name for node in graph.nodes}
    with bytes_counted():
        return pl.plan(graph, devices, pin=pins, max_in_flight=slots)


def in_stages(graph: Graph, count: int, slots: int) -> pl.Plan:
    """Plan a graph as a pipeline of equal numbers of nodes, all in one memory."""
    devices = [CpuDevice(f"stage{i}") for i in range(count)]
    pins = {n.name: f"stage{i * count // len(graph.nodes)}" for i, n in enumerate(graph.nodes)}
    return pl.plan(graph, devices, pin=pins, max_in_flight=slots, passes=())


def planned(plan: pl.Plan) -> MemoryPlan:
    assert plan.memory is not None
    return plan.memory


def host(plan: pl.Plan) -> Pool:
    return planned(plan).pools["host"]


def with_regions(plan: pl.Plan, changed: Sequence[Region]) -> pl.Plan:
    pools = dict(planned(plan).pools)
    for region in changed:
        pool = pools[region.memory]
        pools[region.memory] = replace(pool, regions={**pool.regions, region.name: region})
    return replace(plan, memory=replace(planned(plan), pools=pools))


def residual(depth: int, cells: int = 24) -> Graph:
    """Return blocks that widen and narrow: most bytes are alive inside of one."""
    b = pl.GraphBuilder("residual")
    last = b.input("x", "float32", (1, 4, cells, cells))
    for _ in range(depth):
        wide = b.op("Relu", b.op("Conv", last, np.zeros((96, 4, 1, 1), np.float32)))
        last = b.op("Add", last, b.op("Conv", wide, np.zeros((4, 96, 1, 1), np.float32)))
    b.output("y", last)
    return b.build()


def chain(length: int, cells: int = 64) -> Graph:
    """Return products one after the other: nothing but boundaries wherever it is cut."""
    b = pl.GraphBuilder("chain")
    last = b.input("x", "float32", (cells, cells))
    for _ in range(length):
        last = b.op("MatMul", last, np.eye(cells, dtype=np.float32))
    b.output("y", last)
    return b.build()


# Sound


@settings(max_examples=60)
@given(graphs(), st.integers(0, 1 << 30), st.integers(1, 9))
def test_no_byte_is_shared_too_early_whatever_the_number_of_items(
    graph: Graph, seed: int, slots: int
) -> None:
    plan = scattered(graph, seed, slots)
    verify_memory(plan)
    assert planned(plan).period <= 64


@settings(max_examples=60)
@given(graphs(), st.integers(0, 1 << 30), st.integers(1, 6))
def test_items_that_run_in_any_order_find_what_they_wrote(
    graph: Graph, seed: int, slots: int
) -> None:
    Interleaving(scattered(graph, seed, slots), 9, seed).run()


@given(graphs(), st.integers(0, 1 << 30), st.integers(2, 6))
def test_without_its_claims_a_region_is_refused(graph: Graph, seed: int, slots: int) -> None:
    plan = scattered(graph, seed, slots)
    claimed = [region for region in planned(plan).regions if region.claims and region.nbytes]
    for region in claimed:
        with pytest.raises(InternalError, match=r"items could meet|before .* is claimed"):
            verify_memory(with_regions(plan, [replace(region, claims=())]))


@given(graphs(), st.integers(0, 1 << 30), st.integers(2, 6))
def test_a_region_that_is_released_too_early_is_refused(
    graph: Graph, seed: int, slots: int
) -> None:
    plan = scattered(graph, seed, slots)
    for region in planned(plan).regions:
        if region.claims and region.nbytes:
            with pytest.raises(InternalError, match="is released"):
                verify_memory(with_regions(plan, [replace(region, releases=())]))


def test_a_region_that_is_claimed_too_late_is_refused() -> None:
    plan = in_stages(residual(8), 2, 8)
    first = next(region for region in planned(plan).regions if region.claims == (-1,))
    with pytest.raises(InternalError, match=r"before .* is claimed"):
        verify_memory(with_regions(plan, [replace(first, claims=(1,))]))


def test_a_region_that_single_steps_share_has_one_copy() -> None:
    plan = in_stages(residual(8), 2, 8)
    lane = next(region for region in planned(plan).regions if not region.claims)
    with pytest.raises(InternalError, match="items could meet"):
        verify_memory(with_regions(plan, [replace(lane, copies=2)]))


def test_runs_without_claims_or_releases_corrupt_each_other() -> None:
    """The negative control of the interleavings."""
    plan = in_stages(residual(8), 2, 8)
    for change in ({"claims": ()}, {"releases": (0,)}):
        rings = [replace(r, **change) for r in planned(plan).regions if r.claims]
        broken = with_regions(plan, rings)
        with pytest.raises(CorruptionError):
            for seed in range(20):
                Interleaving(broken, 12, seed).run()


# Cheap


@pytest.mark.parametrize("graph", [residual(12), chain(12)], ids=lambda graph: graph.name)
@pytest.mark.parametrize(("stages", "most"), [(1, 2.0), (2, 2.2), (4, 4.5)])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8, 100])
def test_items_in_flight_cost_a_few_times_one_item_whatever_their_number(
    graph: Graph, stages: int, most: float, slots: int
) -> None:
    plan = in_stages(graph, stages, slots)
    verify_memory(plan)
    assert host(plan).nbytes <= min(most, slots) * host(plan).item_nbytes


def test_what_single_steps_touch_is_there_once() -> None:
    pool = host(in_stages(residual(12), 2, 8))
    lanes = [region for region in pool.regions.values() if not region.claims]
    assert [(region.name, region.copies) for region in lanes] == [
        ("lane stage0", 1),
        ("lane stage1", 1),
    ]


@pytest.mark.parametrize(("slots", "copies"), [(1, {1}), (2, {2}), (8, {2, 3}), (50, {2, 3})])
def test_a_tensor_between_two_stages_has_a_copy_for_each(slots: int, copies: set[int]) -> None:
    plan = in_stages(residual(12), 2, slots)
    (crossing,) = plan.subgraphs[1].graph.inputs
    location = planned(plan).locations[crossing, "host"]
    assert host(plan).regions[location.region].copies in copies


def test_a_tensor_that_skips_stages_has_a_copy_for_each_of_them() -> None:
    b = pl.GraphBuilder("skip")
    x = b.input("x", "float32", (1, 256))
    skipped = b.op("Relu", x, name="first")
    last = skipped
    for index in range(2):
        last = b.op("Neg", last, name=f"mid{index}")
        wide = b.op("Add", last, np.zeros((400, 256), np.float32), name=f"wide{index}")
        last = b.op("ReduceMax", wide, np.array([0]), keepdims=1, name=f"narrow{index}")
    b.output("y", b.op("Add", last, skipped, name="last"))
    pins = {"first": "d0", "last": "d3"}
    pins |= {f"{n}{i}": f"d{i + 1}" for i in range(2) for n in ("mid", "wide", "narrow")}
    devices = [CpuDevice(f"d{i}") for i in range(4)]
    plan = pl.plan(b.build(), devices, pin=pins, max_in_flight=8, passes=())
    verify_memory(plan)
    location = planned(plan).locations[skipped, "host"]
    assert planned(plan).pools["host"].regions[location.region].copies >= 4


def test_regions_of_the_same_levels_have_names_of_their_own() -> None:
    packing = Packing((0,), 64)
    groups = [BufferGroup("levels 0 to 3", (index,), packing, 2) for index in range(3)]
    names = [group.name for group in name_uniquely(groups)]
    assert names == ["levels 0 to 3", "levels 0 to 3, 2", "levels 0 to 3, 3"]


def test_all_stages_have_an_item_at_once() -> None:
    run = Interleaving(in_stages(residual(12), 4, 8), 60, seed=1)
    run.run()
    assert run.most_in_flight >= 4


def test_an_input_that_nobody_reads_holds_up_no_item() -> None:
    b = pl.GraphBuilder("unread")
    last = b.input("x", "float32", (4,))
    b.input("unread", "float32", (4000,))
    b.output("y", b.op("Neg", last))
    with bytes_counted():
        plan = pl.plan(b.build(), "cpu", max_in_flight=4)
    assert min(region.copies for region in planned(plan).regions) >= 2


def test_small_plans_have_a_copy_of_everything_for_each_item() -> None:
    plan = in_stages(chain(3, cells=4), 1, 6)
    assert [region.copies for region in planned(plan).regions] == [6]


def test_copies_come_together_again_soon() -> None:
    """Programs are bound for each combination of copies."""
    b = pl.GraphBuilder("deep")
    last = b.input("x", "float32", (64, 64))
    kept = []
    for index in range(11):
        last = b.op("MatMul", last, np.eye(64, dtype=np.float32), name=f"n{index}")
        kept.append(last)
    for index, other in enumerate(kept):
        last = b.op("Add", last, other, name=f"m{index}")
    b.output("y", last)
    graph = b.build()
    plan = in_stages(graph, 11, 50)
    verify_memory(plan)
    assert planned(plan).period <= 64
