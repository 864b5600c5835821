"""A node that undoes the one before it: both go where no bit is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.pairs import cancel_pairs
from plait.graph.values.tensor import Array

Formula = Callable[[pl.GraphBuilder, str], str]
SHAPE = (2, 3, 4)


def between(formula: Formula, dtype: str = "float32") -> Graph:
    """Return y = f(x) with an Identity on either side."""
    b = pl.GraphBuilder("between")
    x = b.op("Identity", b.input("x", dtype, SHAPE))
    b.output("y", b.op("Identity", formula(b, x)))
    return b.build()


def run(graph: Graph, x: Array) -> Array:
    result: Array = pl.run(pl.plan(graph, ["formal"], passes=()), {"x": x})["y"]
    return result


def ops_within(graph: Graph) -> list[str]:
    return [node.op for node in check(graph).nodes if node.op != "Identity"]


def numbers(dtype: str) -> Array:
    random = np.random.default_rng(3)
    if dtype == "bool":
        return random.random(SHAPE) < 0.5
    return (random.standard_normal(SHAPE) * 100).astype(dtype)


@pytest.mark.parametrize(
    ("op", "dtype"), [("Neg", "float32"), ("Neg", "int8"), ("Not", "bool"), ("BitwiseNot", "int16")]
)
def test_what_is_undone_goes(op: str, dtype: str) -> None:
    graph = between(lambda b, x: str(b.op(op, b.op(op, x))), dtype)
    after = cancel_pairs(graph)
    assert ops_within(after) == []
    x = np.full(SHAPE, np.iinfo(dtype).min) if dtype.startswith("int") else numbers(dtype)
    assert run(after, x.astype(dtype)).tobytes() == run(graph, x.astype(dtype)).tobytes()


def test_the_first_stays_while_others_read_it() -> None:
    b = pl.GraphBuilder("shared")
    negative = b.op("Neg", b.op("Abs", b.input("x", "float32", SHAPE)))
    b.output("y", b.op("Exp", b.op("Neg", negative)))
    b.output("z", negative)
    after = check(cancel_pairs(b.build()))
    assert [node.op for node in after.nodes] == ["Abs", "Neg", "Exp"]


@pytest.mark.parametrize("first", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("second", [(0, 1, 2), (1, 2, 0), (2, 1, 0), None])
def test_two_transposes_are_one_or_none(
    first: tuple[int, ...], second: tuple[int, ...] | None
) -> None:
    graph = between(
        lambda b, x: str(b.op("Transpose", b.op("Transpose", x, perm=first), perm=second))
    )
    after = cancel_pairs(graph)
    assert len(ops_within(after)) <= 1
    x = numbers("float32")
    np.testing.assert_array_equal(run(after, x), run(graph, x))
    undone = np.transpose(np.transpose(x, first), second).shape == x.shape
    order = np.transpose(np.transpose(np.arange(24).reshape(SHAPE), first), second)
    undone = undone and bool((order == np.arange(24).reshape(SHAPE)).all())
    assert (ops_within(after) == []) == undone


CASTS = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("between_dtype", CASTS)
@pytest.mark.parametrize("given", CASTS)
def test_a_cast_there_and_back_goes_where_it_loses_nothing(given: str, between_dtype: str) -> None:
    graph = between(
        lambda b, x: str(b.op("Cast", b.op("Cast", x, to=between_dtype), to=given)), given
    )
    after = cancel_pairs(graph)
    # the oracle: the extremes and the finest steps of the dtype survive numpy's way there and back
    x = np.array([0, 1], given) if given == "bool" else _extremes(given)
    with np.errstate(all="ignore"):
        there = x.astype(between_dtype)
        exact = there.astype(given).tobytes() == x.tobytes() and bool(np.all(there == x))
    assert (ops_within(after) == []) == exact


def _extremes(dtype: str) -> Array:
    if dtype.startswith("float"):
        info = np.finfo(dtype)
        return np.array([info.max, info.min, info.smallest_normal, 1 + info.eps, -0.0], dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([low, low + 1, high - 1, high, high // 2 + 1, high // 2, 3], dtype)


def test_a_reshape_of_a_reshape_is_one() -> None:
    graph = between(
        lambda b, x: str(b.op("Reshape", b.op("Reshape", x, np.array([6, 4])), np.array([-1, 2])))
    )
    after = cancel_pairs(graph)
    assert ops_within(after) == ["Reshape"]
    x = numbers("float32")
    np.testing.assert_array_equal(run(after, x), run(graph, x))


def test_a_reshape_that_keeps_a_length_of_the_first_tells_that_length() -> None:
    graph = between(
        lambda b, x: str(b.op("Reshape", b.op("Reshape", x, np.array([6, 4])), np.array([0, 2, 2])))
    )
    after = cancel_pairs(graph)
    assert ops_within(after) == ["Reshape"]
    x = numbers("float32")
    np.testing.assert_array_equal(run(after, x), run(graph, x))


RESHAPERS: dict[str, Formula] = {
    "Reshape": lambda b, x: b.op("Reshape", x, np.array([0, -1, 2])),
    "Flatten": lambda b, x: b.op("Flatten", x),
    "Squeeze": lambda b, x: b.op("Squeeze", x, np.array([1])),
    "Unsqueeze": lambda b, x: b.op("Unsqueeze", x, np.array([-1, 1])),
}


@pytest.mark.parametrize("first", RESHAPERS)
@pytest.mark.parametrize("second", RESHAPERS)
@pytest.mark.parametrize("batch", [2, "n"])
def test_what_only_reshapes_twice_is_one_reshape_or_none(
    first: str, second: str, batch: int | str
) -> None:
    b = pl.GraphBuilder("reshaped")
    x = b.op("Neg", b.input("x", "float32", (batch, 1, 1, 4)))
    if second == "Squeeze":  # what is left must have an axis of length 1
        length = {"Flatten": 1, "Reshape": 2}.get(first, 4)
        x = b.op("Slice", x, np.array([0]), np.array([length]), np.array([3]))
    twice = RESHAPERS[second](b, RESHAPERS[first](b, x))
    b.output("y", b.op("Relu", twice))
    graph = b.build()
    after = check(cancel_pairs(graph))
    left = [node.op for node in after.nodes if node.op not in ("Neg", "Slice", "Relu")]
    assert left in ([], ["Reshape"])
    assert graph.tensors["y"] == after.tensors["y"]
    value = np.random.default_rng(0).standard_normal((2, 1, 1, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(after, value), run(graph, value))
    assert cancel_pairs(after) is after


def test_two_unknown_lengths_that_move_keep_both() -> None:
    b = pl.GraphBuilder("unknown")
    x = b.op("Neg", b.input("x", "float32", ("n", "m", 2)))
    b.output("y", b.op("Relu", b.op("Unsqueeze", b.op("Flatten", x), np.array([0]))))
    graph = b.build()
    assert cancel_pairs(graph) is graph


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("scale", [1e-20, 0.017, 1 / 3, 1e20])
def test_what_was_dequantized_is_quantized_to_itself(dtype: str, scale: float) -> None:
    info = np.iinfo(dtype)
    b = pl.GraphBuilder("quantized")
    x = b.op("Identity", b.input("x", dtype, (1000,)))
    parameters = np.float32(scale), np.array(info.max // 3, dtype)
    y = b.op("QuantizeLinear", b.op("DequantizeLinear", x, *parameters), *parameters)
    b.output("y", b.op("Identity", y))
    graph = pl.plan(b.build(), ["formal"], passes=["share_constants"]).graph
    after = cancel_pairs(graph)
    assert ops_within(after) == []
    x = np.linspace(info.min, info.max, 1000).astype(dtype)
    np.testing.assert_array_equal(run(after, x), run(graph, x))


def test_other_parameters_keep_both() -> None:
    b = pl.GraphBuilder("quantized")
    x = b.input("x", "int8", (4,))
    y = b.op("DequantizeLinear", x, np.float32(0.5), np.int8(0))
    b.output("y", b.op("QuantizeLinear", y, np.float32(0.25), np.int8(0)))
    graph = b.build()
    assert cancel_pairs(graph) is graph
