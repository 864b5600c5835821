"""Products between dequantized and quantized tensors become products of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.integer_islands import integer_islands
from plait.graph.passes.rewriting import allow_any
from plait.graph.passes.split_gemm import split_gemm
from plait.graph.values.tensor import Array

F32 = np.float32


class Island(pl.GraphBuilder):
    """Builds products of dequantized tensors."""

    def reals(self, tensor: Any, scale: Any, zero: Any = None, axis: int = 0) -> str:
        given = [self.constant(each) for each in (scale, zero) if each is not None]
        made: str = self.op("DequantizeLinear", tensor, *given, axis=axis)
        return made

    def integers(self, tensor: str) -> str:
        made: str = self.op(
            "QuantizeLinear", tensor, self.constant(F32(0.25)), self.constant(np.uint8(128))
        )
        return made


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def values(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def convolution(
    *, dtype: str = "uint8", per_feature: bool = True, bias: bool = True, group: int = 1,
    again: bool = True, bias_scale: float = 1.0,
) -> Graph:  # fmt: skip
    b = Island("convolution")
    x = b.input("x", dtype, (2, 4, 6, 6))
    scale = np.linspace(0.01, 0.02, 6, dtype=F32) if per_feature else np.asarray(F32(0.015))
    left = b.reals(x, F32(0.02), np.asarray(7, dtype))
    w = b.constant(values("int8", (6, 4 // group, 3, 3), 1))
    right = b.reals(w, scale, np.zeros(scale.shape, np.int8))
    given = [left, right]
    if bias:
        total = (F32(0.02) * scale * F32(bias_scale)).astype(F32)
        whole = np.random.default_rng(2).integers(-9999, 9999, 6).astype(np.int32)
        given.append(b.reals(b.constant(whole), total))
    y = b.op("Conv", *given, group=group, pads=(1, 1, 1, 1), strides=(2, 1))
    b.output("y", b.integers(y) if again else b.op("Neg", y))
    return b.build()


def product(*, per_column: bool = True, again: bool = True, constant: bool = True) -> Graph:
    b = Island("product")
    left = b.reals(b.input("x", "uint8", (2, 5, 7)), F32(0.02), np.uint8(99))
    scale = np.linspace(0.01, 0.02, 4, dtype=F32) if per_column else np.asarray(F32(0.01))
    w = b.constant(values("int8", (7, 4), 1)) if constant else b.input("w", "int8", (7, 4))
    y = b.op("MatMul", left, b.reals(w, scale, axis=1))
    b.output("y", b.integers(y) if again else b.op("Neg", y))
    return b.build()


def outputs(graph: Graph, seed: int) -> Array:
    shapes = {name: graph.tensors[name] for name in graph.inputs}
    feeds = {n: values(s.dtype.name, s.static_shape, seed) for n, s in shapes.items()}
    return pl.run(graph, feeds)["y"]


def rewritten(graph: Graph) -> Graph:
    after = check(integer_islands(graph, allow_any))
    assert integer_islands(after, allow_any) is after
    return after


def assert_close(graph: Graph, after: Graph, seed: int) -> None:
    """Integers may differ by one, and seldom do; floats by rounding."""
    expected, found = outputs(graph, seed), outputs(after, seed)
    if expected.dtype == F32:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        return
    distance = np.abs(expected.astype(int) - found)
    assert distance.max() <= 1
    assert np.count_nonzero(distance) <= 2 + 0.01 * distance.size


@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "int8"]),
    per_feature=st.booleans(),
    bias=st.booleans(),
    group=st.sampled_from([1, 2]),
    again=st.booleans(),
    seed=st.integers(0, 99),
)
def test_convolutions_of_integers_yield_the_same(
    dtype: str, per_feature: bool, bias: bool, group: int, again: bool, seed: int
) -> None:
    graph = convolution(dtype=dtype, per_feature=per_feature, bias=bias, group=group, again=again)
    after = rewritten(graph)
    expected = ["QLinearConv"] if again else ["ConvInteger", "DequantizeLinear"]
    assert [op for op in operators(after) if op not in ("Add", "Neg")] == expected
    assert_close(graph, after, seed)


@settings(max_examples=15, deadline=None)
@given(
    per_column=st.booleans(), again=st.booleans(), constant=st.booleans(), seed=st.integers(0, 99)
)
def test_matrix_products_of_integers_yield_the_same(
    per_column: bool, again: bool, constant: bool, seed: int
) -> None:
    graph = product(per_column=per_column, again=again, constant=constant)
    after = rewritten(graph)
    assert operators(after)[0] == ("QLinearMatMul" if again else "MatMulInteger")
    assert_close(graph, after, seed)


def test_a_bias_of_another_scale_is_added_to_floats() -> None:
    graph = convolution(bias_scale=3)
    after = rewritten(graph)
    assert operators(after) == ["ConvInteger", "DequantizeLinear", "Add", "QuantizeLinear"]
    assert_close(graph, after, 0)


def test_a_bias_of_fewer_bits_is_added_to_floats() -> None:
    b = Island("bytes")
    left = b.reals(b.input("x", "uint8", (1, 2, 3, 3)), F32(0.5))
    right = b.reals(b.constant(values("int8", (4, 2, 1, 1), 1)), F32(0.5))
    bias = b.reals(b.constant(values("int8", (4,), 2)), F32(0.25))
    b.output("y", b.integers(b.op("Conv", left, right, bias)))
    graph = b.build()
    after = rewritten(graph)
    assert "ConvInteger" in operators(after)
    assert_close(graph, after, 0)


def test_a_result_that_is_read_twice_is_not_rounded() -> None:
    b = Island("twice")
    y = b.op("MatMul", b.reals(b.input("x", "uint8", (2, 7)), F32(0.1)),
             b.reals(b.constant(values("int8", (7, 4), 1)), F32(0.1)))  # fmt: skip
    b.output("rounded", b.integers(y))
    b.output("y", b.op("Neg", y))
    graph = b.build()
    after = rewritten(graph)
    assert sorted(operators(after)) == [
        "DequantizeLinear", "MatMulInteger", "Neg", "QuantizeLinear"
    ]  # fmt: skip
    assert_close(graph, after, 0)


@pytest.mark.parametrize(
    "case", ["rows have scales", "16 bits", "float weights", "scale is fed", "blocks"]
)
def test_what_has_no_integer_form_stays(case: str) -> None:
    b = Island("stays")
    x = b.input("x", "uint16" if case == "16 bits" else "uint8", (2, 4))
    scale = np.array([0.1, 0.2], F32) if case == "rows have scales" else F32(0.1)
    left = b.reals(x, scale, axis=0)
    if case == "scale is fed":
        left = b.op("DequantizeLinear", x, b.input("s", "float32", ()))
    if case == "blocks":
        parts = b.constant(np.full((2, 2), 0.1, F32))
        left = b.op("DequantizeLinear", x, parts, axis=1, block_size=2)
    w = b.constant(values("int8", (4, 3), 1))
    right = b.constant(np.ones((4, 3), F32)) if case == "float weights" else b.reals(w, F32(0.1))
    b.output("y", b.op("MatMul", left, right))
    graph = b.build()
    assert integer_islands(graph, allow_any) is graph


def test_nodes_that_may_not_become_one_stay() -> None:
    graph = convolution()
    assert integer_islands(graph, lambda *_: False) is graph


@settings(max_examples=20, deadline=None)
@given(
    turned=st.booleans(),
    alpha=st.sampled_from([1.0, 0.5, -3.0]),
    beta=st.sampled_from([0.0, 1.0, 2.0]),
    bias=st.sampled_from(["none", "vector", "matrix", "fed"]),
)
def test_gemm_is_a_product_and_a_sum(turned: bool, alpha: float, beta: float, bias: str) -> None:
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("gemm")
    x = b.input("x", "float32", (3, 5))
    w = random.standard_normal((4, 5) if turned else (5, 4)).astype(F32)
    biases: dict[str, list[Any]] = {
        "vector": [np.full(4, 1 if beta else np.nan, F32)],
        "matrix": [np.ones((3, 4), F32)],
        "fed": ["c"],
    }
    given = biases.get(bias, [])
    if bias == "fed":
        b.input("c", "float32", (4,))
    b.output("y", b.op("Gemm", x, w, *given, transB=int(turned), alpha=alpha, beta=beta))
    graph = b.build()
    after = check(split_gemm(graph, allow_any))
    assert ("Gemm" in operators(after)) == (bias == "fed" and beta == 2)
    feeds = {"x": random.standard_normal((3, 5)).astype(F32)}
    feeds |= {"c": np.ones(4, F32)} if bias == "fed" else {}
    expected, found = (pl.run(each, feeds)["y"] for each in (graph, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_gemm_with_a_turned_left_factor_stays() -> None:
    b = pl.GraphBuilder("gemm")
    b.output("y", b.op("Gemm", b.input("x", "float32", (5, 3)), np.ones((5, 4), F32), transA=1))
    graph = b.build()
    assert split_gemm(graph, allow_any) is graph
