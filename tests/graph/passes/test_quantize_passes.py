"""Quantizations move past what moves elements, and past clips, without a bit changing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.pipeline import Pass
from plait.graph.passes.quantized import absorb_clip, hoist_quantize
from plait.graph.passes.rewriting import allow_any

Formula = Callable[[pl.GraphBuilder, str], str]
F32 = np.float32
SCALE, ZERO = F32(0.03), np.uint8(100)

MOVES: Mapping[str, Formula] = {
    "MaxPool": lambda b, x: b.op("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    "Reshape": lambda b, x: b.op("Reshape", x, np.array([2, -1])),
    "Transpose": lambda b, x: b.op("Transpose", x, perm=(0, 2, 3, 1)),
    "Flatten": lambda b, x: b.op("Flatten", x),
    "Slice": lambda b, x: b.op("Slice", x, np.array([1]), np.array([3]), np.array([1])),
    "Gather": lambda b, x: b.op("Gather", x, np.array([2, 0]), axis=1),
    "nearest Resize": lambda b, x: b.op(
        "Resize", x, None, np.array([1, 1, 2, 2], F32), mode="nearest"
    ),
    "Concat": lambda b, x: b.op("Concat", x, b.op("Neg", x), x, axis=1),
    "two": lambda b, x: b.op("Flatten", b.op("MaxPool", x, kernel_shape=(2, 2))),
}  # fmt: skip

STAYS: Mapping[str, Formula] = {
    "AveragePool": lambda b, x: b.op("AveragePool", x, kernel_shape=(3, 3)),
    "linear Resize": lambda b, x: b.op(
        "Resize", x, None, np.array([1, 1, 2, 2], F32), mode="linear"
    ),
    "cropping Resize": lambda b, x: b.op(
        "Resize",
        x,
        np.array([0, 0, 0, 0, 1, 1, 2, 2], F32),
        np.array([1, 1, 2, 2], F32),
        mode="nearest",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
}


def quantized(formula: Formula, scale: Any = SCALE, zero: Any = ZERO) -> Graph:
    """Build a formula of x, quantized."""
    b = pl.GraphBuilder("quantized")
    y = formula(b, b.input("x", "float32", (2, 3, 4, 4)))
    b.output("y", b.op("QuantizeLinear", y, b.constant(scale), b.constant(zero)))
    return b.build()


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def assert_same_bits(one: Pass, graph: Graph) -> Graph:
    """Run a pass, compare what comes out with what came out before, and return its graph."""
    after = check(one(graph, allow_any))
    x = np.random.default_rng(0).normal(0, 3, (2, 3, 4, 4)).astype(F32)
    expected, found = (pl.run(each, {"x": x})["y"] for each in (graph, after))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert one(after, allow_any) is after
    return after


@pytest.mark.parametrize("move", MOVES)
def test_what_only_moves_elements_moves_bytes(move: str) -> None:
    graph = quantized(MOVES[move])
    after = assert_same_bits(hoist_quantize, graph)
    assert operators(after)[-1] != "QuantizeLinear"
    assert {node.op for node in after.nodes} == {node.op for node in graph.nodes}


@pytest.mark.parametrize("other", STAYS)
def test_what_computes_new_numbers_goes_first(other: str) -> None:
    graph = quantized(STAYS[other])
    assert hoist_quantize(graph, allow_any) is graph


def test_an_input_that_is_read_twice_is_quantized_once() -> None:
    after = hoist_quantize(quantized(MOVES["Concat"]), allow_any)
    assert operators(after).count("QuantizeLinear") == 2


def test_what_another_node_reads_stays_in_floats() -> None:
    def pooled(b: pl.GraphBuilder, x: str) -> str:
        y: str = b.op("MaxPool", x, kernel_shape=(2, 2))
        b.output("z", b.op("Neg", y))
        return y

    graph = quantized(pooled)
    assert hoist_quantize(graph, allow_any) is graph


def test_scales_along_an_axis_stay_where_the_axis_is() -> None:
    scale, zero = np.array([0.1, 0.2, 0.3], F32), np.zeros(3, np.uint8)
    graph = quantized(lambda b, x: b.op("MaxPool", x, kernel_shape=(2, 2)), scale, zero)
    assert hoist_quantize(graph, allow_any) is graph


def test_nodes_that_may_not_become_one_are_not_swapped() -> None:
    graph = quantized(MOVES["MaxPool"])
    assert hoist_quantize(graph, lambda *_: False) is graph


def test_a_relu_ahead_of_the_lowest_zero_point_goes() -> None:
    after = assert_same_bits(absorb_clip, quantized(lambda b, x: b.op("Relu", x), zero=np.uint8(0)))
    assert operators(after) == ["QuantizeLinear"]


def test_a_relu_stays_where_there_are_integers_below_it() -> None:
    graph = quantized(lambda b, x: b.op("Relu", x), zero=np.uint8(1))
    assert absorb_clip(graph, allow_any) is graph


def test_a_relu_that_is_fetched_stays() -> None:
    def public(b: pl.GraphBuilder, x: str) -> str:
        y: str = b.op("Relu", x)
        b.output("z", y)
        return y

    graph = quantized(public, zero=np.uint8(0))
    assert absorb_clip(graph, allow_any) is graph


def test_bounds_that_are_not_known_stay() -> None:
    def clipped(b: pl.GraphBuilder, x: str) -> str:
        y: str = b.op("Clip", x, b.input("low", "float32", ()))
        return y

    graph = quantized(clipped)
    assert absorb_clip(graph, allow_any) is graph


def test_every_channel_must_saturate() -> None:
    scale = np.array([0.1, 0.2, 0.3], F32)
    for zero, left in (([0, 0, 0], 1), ([0, 1, 0], 2)):
        after = absorb_clip(
            quantized(lambda b, x: b.op("Relu", x), scale, np.array(zero, np.uint8)), allow_any
        )
        assert len(after.nodes) == left


@settings(max_examples=40, deadline=None)
@given(
    low=st.floats(-8, 0, width=32),
    high=st.floats(0, 8, width=32),
    scale=st.floats(0.0078125, 0.25, width=32),
    zero=st.integers(-128, 127),
)
def test_a_clip_goes_exactly_where_saturating_does_the_same(
    low: float, high: float, scale: float, zero: int
) -> None:
    graph = quantized(lambda b, x: b.op("Clip", x, F32(low), F32(high)), F32(scale), np.int8(zero))
    after = assert_same_bits(absorb_clip, graph)
    ends = np.rint(np.array([low, high], F32) / F32(scale)) + zero
    assert (len(after.nodes) == 1) == (ends[0] <= -128 and ends[1] >= 127)


@pytest.mark.parametrize(("high", "left"), [(7.4, 2), (7.58, 2), (7.6, 1), (9.0, 1)])
def test_an_upper_bound_must_be_the_last_integer(high: float, left: int) -> None:
    def clipped(b: pl.GraphBuilder, x: str) -> str:
        y: str = b.op("Clip", x, None, F32(high))
        return y

    after = assert_same_bits(absorb_clip, quantized(clipped, F32(0.06), np.int8(0)))
    assert len(after.nodes) == left


def test_clips_one_after_the_other_all_go() -> None:
    def formula(b: pl.GraphBuilder, x: str) -> str:
        y: str = b.op("Relu", b.op("Clip", b.op("Relu", x), F32(-1)))
        return y

    after = assert_same_bits(absorb_clip, quantized(formula, zero=np.uint8(0)))
    assert operators(after) == ["QuantizeLinear"]
