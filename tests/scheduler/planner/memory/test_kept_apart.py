"""Conflicts of buffers, and what waits between steps would change, against plain definitions."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.graph.core.ir import Graph
from plait.scheduler.packing import Block, check, pack
from plait.scheduler.packing.relation import Stacked
from plait.scheduler.planner.memory.buffers import Buffer, collect_buffers
from plait.scheduler.planner.memory.control_edges import (
    MARGINS,
    find_makespan,
    list_stricter_orders,
    order_by_time,
    predict,
    reduce_edges,
)
from plait.scheduler.planner.memory.happens_before import HappensBefore, relate
from plait.scheduler.plans.placement import Step
from random_graphs import graphs


def scattered(graph: Graph, seed: int) -> pl.Plan:
    random = np.random.default_rng(seed)
    devices: list[Device] = [PrivateDevice("a"), CpuDevice(), CpuDevice("b"), AtomicDevice("c")]
    pins = {node.name: devices[random.integers(4)].name for node in graph.nodes}
    return pl.plan(graph, devices, pin=pins, passes=())


def one_lane(a: Buffer, b: Buffer, steps: tuple[Step, ...]) -> bool:
    """Return whether each is touched by one step, not the same, of the same device."""
    touched = [{step for step, _ in buffer.accesses} for buffer in (a, b)]
    inner = [step for one in touched for step in one if 1 <= step <= len(steps)]
    if len(inner) != 2 or any(len(one) != 1 for one in touched):
        return False
    return touched[0] != touched[1] and len({steps[step - 1].device for step in inner}) == 1


@given(graphs(max_nodes=20), st.integers(0, 1 << 30))
def test_buffers_conflict_unless_the_order_or_a_lane_keeps_them_apart(
    graph: Graph, seed: int
) -> None:
    plan = scattered(graph, seed)
    assert plan.placement is not None
    order = HappensBefore(plan.steps)
    found = collect_buffers(plan.graph, plan.placement, plan.prototypes, order)

    def over(a: Buffer, b: Buffer) -> bool:
        return all(order.precedes(x, w) for x in a.accesses for w in b.writers)

    for memory in {buffer.memory for buffer in found}:
        inside = [buffer for buffer in found if buffer.memory == memory]
        relation = relate(inside, plan.steps, order)
        rows = [relation.near(index).tolist() for index in range(len(inside))]
        for i, j in combinations(range(len(inside)), 2):
            a, b = inside[i], inside[j]
            apart = over(a, b) or over(b, a) or one_lane(a, b, plan.steps)
            assert (j in rows[i]) == (i in rows[j]) == (not apart)


@given(graphs(max_nodes=20), st.integers(0, 1 << 30))
def test_what_is_known_without_comparing_buffers_is_never_less(graph: Graph, seed: int) -> None:
    plan = scattered(graph, seed)
    assert plan.placement is not None
    order = HappensBefore(plan.steps)
    found = collect_buffers(plan.graph, plan.placement, plan.prototypes, order)
    for memory in {buffer.memory for buffer in found}:
        inside = [buffer for buffer in found if buffer.memory == memory]
        exact = relate(inside, plan.steps, order)
        rough = relate(inside, plan.steps, order, most=-1)
        for index in range(len(inside)):
            assert set(exact.near(index).tolist()) <= set(rough.near(index).tolist())
        if isinstance(rough.conflicts, Stacked):
            blocks = [Block(64 * (1 + index % 5)) for index in range(len(inside))]
            packing = pack(blocks, rough.conflicts)
            check(blocks, exact.conflicts, packing)
            assert packing.lower_bound <= pack(blocks, exact.conflicts).nbytes


@given(graphs(max_nodes=20), st.integers(0, 1 << 30), st.integers(1, 3))
def test_predicted_steps_wait_and_devices_run_one_at_a_time(
    graph: Graph, seed: int, width: int
) -> None:
    steps = scattered(graph, seed).steps
    durations = [float(1 + index % 4) for index in range(len(steps))]
    spans = predict(steps, durations, width)
    for step, span in zip(steps, spans, strict=True):
        assert span.end - span.start == pytest.approx(durations[step.index])
        assert all(spans[wait].end <= span.start for wait in step.waits)
        busy = [
            s
            for s, other in zip(steps, spans, strict=True)
            if other.start <= span.start < other.end
        ]
        assert len(busy) <= width
        assert len({s.device for s in busy}) == len(busy)
    assert find_makespan(predict(steps, durations)) <= sum(durations)


@given(graphs(max_nodes=20), st.integers(0, 1 << 30))
def test_stricter_orders_are_orders_and_keep_what_held(graph: Graph, seed: int) -> None:
    steps = scattered(graph, seed).steps
    order = HappensBefore(steps)
    for group in list_stricter_orders(order, steps, [1.0] * len(steps)):
        for strict in group:
            for step, earlier in enumerate(strict.earlier):
                assert order.earlier[step] & ~earlier == 0
                assert earlier < 1 << step
                for other in (n for n in range(step) if earlier >> n & 1):
                    assert strict.earlier[other] & ~earlier == 0


@given(graphs(max_nodes=20), st.integers(0, 1 << 30))
def test_a_wider_margin_orders_less(graph: Graph, seed: int) -> None:
    steps = scattered(graph, seed).steps
    order, spans = HappensBefore(steps), predict(steps, [1.0] * len(steps))
    orders = [order_by_time(order, spans, margin) for margin in MARGINS]
    for wide, narrow in pairwise(orders):
        assert all(a & ~b == 0 for a, b in zip(wide.earlier, narrow.earlier, strict=True))


@given(graphs(max_nodes=20), st.integers(0, 1 << 30))
def test_waits_that_others_imply_are_left_out(graph: Graph, seed: int) -> None:
    plan = scattered(graph, seed)
    assert plan.placement is not None
    everything = list(combinations(range(len(plan.steps)), 2))
    edges = reduce_edges(HappensBefore(plan.steps), plan.steps, everything)
    serial = HappensBefore(plan.placement.with_waits(edges).steps)
    assert serial.earlier == [(1 << step) - 1 for step in range(len(plan.steps) + 2)]
    assert all(later == earlier + 1 for earlier, later in edges)
