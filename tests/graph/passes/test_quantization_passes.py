"""Quantization written out is found, and what stands between integers works on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes import simplify
from plait.graph.passes.fuse_quantization import fuse_quantization
from plait.graph.passes.integer_moves import move_integers
from plait.graph.passes.unneeded import remove_dead, share_constants
from plait.graph.values.tensor import Array

Formula = Callable[[pl.GraphBuilder, str], str]
F32 = np.float32
SHAPE = (1, 4, 6, 6)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in check(graph).nodes]


def run(graph: Graph, feeds: Mapping[str, Array], device: str = "cpu") -> Mapping[str, Array]:
    found: Mapping[str, Array] = pl.run(pl.plan(graph, [device], passes=()), feeds)
    return found


def _dynamic(b: pl.GraphBuilder, x: str, rounds_first: bool, by_neg: bool) -> tuple[str, str, str]:
    """Return x quantized, its scale and zero point, as ONNX writes the function out."""
    low = b.op("Min", b.op("ReduceMin", x, keepdims=False), F32(0))
    high = b.op("Max", b.op("ReduceMax", x, keepdims=False), F32(0))
    scale = b.op("Div", b.op("Sub", high, low), F32(255))
    steps = b.op("Div", low, scale)
    zero = b.op("Neg", steps) if by_neg else b.op("Sub", F32(0), steps)
    if rounds_first:
        zero = b.op("Clip", b.op("Round", zero), F32(0), F32(255))
    else:
        zero = b.op("Round", b.op("Clip", zero, F32(0), F32(255)))
    zero = b.op("Cast", zero, to="uint8")
    return b.op("QuantizeLinear", x, scale, zero), scale, zero


@pytest.mark.parametrize("rounds_first", [False, True])
@pytest.mark.parametrize("by_neg", [False, True])
def test_a_range_that_is_measured_is_one_node(rounds_first: bool, by_neg: bool) -> None:
    b = pl.GraphBuilder("dynamic")
    parts = _dynamic(b, b.input("x", "float32", (5, 7)), rounds_first, by_neg)
    for name, part in zip(("y", "scale", "zero"), parts, strict=True):
        b.output(name, part)
    graph = b.build()
    after = fuse_quantization(graph)
    assert ops(after) == ["DynamicQuantizeLinear"]
    for spread in (0.01, 1, 1000):
        x = {"x": np.random.default_rng(0).normal(1, spread, (5, 7)).astype(F32)}
        before, found = run(graph, x), run(after, x)
        for name in graph.outputs:
            np.testing.assert_array_equal(found[name], before[name])


def test_a_range_of_another_tensor_stays() -> None:
    b = pl.GraphBuilder("other")
    _, scale, zero = _dynamic(b, b.input("x", "float32", (5, 7)), False, False)
    b.output("y", b.op("QuantizeLinear", b.input("z", "float32", (5, 7)), scale, zero))
    graph = remove_dead(b.build())
    assert fuse_quantization(graph) is graph


def test_a_range_that_others_read_stays() -> None:
    b = pl.GraphBuilder("read")
    b.output("y", _dynamic(b, b.input("x", "float32", (5, 7)), False, False)[0])
    (high,) = [node for node in b.build().nodes if node.op == "Max"]
    b.output("high", b.op("Neg", high.outputs[0]))
    graph = b.build()
    assert fuse_quantization(graph) is graph


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_sums_of_integers_become_floats_in_one_node(columns: tuple[int, ...]) -> None:
    b = pl.GraphBuilder("sums")
    q, scale, zero = b.op("DynamicQuantizeLinear", b.input("x", "float32", (5, 7)), outputs=3)
    weights = np.random.default_rng(1).integers(-9, 9, (7, 3)).astype(np.int8)
    sums = b.op("MatMulInteger", q, weights, zero)
    scales = b.op("Mul", scale, np.full(columns, 0.5, F32))
    y = b.op("Mul", scales, b.op("Cast", sums, to="float32"))
    b.output("y", b.op("Add", y, np.arange(3, dtype=F32)))
    graph = b.build()
    after = fuse_quantization(graph)
    assert ops(after)[-3:] == ["Mul", "DequantizeLinear", "Add"]
    x = {"x": np.random.default_rng(0).normal(0, 3, (5, 7)).astype(F32)}
    np.testing.assert_allclose(run(after, x)["y"], run(graph, x)["y"], rtol=1e-6)
    assert fuse_quantization(after) is after


def test_a_scale_for_each_row_stays() -> None:
    b = pl.GraphBuilder("rows")
    sums = b.op("MatMulInteger", b.input("x", "int8", (5, 7)), np.ones((7, 5), np.int8))
    b.output("y", b.op("Mul", b.op("Cast", sums, to="float32"), np.ones((5, 1), F32)))
    graph = b.build()
    assert fuse_quantization(graph) is graph


MOVES: Mapping[str, Formula] = {
    "MaxPool": lambda b, x: b.op("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    "Relu": lambda b, x: b.op("Relu", x),
    "Clip": lambda b, x: b.op("Clip", x, F32(-1.01), F32(0.77)),
    "open Clip": lambda b, x: b.op("Clip", x, None, F32(1.3)),
    "Max": lambda b, x: b.op("Max", x, F32(0.2)),
    "Transpose": lambda b, x: b.op("Transpose", x, perm=(0, 2, 3, 1)),
    "several": lambda b, x: b.op(
        "Flatten", b.op("Clip", b.op("Tile", x, np.array([1, 1, 2, 1])), 0.1, 2)
    ),
}


def between(formula: Formula, second: float = 0.02, dtype: str = "uint8") -> Graph:
    """Return q, dequantized, f of it, quantized; by the same scale unless another is given."""
    b = pl.GraphBuilder("between")
    zero = np.array(100, dtype)
    x = b.op("DequantizeLinear", b.input("q", dtype, SHAPE), F32(0.02), zero)
    b.output("y", b.op("QuantizeLinear", formula(b, x), F32(second), zero))
    return share_constants(b.build())


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", MOVES)
def test_what_moves_or_cuts_off_works_on_integers(name: str, dtype: str) -> None:
    graph = between(MOVES[name], dtype=dtype)
    after = move_integers(graph)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(ops(after))
    every = np.resize(np.arange(256), SHAPE).astype(np.uint8).view(dtype)
    assert run(after, {"q": every})["y"].tobytes() == run(graph, {"q": every})["y"].tobytes()
    assert move_integers(after) is after


def test_all_that_is_joined_must_be_such_integers() -> None:
    graph = between(lambda b, x: str(b.op("Concat", x, b.op("Neg", x), axis=1)))
    assert move_integers(graph) is graph


def test_joined_integers_stay_integers() -> None:
    b = pl.GraphBuilder("joined")
    scale, zero = b.constant(F32(0.1)), b.constant(np.int8(3))
    floats = [b.op("DequantizeLinear", b.input(n, "int8", (4,)), scale, zero) for n in "ab"]
    joined = b.op("Concat", b.op("Relu", floats[0]), floats[1], axis=0)
    b.output("y", b.op("QuantizeLinear", joined, scale, zero))
    graph = b.build()
    after = move_integers(graph)
    assert ops(after) == ["Clip", "Concat"]
    feeds = {"a": np.array([-128, 2, 3, 127], np.int8), "b": np.array([5, 3, -9, 0], np.int8)}
    np.testing.assert_array_equal(run(after, feeds)["y"], run(graph, feeds)["y"])


@pytest.mark.parametrize(
    "formula",
    [
        lambda b, x: b.op("AveragePool", x, kernel_shape=(3, 3)),
        lambda b, x: b.op("Neg", x),
        lambda b, x: b.op("Clip", x, F32(2), F32(1)),
    ],
)
def test_what_computes_other_numbers_stays(formula: Formula) -> None:
    graph = between(formula)
    assert move_integers(graph) is graph


def test_another_scale_stays_as_no_operator_requantizes() -> None:
    graph = between(MOVES["Relu"], second=0.03)
    assert move_integers(graph) is graph


def test_the_whole_pipeline_leaves_no_floats_between_integers() -> None:
    graph = between(MOVES["several"])
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(ops(simplify(graph)))
