"""Folding scales and shifts into convolutions: the same numbers from fewer nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
from convolutions import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.fold_scale import fold_scale
from plait.graph.values.tensor import Array

Step = Callable[[pl.GraphBuilder, str, int, int], str]
"""Adds a node to a tensor of so many channels and axes."""


def _numbers(count: int) -> Array:
    return (np.random.default_rng(count).standard_normal(count) + 2).astype(np.float32)


def _per_channel(op: str, *, swapped: bool = False) -> Step:
    def add(b: pl.GraphBuilder, tensor: str, channels: int, rank: int) -> str:
        value = _numbers(channels).reshape(-1, *[1] * (rank - 2))
        made: str = b.op(op, value, tensor) if swapped else b.op(op, tensor, value)
        return made

    return add


def _single(op: str, *, swapped: bool = False) -> Step:
    def add(b: pl.GraphBuilder, tensor: str, channels: int, rank: int) -> str:
        value = np.float32(1.7)
        made: str = b.op(op, value, tensor) if swapped else b.op(op, tensor, value)
        return made

    return add


def _batch_normalization(b: pl.GraphBuilder, tensor: str, channels: int, rank: int) -> str:
    made: str = b.op("BatchNormalization", tensor, *(_numbers(channels) + i for i in range(4)))
    return made


FOLDED: Mapping[str, Step] = {
    "mul": _per_channel("Mul"),
    "mul swapped": _single("Mul", swapped=True),
    "div": _per_channel("Div"),
    "add": _single("Add"),
    "add swapped": _per_channel("Add", swapped=True),
    "sub": _per_channel("Sub"),
    "sub swapped": _single("Sub", swapped=True),
    "batch normalization": _batch_normalization,
}


def build(case: Case, ahead: tuple[str, ...], behind: tuple[str, ...], op: str = "Conv") -> Graph:
    """Return a convolution with scales and shifts on either side."""
    case = case.cast("float32")
    b = pl.GraphBuilder("scaled")
    tensor: str = b.input("x", "float32", case.x.shape)
    for name in ahead:
        tensor = FOLDED[name](b, tensor, case.x.shape[1], case.x.ndim)
    tensor = b.op(op, tensor, *case.inputs[1:], **case.attributes)
    group = case.attributes["group"]
    features = case.w.shape[0] if op == "Conv" else case.w.shape[1] * group
    for name in behind:
        tensor = FOLDED[name](b, tensor, features, case.x.ndim)
    b.output("y", tensor)
    return b.build()


def run(graph: Graph, x: Array) -> Array:
    result: Array = pl.run(graph, {"x": x.astype(np.float32)}, devices=["formal"])["y"]
    return result


def check_same(graph: Graph, x: Array) -> Graph:
    """Fold, check that the graph is sound and gives the same numbers, and return it."""
    folded = check(fold_scale(graph))
    assert folded.inputs == graph.inputs
    assert folded.outputs == graph.outputs
    np.testing.assert_allclose(run(folded, x), run(graph, x), rtol=1e-3, atol=1e-3)
    return folded


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


names = st.lists(st.sampled_from(sorted(FOLDED)), max_size=3).map(tuple)


@given(case=cases(ranks=st.integers(1, 2)), ahead=names, behind=names)
@settings(max_examples=40)
def test_folding_changes_nothing_but_the_number_of_nodes(
    case: Case, ahead: tuple[str, ...], behind: tuple[str, ...]
) -> None:
    graph = build(case, ahead, behind)
    folded = check_same(graph, case.x)
    assert ops(folded)[-1] == "Conv"
    assert len(folded.nodes) <= 1 + len(ahead)


@given(case=cases(ranks=st.integers(1, 2), pads=st.just(0)), ahead=names)
@settings(max_examples=20)
def test_all_that_stands_ahead_is_folded_where_there_is_no_padding(
    case: Case, ahead: tuple[str, ...]
) -> None:
    assert ops(check_same(build(case, ahead, ()), case.x)) == ["Conv"]


@given(case=cases(ranks=st.just(2), transposed=True, group=st.just(1)), behind=names)
@settings(max_examples=20)
def test_what_stands_behind_a_transposed_convolution_is_folded(
    case: Case, behind: tuple[str, ...]
) -> None:
    graph = build(case, (), behind, "ConvTranspose")
    assert ops(check_same(graph, case.x)) == ["ConvTranspose"]


def padded(group: int = 1) -> Case:
    random = np.random.default_rng(2)
    x, w = random.standard_normal((1, 2, 5, 5)), random.standard_normal((4, 2 // group, 3, 3))
    attributes = {
        "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": group
    }  # fmt: skip
    return Case(x, w, None, attributes)


def test_a_shift_stays_ahead_of_padding_but_a_scale_before_it_is_folded() -> None:
    for group in (1, 2):
        graph = build(padded(group), ("mul", "add"), ())
        assert ops(check_same(graph, padded().x)) == ["Add", "Conv"]


def test_a_scale_of_zero_before_a_shift_stays() -> None:
    b = pl.GraphBuilder("zero")
    case = padded().cast("float32")
    scaled = b.op("Mul", b.input("x", "float32", case.x.shape), np.float32(0))
    b.output("y", b.op("Conv", b.op("Add", scaled, np.float32(3)), case.w, **case.attributes))
    graph = b.build()
    assert ops(check_same(graph, case.x)) == ["Mul", "Add", "Conv"]


def unfoldable(kind: str) -> Graph:
    """Return a convolution beside something that must not be folded into it."""
    case = padded().cast("float32")
    b = pl.GraphBuilder(kind)
    x = b.input("x", "float32", case.x.shape)
    weights: Any = case.w
    if kind == "computed weights":
        weights = b.op("Neg", b.input("w", "float32", case.w.shape))
    conv = b.op("Conv", x, weights, **case.attributes)
    value = np.full((4, 1, 1), 2, np.float32)
    if kind == "per row":
        value = np.full((5, 1), 2, np.float32)
    elif kind == "larger result":
        value = np.full((3, 4, 1, 1), 2, np.float32)
    elif kind == "infinite":
        value = np.full((), np.inf, np.float32)
    elif kind == "overflow":
        value = np.full((), 3e38, np.float32)
    tensor = b.op("Mul", conv, value)
    if kind == "read twice":
        tensor = b.op("Add", tensor, b.op("Relu", conv))
    if kind == "fetched":
        b.output("conv", conv)
    b.output("y", b.op("Div", np.float32(1), conv) if kind == "divides by it" else tensor)
    return b.build()


@pytest.mark.parametrize(
    "kind",
    [
        "computed weights",
        "per row",
        "larger result",
        "infinite",
        "overflow",
        "read twice",
        "fetched",
        "divides by it",
    ],
)
def test_what_cannot_be_folded_leaves_the_graph_as_it_is(kind: str) -> None:
    graph = unfoldable(kind)
    assert fold_scale(graph) is graph


@pytest.mark.parametrize("dtype", ["float16"])
def test_float16_is_left_alone(dtype: str) -> None:
    case = padded().cast(dtype)
    b = pl.GraphBuilder("narrow")
    conv = b.op("Conv", b.input("x", dtype, case.x.shape), case.w, **case.attributes)
    b.output("y", b.op("Mul", conv, np.array(2, dtype)))
    graph = b.build()
    assert fold_scale(graph) is graph


def test_training_batch_normalization_is_left_alone() -> None:
    case = padded().cast("float32")
    b = pl.GraphBuilder("training")
    conv = b.op("Conv", b.input("x", "float32", case.x.shape), case.w, **case.attributes)
    numbers = (_numbers(4) + i for i in range(4))
    b.output("y", b.op("BatchNormalization", conv, *numbers, training_mode=1))
    graph = b.build()
    assert fold_scale(graph) is graph


def test_shapes_may_be_symbolic() -> None:
    case = padded().cast("float32")
    b = pl.GraphBuilder("symbolic")
    x = b.input("x", "float32", ("N", 2, "H", "W"))
    conv = b.op("Conv", x, case.w, **case.attributes)
    b.output("y", b.op("Relu", b.op("BatchNormalization", conv, *(_numbers(4),) * 4)))
    assert ops(check_same(b.build(), case.x)) == ["Conv", "Relu"]


def test_folded_constants_are_read_only() -> None:
    folded = fold_scale(build(padded(), (), ("mul", "add")))
    assert len(folded.constants) == 2
    assert not any(value.flags.writeable for value in folded.constants.values())
