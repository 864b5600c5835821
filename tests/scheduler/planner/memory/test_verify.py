"""The independent check of memory plans, against liveness by hand where everything is in a row."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.values.errors import InternalError
from plait.scheduler.planner.memory.verify import verify_memory
from plait.scheduler.plans.plan import Plan
from plait.scheduler.plans.regions import Location, Region

NODES, PLACE = 8, 64
"""Products of matrices, of which none lies on its inputs; each is a place of 64 bytes."""


@st.composite
def products(draw: st.DrawFn) -> Graph:
    """Draw a graph of one device and one subgraph: its nodes run in a row."""
    b = pl.GraphBuilder("products")
    names = [b.input("x", "float32", (4, 4))]
    for i in range(draw(st.integers(1, NODES))):
        left, right = (draw(st.sampled_from(names)) for _ in range(2))
        names.append(b.op("MatMul", left, right, name=f"n{i}"))
    b.output("y", names[-1])
    return b.build()


def moved(plan: Plan, places: list[int]) -> Plan:
    """Return the plan with its tensors laid into some of `NODES` + 1 places of one region."""
    assert plan.memory is not None
    (pool,) = plan.memory.pools.values()
    (region,) = pool.regions.values()
    larger: Region = replace(region, nbytes=(NODES + 1) * PLACE)
    locations = {
        placed: Location("host", region.name, place * PLACE)
        for placed, place in zip(plan.memory.locations, places, strict=False)
    }
    pools = {"host": replace(pool, regions={region.name: larger})}
    return replace(plan, memory=replace(plan.memory, locations=locations, pools=pools))


def is_sound(plan: Plan) -> bool:
    """Say by liveness whether no two tensors that are needed at once share a place."""
    assert plan.memory is not None
    written = {"x": -1} | {n.outputs[0]: i for i, n in enumerate(plan.graph.nodes)}
    needed: dict[str, float] = dict(written)
    for index, node in enumerate(plan.graph.nodes):
        needed.update(dict.fromkeys(node.inputs, index))
    needed["y"] = inf
    offsets = {name: one.offset for (name, _), one in plan.memory.locations.items()}
    return not any(
        offsets[a] == offsets[b] and written[a] < written[b] <= needed[a]
        for a in offsets
        for b in offsets
    )


@settings(max_examples=200)
@given(products(), st.lists(st.integers(0, NODES), min_size=NODES + 1, max_size=NODES + 1))
def test_the_verdict_is_that_of_liveness(graph: Graph, places: list[int]) -> None:
    plan = moved(pl.plan(graph, passes=()), places)
    if is_sound(plan):
        verify_memory(plan)
    else:
        with pytest.raises(InternalError, match="overlap while both are needed"):
            verify_memory(plan)


def chain(count: int) -> Graph:
    b = pl.GraphBuilder("chain")
    name = first = b.input("x", "float32", (4, 4))
    for i in range(count):
        name = b.op("MatMul", name, first if i == count - 1 else name, name=f"n{i}")
    b.output("y", name)
    return b.build()


@pytest.mark.parametrize(
    ("places", "sound"),
    [
        ([0, 1, 2, 1, 2], True),  # taken in turn
        ([0, 1, 2, 1, 1], False),  # onto its own input
        ([0, 1, 0, 2, 3], False),  # x is needed at the end, by then two have taken its place
        ([0, 1, 2, 0, 3], False),
    ],
)
def test_places_taken_in_turn_are_told_from_places_still_needed(
    places: list[int], sound: bool
) -> None:
    plan = moved(pl.plan(chain(4), passes=()), places)
    assert is_sound(plan) == sound
    if sound:
        verify_memory(plan)
    else:
        with pytest.raises(InternalError, match="overlap"):
            verify_memory(plan)
