"""Activations stand next to the products that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.hoist_activations import hoist_activations

Formula = Callable[[pl.GraphBuilder, str], str]
F32 = np.float32
SHAPE = (2, 4, 6, 6)


def conv(b: pl.GraphBuilder, x: str, seed: int = 0) -> str:
    weights = np.random.default_rng(seed).normal(size=(4, 4, 1, 1)).astype(F32)
    return str(b.op("Conv", x, weights))


def behind(formula: Formula) -> Graph:
    """Return f of a convolution."""
    b = pl.GraphBuilder("behind")
    b.output("y", formula(b, conv(b, b.input("x", "float32", SHAPE))))
    return b.build()


def ops(graph: Graph) -> list[str]:
    return [node.op for node in check(graph).nodes]


def assert_same_bits(graph: Graph, after: Graph) -> None:
    x = {"x": np.random.default_rng(1).standard_normal(SHAPE).astype(F32)}
    before, found = (pl.run(pl.plan(one, passes=()), x) for one in (graph, after))
    for name in graph.outputs:
        np.testing.assert_array_equal(found[name], before[name])
    assert hoist_activations(after) is after


ACTIVATIONS: Mapping[str, Formula] = {
    "Relu": lambda b, x: b.op("Relu", x),
    "Clip": lambda b, x: b.op("Clip", x, F32(-0.5), F32(0.5)),
    "LeakyRelu": lambda b, x: b.op("LeakyRelu", x, alpha=0.3),
    "HardSwish": lambda b, x: b.op("HardSwish", x),
}
MOVES: Mapping[str, Formula] = {
    "Reshape": lambda b, x: b.op("Reshape", x, np.array([2, -1])),
    "Transpose": lambda b, x: b.op("Transpose", x, perm=(0, 2, 3, 1)),
    "DepthToSpace": lambda b, x: b.op("DepthToSpace", x, blocksize=2),
    "two": lambda b, x: b.op("Flatten", b.op("Transpose", x, perm=(3, 1, 2, 0))),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_goes_ahead_of_what_only_moves(name: str, move: str) -> None:
    graph = behind(lambda b, x: ACTIVATIONS[name](b, MOVES[move](b, x)))
    after = hoist_activations(graph)
    assert ops(after)[:2] == ["Conv", name]
    assert sorted(ops(after)) == sorted(ops(graph))
    assert after.nodes[-1].outputs == ("y",)
    assert_same_bits(graph, after)


def test_an_activation_of_joined_products_is_one_of_each() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        other = b.op("Transpose", conv(b, "x", 1), perm=(0, 1, 3, 2))
        return str(b.op("Relu", b.op("Concat", x, other, axis=1)))

    graph = behind(formula)
    after = hoist_activations(graph)
    assert sorted(ops(after)) == sorted([*ops(graph), "Relu"])
    producers = {after.producers[n.inputs[0]].op for n in after.nodes if n.op == "Relu"}
    assert producers == {"Conv"}
    assert_same_bits(graph, after)


def test_the_same_activation_of_all_parts_is_one() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        first, second = b.op("Split", x, axis=1, outputs=2)
        return str(b.op("Sub", b.op("Sigmoid", second), b.op("Sigmoid", first)))

    graph = behind(formula)
    after = hoist_activations(graph)
    assert ops(after) == ["Conv", "Sigmoid", "Split", "Sub"]
    assert_same_bits(graph, after)


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, x: b.op("Relu", b.op("Slice", x, np.array([0]), np.array([1]), np.array([1]))),
        lambda b, x: b.op("Relu", b.op("MaxPool", x, kernel_shape=(2, 2))),
        lambda b, x: b.op("Relu", b.op("Flatten", b.op("Exp", x))),
        lambda b, x: b.op("Relu", b.op("Concat", x, b.op("Exp", "x"), axis=1)),
        lambda b, x: b.op("Relu", b.op("Concat", x, x, b.op("Neg", x), axis=1)),
        lambda b, x: b.op("Clip", b.op("Flatten", x), b.op("ReduceMin", x, keepdims=False)),
        lambda b, x: b.op("Sub", *map(_first, zip("ab", _parts(b, x), strict=True), [b, b])),
    ],
)
def test_where_there_is_nothing_to_win_all_stays(formula: Formula) -> None:
    graph = behind(formula)
    assert hoist_activations(graph) is graph


def _parts(b: pl.GraphBuilder, x: str) -> tuple[str, ...]:
    return tuple(b.op("Split", x, axis=1, outputs=2))


def _first(part: tuple[str, str], b: pl.GraphBuilder) -> str:
    """Return another activation for each part."""
    return str(b.op("Relu" if part[0] == "a" else "Tanh", part[1]))


def test_what_is_read_between_stays() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        flat = b.op("Flatten", x)
        return str(b.op("Mul", flat, b.op("Sigmoid", flat)))

    graph = behind(formula)
    assert hoist_activations(graph) is graph


def test_what_is_pinned_apart_stays() -> None:
    graph = behind(lambda b, x: str(b.op("Relu", b.op("Flatten", x))))
    assert hoist_activations(graph, lambda *_: False) is graph


def test_an_activation_goes_ahead_of_moves_and_concats_in_any_row() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        inner = b.op(
            "Concat", conv(b, x, 1), b.op("Reshape", conv(b, x, 2), np.array(SHAPE)), axis=1
        )
        moved = b.op("Transpose", inner, perm=(0, 2, 3, 1))
        made: str = b.op("Relu", b.op("Flatten", moved))
        return made

    graph = behind(formula)
    after = hoist_activations(graph)
    writers = {node.outputs[0]: node.op for node in after.nodes}
    assert [writers[node.inputs[0]] for node in after.nodes if node.op == "Relu"] == ["Conv"] * 2
    assert_same_bits(graph, after)


def test_an_activation_stays_where_a_part_is_no_product() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        inner = b.op("Concat", conv(b, x, 1), b.op("Exp", x), axis=1)
        made: str = b.op("Relu", b.op("Flatten", inner))
        return made

    graph = behind(formula)
    assert hoist_activations(graph) is graph


def test_an_activation_behind_doubling_concats_is_settled_at_once() -> None:
    """Each Concat reads one tensor twice: followed part by part, there are 2⁴⁰ of them."""

    def formula(b: pl.GraphBuilder, x: str) -> str:
        x = b.op("Slice", x, np.array([0]), np.array([0]))
        for _ in range(40):
            x = b.op("Concat", x, x, axis=0)
        made: str = b.op("Relu", b.op("Flatten", x))
        return made

    graph = behind(formula)
    assert hoist_activations(graph) is graph
