"""Attention as exporters write it out becomes one node: the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.passes.fuse_attention import fuse_attention
from plait.graph.passes.pipeline import name_of, run_passes

BATCH, HEADS, QUERIES, KEYS, DEPTH, WIDTH = 2, 3, 5, 7, 4, 6
Q, K, V = (
    (BATCH, HEADS, QUERIES, DEPTH),
    (BATCH, HEADS, KEYS, DEPTH),
    (BATCH, HEADS, KEYS, WIDTH),
)
MASK = (BATCH, 1, 1, KEYS)
ROOT = np.float32(np.sqrt(DEPTH))
LOW = np.float32(np.finfo(np.float32).min)


def attended(
    b: pl.GraphBuilder,
    scaled: str = "behind",
    masked: Callable[[pl.GraphBuilder, str], Any] | None = None,
    perm: tuple[int, ...] = (0, 1, 3, 2),
    dtype: str = "float32",
    guarded: float | None = None,
) -> str:
    """Write out attention of inputs q, k and v; `perm` turns k, whose axes are as it wants."""
    key = (BATCH, HEADS, DEPTH, KEYS)
    source = [0] * 4
    for axis, of in enumerate(perm):
        source[of] = key[axis]
    q, k, v = b.input("q", dtype, Q), b.input("k", dtype, source), b.input("v", dtype, V)
    root = ROOT.astype(dtype)
    if scaled == "keys first":
        k = b.op("Div", k, root)
    turned = b.op("Transpose", k, perm=perm)
    if scaled == "query":
        q = b.op("Add", b.op("Mul", q, (1 / root).astype(dtype)), np.zeros((), dtype))
    elif scaled == "both":
        half = np.sqrt(1 / root).astype(dtype)
        q, turned = b.op("Mul", q, half, name="scaled"), b.op("Mul", turned, half)
    scores = b.op("MatMul", q, turned)
    if scaled == "behind":
        scores = b.op("Div", scores, root)
    if masked is not None:
        scores = masked(b, scores)
    weights = b.op("Softmax", scores, name="weights")
    if guarded is not None:
        weights = b.op("Where", b.op("IsNaN", weights), np.array(guarded, dtype), weights)
    made: str = b.op("MatMul", weights, v)
    return made


def built(**ways: Any) -> Graph:
    b = pl.GraphBuilder("written out")
    b.output("y", b.op("Neg", attended(b, **ways)))
    return b.build()


def fused(graph: Graph) -> Graph:
    return check(run_passes(graph, [fuse_attention], checked=True)[0])


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def assert_same(graph: Graph, other: Graph, seed: int = 0) -> None:
    rng, feeds = np.random.default_rng(seed), {}
    for name in graph.inputs:
        spec = graph.tensors[name]
        drawn = rng.standard_normal(spec.static_shape)
        feeds[name] = (drawn > 0) if spec.dtype == bool else drawn.astype(spec.dtype)
    before, after = (
        pl.run(pl.plan(one, ["formal"], passes=()), feeds)["y"] for one in (graph, other)
    )
    np.testing.assert_allclose(after, before, 1e-5, 1e-6)


@pytest.mark.parametrize("scaled", ["behind", "query", "both", "keys first", "not"])
def test_scores_are_scaled_in_any_place(scaled: str) -> None:
    graph = built(scaled=scaled)
    after = fused(graph)
    assert ops(after) == ["Attention", "Neg"]
    assert_same(graph, after)


def added(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Add", b.input("mask", "float32", MASK), scores)


def hidden(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Where", b.input("mask", "bool", (QUERIES, KEYS)), LOW, scores)


def seen(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Where", b.input("mask", "bool", MASK), scores, LOW)


@pytest.mark.parametrize(("masked", "more"), [(added, []), (hidden, ["Where"]), (seen, ["Where"])])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 99))
def test_masks_are_added_or_choose(masked: Any, more: list[str], seed: int) -> None:
    graph = built(masked=masked)
    after = fused(graph)
    assert ops(after) == [*more, "Attention", "Neg"]
    assert_same(graph, after, seed)


def test_a_query_that_sees_nothing_still_gives_the_mean_where_it_did() -> None:
    graph = built(masked=hidden)
    feeds = {n: np.ones(graph.tensors[n].static_shape, np.float32) for n in "qk"}
    feeds["v"] = np.arange(np.prod(V), dtype=np.float32).reshape(V)
    everywhere = np.ones((QUERIES, KEYS), bool)
    y = pl.run(pl.plan(fused(graph), passes=()), feeds | {"mask": everywhere})["y"]
    mean = feeds["v"].mean(2, keepdims=True)
    np.testing.assert_allclose(-y, np.broadcast_to(mean, y.shape), 1e-5)


def test_weights_that_are_no_numbers_may_be_made_0() -> None:
    graph = built(guarded=0.0, masked=added)
    after = fused(graph)
    assert ops(after) == ["Attention", "Neg"]
    assert_same(graph, after)


def test_keys_that_are_turned_from_another_order_are_turned_less() -> None:
    graph = built(perm=(0, 2, 3, 1))
    after = fused(graph)
    assert ops(after) == ["Transpose", "Attention", "Neg"]
    assert after.nodes[0].attributes["perm"] == (0, 2, 1, 3)
    assert_same(graph, after)


def turned(b: pl.GraphBuilder, name: str, length: int, elements: int, perm: Any) -> str:
    x = b.input(name, "float32", (BATCH, length, HEADS * elements))
    rows = b.op("Reshape", x, np.array([0, 0, HEADS, elements]))
    made: str = b.op("Transpose", rows, perm=perm)
    return made


def by_rows() -> Graph:
    """Return attention as BERT has it: heads are apart in rows, and put together behind."""
    b = pl.GraphBuilder("rows")
    q = turned(b, "q", QUERIES, DEPTH, (0, 2, 1, 3))
    k = turned(b, "k", KEYS, DEPTH, (0, 2, 3, 1))
    v = turned(b, "v", KEYS, WIDTH, (0, 2, 1, 3))
    scores = b.op("Div", b.op("MatMul", q, k), ROOT)
    y = b.op("MatMul", b.op("Softmax", added(b, scores)), v)
    flat = np.array([0, 0, HEADS * WIDTH])
    b.output("y", b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), flat))
    return b.build()


def test_heads_are_read_where_they_lie() -> None:
    graph = by_rows()
    after = fused(graph)
    assert ops(after) == ["Attention"]
    assert after.nodes[0].inputs[:3] == ("q", "k", "v")
    assert_same(graph, after)


def test_a_second_run_finds_nothing() -> None:
    for graph in (by_rows(), built(masked=seen)):
        once = fused(graph)
        assert fused(once) is once


def test_nodes_before_it_that_others_read_stay() -> None:
    b = pl.GraphBuilder("shared")
    b.output("y", attended(b, scaled="both"))
    b.output("half", b.op("Neg", "scaled"))
    after = fused(b.build())
    assert sorted(ops(after)) == ["Attention", "Mul", "Neg"]


def test_scores_that_are_fetched_stay() -> None:
    b = pl.GraphBuilder("fetched")
    b.output("y", attended(b))
    b.output("fetched", "weights")
    graph = b.build()
    assert fused(graph) is graph


def twice(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Mul", added(b, scores), np.float32(2))


def for_all_keys(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Add", scores, b.input("mask", "float32", (QUERIES, 1)))


def filled_low(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Where", b.input("mask", "bool", MASK), scores, np.float32(-10))


def negative(b: pl.GraphBuilder, scores: str) -> Any:
    return b.op("Mul", scores, np.float32(-2))


REFUSED = {
    "a mask that is scaled": {"masked": twice},
    "a mask without keys": {"masked": for_all_keys},
    "a low score, which still counts": {"masked": filled_low},
    "a negative scale": {"masked": negative},
    "a guard by another number": {"guarded": 1.0},
    "halves, which are rounded in between": {"dtype": "float16"},
}


@pytest.mark.parametrize("ways", REFUSED.values(), ids=REFUSED)
def test_what_means_something_else_is_left(ways: dict[str, Any]) -> None:
    graph = built(**ways)
    assert fused(graph) is graph


def test_no_node_goes_that_may_not_merge() -> None:
    def unscaled(graph: Graph, nodes: Any, one: Node) -> bool:
        return all(node.op != "Div" for node in nodes)

    graph = built()
    assert run_passes(graph, [fuse_attention], unscaled)[0] is graph


def test_it_is_one_of_the_passes_of_a_plan() -> None:
    plan = pl.plan(by_rows())
    assert ops(plan.graph) == ["Attention"]
    assert name_of(fuse_attention) in [one.name for one in plan.applied]
