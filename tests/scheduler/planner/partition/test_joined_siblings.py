"""Branches that wait for the same, and that the same waits for, are one program where they can."""

from __future__ import annotations

from graphlib import TopologicalSorter

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.graph.core.state import set_aside
from plait.graph.values.tensor import Array
from plait.scheduler.planner.partition.cutting import (
    join_assignments,
    join_siblings,
    list_cuts,
)

pytest.importorskip("onnxruntime")

LEVELS = 5
SPEC = pl.TensorSpec("float32", (4, 8))


@pl.operator((SPEC,) * LEVELS, inputs=[SPEC], name="siblings.pyramid")
def pyramid(x: Array) -> tuple[Array, ...]:
    return tuple(x + level for level in range(LEVELS))


@pl.operator(SPEC, inputs=[SPEC] * LEVELS, name="siblings.gather")
def gather(*levels: Array) -> Array:
    return np.sum(levels, axis=0, dtype=np.float32)


def branched(odd: bool = False) -> Graph:
    """Return a graph of branches between two functions; an odd one has an output of its own."""
    b = pl.GraphBuilder("branched")
    weight = np.eye(8, dtype=np.float32)
    ends = []
    for level, x in enumerate(b.call(pyramid, b.input("x", "float32", (4, 8)), name="first")):
        h = b.op("MatMul", x, weight, name=f"net{level}/product")
        ends.append(b.op("Relu", h, name=f"net{level}/relu"))
    y = b.call(gather, *ends[:-1], b.op("Neg", ends[-1]) if odd else ends[-1], name="last")
    b.output("y", y)
    return b.build()


def test_branches_between_two_functions_are_one_program() -> None:
    plan = pl.plan(branched(), ["ort", "cpu"], pin={"net*": "ort", "*": "cpu"})
    assert [len(one.graph.nodes) for one in plan.subgraphs] == [1, 2 * LEVELS, 1]
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    wanted = sum(x + level for level in range(LEVELS))
    np.testing.assert_allclose(pl.run(plan, {"x": x})["y"], wanted)


def test_a_branch_that_something_else_waits_for_stays_apart() -> None:
    plan = pl.plan(branched(odd=True), ["ort", "cpu"], pin={"net*": "ort", "*": "cpu"})
    assert sorted(len(one.graph.nodes) for one in plan.subgraphs if one.device == "ort") == [2, 8]


def test_branches_stay_apart_where_a_device_runs_node_by_node() -> None:
    plan = pl.plan(branched(), ["cpu:1", "cpu"], pin={"net*": "cpu:1", "*": "cpu"})
    assert len(plan.subgraphs) == LEVELS + 2


def with_states(count: int) -> Graph:
    """Return y = x + all of `count` variables, each of which gets its value plus its number."""
    b = pl.GraphBuilder("states")
    states = [b.variable(f"s{n}", np.zeros(4, np.float32)) for n in range(count)]
    b.output("y", b.op("Sum", b.input("x", "float32", (4,)), *states, name="net/sum"))
    for n, state in enumerate(states):
        b.assign(state, b.op("Add", state, np.float32(n), name=f"net/next{n}"))
    return b.build()


def test_values_for_the_next_item_are_one_program_and_one_step_of_assignments() -> None:
    plan = pl.plan(with_states(40), ["ort", "cpu"], pin={"net/*": "ort"}, passes=())
    assert [(one.device, len(one.graph.nodes)) for one in plan.subgraphs] == [
        ("ort", 41),
        ("cpu", 40),
    ]
    fed = {"x": np.zeros(4, np.float32)}
    with pl.BlockingSession(plan) as session:
        sums = [session.run(fed)["y"][0] for _ in range(3)]
    assert sums == [0, 780, 1560]


def test_two_networks_stay_two_programs_though_nothing_waits_for_them() -> None:
    b = pl.GraphBuilder("two")
    for name in "ab":
        x = b.input(f"x_{name}", "float32", (4,))
        kept = b.variable(f"s_{name}", np.zeros(4, np.float32))
        b.output(f"y_{name}", b.op("Add", x, kept, name=f"{name}/add"))
        b.assign(kept, b.op("Neg", kept, name=f"{name}/neg"))
    plan = pl.plan(b.build(), ["ort", "cpu"], pin={"?/*": "ort"}, passes=())
    assert sum(one.device == "ort" for one in plan.subgraphs) == 2


@st.composite
def placed_graphs(draw: st.DrawFn) -> tuple[Graph, list[str]]:
    """Return a graph of nodes that read any before them, with variables, and a device for each."""
    b = pl.GraphBuilder("any")
    states = [b.variable(f"s{n}", np.zeros(2, np.float32)) for n in range(draw(st.integers(0, 3)))]
    x = b.input("x", "float32", (2,))
    known = [x, *states]
    for _ in range(draw(st.integers(1, 14))):
        read = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        known.append(b.op("Sum", *read))
    b.output("y", b.op("Sum", *known[: draw(st.integers(1, len(known)))]))
    kept = [b.assign(state, draw(st.sampled_from(known))) for state in states]
    b.output("z", b.op("Sum", x, *kept[: draw(st.integers(0, 1))]))
    graph = set_aside(b.build(), overlaps=draw(st.booleans()))
    return graph, [draw(st.sampled_from("abc")) for _ in graph.nodes]


@settings(max_examples=200)
@given(placed_graphs())
def test_no_joined_part_waits_for_itself(placed: tuple[Graph, list[str]]) -> None:
    graph, devices = placed
    kinds = [None if name == "c" else name for name in devices]
    producers = graph.producer_indices
    for parts in list_cuts(graph.producer_indices, devices, graph.constant_indices):
        made = join_assignments(graph, devices, join_siblings(graph, parts, kinds))
        assert sorted(node for part in made for node in part) == list(range(len(devices)))
        assert all(len({devices[node] for node in part}) == 1 for part in made)
        at = {node: index for index, part in enumerate(made) for node in part}
        follows = {
            index: {at[source] for node in part for source in producers[node]} - {index}
            for index, part in enumerate(made)
        }
        assert [*TopologicalSorter(follows).static_order()]
        assert all(before < index for index, found in follows.items() for before in found)
