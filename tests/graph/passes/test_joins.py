"""Tensors that are joined twice are joined once; those cut and joined again were never cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.passes.joins import merge_joins

SHAPE = (4, 6)


def start() -> tuple[pl.GraphBuilder, str]:
    b = pl.GraphBuilder("joined")
    return b, b.op("Neg", b.input("x", "float32", SHAPE))


def ops(graph: Graph) -> list[str]:
    return [node.op for node in check(graph).nodes]


def assert_same(graph: Graph, after: Graph) -> None:
    x = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)}
    before, found = (pl.run(pl.plan(one, passes=()), x) for one in (graph, after))
    for name in graph.outputs:
        assert found[name].tobytes() == before[name].tobytes()
        assert found[name].shape == before[name].shape


def test_a_concat_of_concats_is_one() -> None:
    b, x = start()
    inner = b.op("Concat", x, b.op("Abs", x), axis=1)
    b.output("y", b.op("Concat", inner, b.op("Exp", x), inner, axis=-1))
    graph = b.build()
    after = merge_joins(graph)
    assert ops(after).count("Concat") == 1
    assert_same(graph, after)
    assert merge_joins(after) is after


def test_a_concat_along_another_axis_stays() -> None:
    b, x = start()
    inner = b.op("Concat", x, x, axis=1)
    b.output("y", b.op("Concat", inner, inner, axis=0))
    graph = b.build()
    assert merge_joins(graph) is graph


def test_a_concat_that_others_read_stays() -> None:
    b, x = start()
    inner = b.op("Concat", x, b.op("Abs", x), axis=1)
    b.output("y", b.op("Concat", inner, x, axis=1))
    b.output("z", b.op("Relu", inner))
    graph = b.build()
    assert merge_joins(graph) is graph


def test_all_parts_of_a_split_in_order_are_what_was_split() -> None:
    b, x = start()
    parts = b.op("Split", x, np.array([1, 2, 3]), axis=1, outputs=3)
    b.output("y", b.op("Concat", b.op("Abs", x), *parts, axis=1))
    graph = b.build()
    after = merge_joins(graph)
    assert ops(after) == ["Neg", "Abs", "Concat"]
    assert_same(graph, after)


def test_parts_in_another_order_or_along_another_axis_stay() -> None:
    b, x = start()
    first, second = b.op("Split", x, axis=1, outputs=2)
    b.output("y", b.op("Concat", second, first, axis=1))
    b.output("z", b.op("Concat", first, second, axis=0))
    graph = b.build()
    assert merge_joins(graph) is graph


def test_a_split_into_what_was_joined_is_that() -> None:
    b, x = start()
    joined = b.op("Concat", x, b.op("Abs", x), axis=-1)
    first, second = b.op("Split", joined, axis=1, outputs=2)
    b.output("y", b.op("Sub", first, second))
    graph = b.build()
    after = merge_joins(graph)
    assert ops(after) == ["Neg", "Abs", "Sub"]
    assert_same(graph, after)


def test_a_split_elsewhere_than_it_was_joined_stays() -> None:
    b, x = start()
    joined = b.op("Concat", x, b.op("Abs", x), axis=1)
    parts = b.op("Split", joined, np.array([5, 7]), axis=1, outputs=2)
    b.output("y", b.op("Concat", *reversed(parts), axis=1))
    graph = b.build()
    assert merge_joins(graph) is graph


def test_what_is_pinned_apart_stays() -> None:
    b, x = start()
    b.output("y", b.op("Concat", *b.op("Split", x, axis=1, outputs=2), axis=1))
    graph = b.build()
    assert merge_joins(graph, lambda *_: False) is graph


@st.composite
def joins(draw: st.DrawFn) -> Graph:
    """Draw a graph of square pieces that are joined and halved along either axis."""
    b = pl.GraphBuilder("pieces")
    lengths = {b.input("x", "float32", SHAPE): SHAPE}
    for _ in range(draw(st.integers(1, 10))):
        x = draw(st.sampled_from(list(lengths)))
        axis, shape = draw(st.integers(0, 1)), list(lengths[x])
        alike = [name for name, other in lengths.items() if other[1 - axis] == shape[1 - axis]]
        kind = draw(st.sampled_from(("join", "join", "cut", "again")))
        if kind == "join":
            other = draw(st.sampled_from(alike))
            shape[axis] += lengths[other][axis]
            lengths[b.op("Concat", x, other, axis=axis)] = (shape[0], shape[1])
        elif shape[axis] % 2 == 0:
            parts = b.op("Split", x, axis=axis, outputs=2)
            halved = (shape[0] // 2, shape[1]) if axis == 0 else (shape[0], shape[1] // 2)
            lengths.update(dict.fromkeys(parts, halved))
            if kind == "again":
                lengths[b.op("Concat", *parts, axis=axis)] = (shape[0], shape[1])
    made = [name for name in lengths if name != "x"] or [b.op("Neg", "x")]
    for index, name in enumerate(draw(st.lists(st.sampled_from(made), min_size=1, unique=True))):
        b.output(f"y{index}", name)
    return b.build()


@given(graph=joins())
@settings(max_examples=12, deadline=None)
def test_no_element_moves(graph: Graph) -> None:
    after = check(merge_joins(graph))
    assert_same(graph, after)
    assert len(after.nodes) <= len(graph.nodes)


def test_chained_concats_of_the_same_never_read_more_than_before() -> None:
    """Each doubling would double what the last one reads: 19 of them have 2¹⁹ parts."""
    b, x = start()
    for _ in range(19):
        x = b.op("Concat", x, x, axis=0)
    b.output("y", x)
    graph = b.build()
    after = check(merge_joins(graph))
    reads = [sum(len(node.inputs) for node in one.nodes) for one in (graph, after)]
    assert len(after.nodes) < len(graph.nodes)
    assert reads[1] <= reads[0]
    assert_same(graph, after)


def test_a_chain_of_concats_is_looked_at_once() -> None:
    b, x = start()
    y = x
    for _ in range(500):
        y = b.op("Concat", y, x, axis=0)
    b.output("y", y)
    graph = b.build()
    asked = 0

    def may_merge(graph: Graph, nodes: Sequence[Node], one: Node) -> bool:
        nonlocal asked
        asked += 1
        return True

    after = merge_joins(graph, may_merge)
    assert [(node.op, len(node.inputs)) for node in after.nodes] == [("Neg", 1), ("Concat", 501)]
    assert asked < 2 * len(graph.nodes)
