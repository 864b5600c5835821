"""Simulated streams with a state for each key."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.simulation.workload import SimulatedHost

FREE = SimulatedHost()


@cache
def make_plan(replicas: int = 4) -> pl.Plan:
    b = pl.GraphBuilder("product of all")
    x = b.input("x", "float32", (300, 300))
    found = b.op("MatMul", x, x, name="before")
    product = b.variable("product", np.zeros((300, 300), "float32"))
    b.output("y", product.assign(b.op("MatMul", product, found, name="cycle")))
    return pl.plan(b.build(), [f"cpu:0..{replicas - 1}"], max_in_flight=2 * replicas)


def simulate(keys: Any, items: int = 40, replicas: int = 4) -> pl.Simulation:
    return pl.simulate(make_plan(replicas), items=items, host=FREE, keys=keys)


def find_times(simulation: pl.Simulation) -> tuple[list[int], list[int]]:
    return simulation.timeline.started, simulation.timeline.ended


def find_cycles(simulation: pl.Simulation) -> list[tuple[int, int]]:
    """Return the start and end of each item's step between reading and assigning."""
    found = []
    for record in simulation.records:
        spans = [one for one in record.spans() if "cycle" in one.step.name]
        found.append((min(s.started_ns for s in spans), max(s.ended_ns for s in spans)))
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=40), st.integers(1, 4))
def test_items_of_one_key_are_in_order_and_those_of_others_overlap(
    keys: list[str], replicas: int
) -> None:
    found = simulate(keys, len(keys), replicas)
    times = find_cycles(found)
    for key in set(keys):
        own = [time for time, of in zip(times, keys, strict=True) if of == key]
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    cycle = found.cycles["variable product"]
    assert found.makespan_s >= max(Counter(keys).values()) * cycle * (1 - 1e-6)


def test_one_key_is_like_no_key_and_a_key_for_each_item_like_no_state() -> None:
    assert find_times(simulate(1)) == find_times(simulate(None)) == find_times(simulate([3] * 40))
    of_all, of_one = simulate(40), simulate(1)
    assert of_one.bottleneck == "order of variable product"
    assert of_all.bottleneck == "cpu:0"
    # Four replicas share all work, where a cycle of one state is half of an item's.
    assert of_one.makespan_s / of_all.makespan_s == pytest.approx(2, rel=0.1)


def test_the_key_with_the_most_items_binds() -> None:
    found = simulate([item if item % 4 == 3 else "often" for item in range(40)])
    assert found.bottleneck == "order of variable product"
    assert found.makespan_s > 30 * found.cycles["variable product"]
    assert simulate(8).bottleneck == "cpu:0"
    assert found.to_dict()["keys"] == 11


@pytest.mark.parametrize("keys", [0, "a" * 40, [1, 2], [[]] * 40, 1.5])
def test_wrong_keys_are_refused(keys: Any) -> None:
    with pytest.raises(pl.PlanError, match="key"):
        simulate(keys)
