"""Parts of a graph in float16: the numbers stay but for rounding, public names altogether."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.passes.half import compute_in_half

ELEMENTWISE = ("Relu", "Neg", "Tanh", "Transpose", "Softmax", "Add", "Concat", "Exp")
PLACES = "host", "npu", "gpu"


@st.composite
def networks(draw: st.DrawFn) -> tuple[Graph, Mapping[str, str]]:
    """Draw a graph of products and other nodes over 4 by 4 matrices, and where they run."""
    b = pl.GraphBuilder("network")
    made = [b.input("x", "float32", (4, 4)), b.input("z", "float32", (4, 4))]
    weights = np.random.default_rng(0).standard_normal((4, 4), np.float32) / 4
    for _ in range(draw(st.integers(1, 9))):
        x, other = (draw(st.sampled_from(made)) for _ in range(2))
        op = draw(st.sampled_from(("MatMul", "MatMul", "MatMul", *ELEMENTWISE)))
        if op == "MatMul":
            made.append(b.op(op, x, weights))
        elif op == "Concat":
            both = b.op(op, x, other, axis=0)
            made.append(b.op("Slice", both, np.array([2]), np.array([6]), np.array([0])))
        elif op == "Exp":
            made.append(b.op(op, b.op("Tanh", x)))
        else:
            made.append(b.op(op, x, *([other] if op == "Add" else [])))
    for index, name in enumerate(draw(st.sets(st.sampled_from(made[2:]), min_size=1))):
        b.output(f"y{index}", name)
    graph = b.build()
    return graph, {node.name: draw(st.sampled_from(PLACES)) for node in graph.nodes}


def anything(graph: Graph, node: Node, place: str) -> bool:
    return True


def only_npu_converts(graph: Graph, node: Node, place: str) -> bool:
    return node.op != "Cast" or place == "npu"


X = {name: np.random.default_rng(1).standard_normal((4, 4), np.float32) for name in "xz"}


@given(drawn=networks(), half=st.sets(st.sampled_from(PLACES), min_size=1))
@settings(max_examples=12, deadline=None)
def test_the_numbers_stay_but_for_rounding(
    drawn: tuple[Graph, Mapping[str, str]], half: set[str]
) -> None:
    graph, places = drawn
    made = compute_in_half(graph, places, half, anything)
    check(made.graph)
    assert (made.graph.inputs, made.graph.outputs) == (graph.inputs, graph.outputs)
    fed = {name: X[name] for name in graph.inputs}
    before, after = (pl.run(pl.plan(one, passes=()), fed) for one in (graph, made.graph))
    for name in graph.outputs:
        assert after[name].dtype == np.float32
        size = 1 + float(np.abs(before[name]).max())
        np.testing.assert_allclose(after[name], before[name], atol=0.05 * size)


@given(drawn=networks(), half=st.sets(st.sampled_from(PLACES), min_size=1))
@settings(max_examples=12, deadline=None)
def test_only_half_places_compute_in_float16_and_nothing_is_left_to_do(
    drawn: tuple[Graph, Mapping[str, str]], half: set[str]
) -> None:
    graph, places = drawn
    made = compute_in_half(graph, places, half, anything)
    where = {**places, **made.places}
    for node in made.graph.nodes:
        specs = {made.graph.tensors[name].dtype for name in node.outputs}
        assert node.op == "Cast" or where[node.name] in half or specs == {np.dtype(np.float32)}
        if node.op == "MatMul" and where[node.name] in half:
            assert specs == {np.dtype(np.float16)}
    assert compute_in_half(made.graph, where, half, anything).graph is made.graph


@given(drawn=networks())
@settings(max_examples=12, deadline=None)
def test_conversions_are_where_something_can_convert(
    drawn: tuple[Graph, Mapping[str, str]],
) -> None:
    graph, places = drawn
    made = compute_in_half(graph, places, {"npu"}, only_npu_converts)
    casts = {made.places[node.name] for node in made.graph.nodes if node.op == "Cast"}
    assert casts <= {"npu"}


@given(drawn=networks())
@settings(max_examples=12, deadline=None)
def test_a_tensor_is_converted_once_for_each_place_that_reads_it(
    drawn: tuple[Graph, Mapping[str, str]],
) -> None:
    graph, places = drawn
    made = compute_in_half(graph, places, {"npu", "gpu"}, anything)
    casts = [
        (node.inputs, node.attributes["to"], made.places[node.name])
        for node in made.graph.nodes
        if node.op == "Cast"
    ]
    assert len(set(casts)) == len(casts)


def test_nodes_whose_place_is_not_known_stay() -> None:
    b = pl.GraphBuilder("product")
    x = b.input("x", "float32", (4, 4))
    b.output("y", b.op("MatMul", x, x))
    graph = b.build()
    assert compute_in_half(graph, {}, {"npu"}, anything).graph is graph
