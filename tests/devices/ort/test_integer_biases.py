"""Biases of products between quantized tensors reach ONNX Runtime as integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.ort.faster_forms import with_integer_biases
from plait.graph.core.ir import Graph
from plait.graph.passes import simplify

pytest.importorskip("onnxruntime")
from exact_runtime import start_exact_runtime

F32 = np.float32
FEATURES = 6


def quantized(
    op: str = "Conv",
    *,
    bias: Any = None,
    per_feature: bool = True,
    trans_b: bool = False,
    result: float = 0.25,
    again: bool = True,
) -> Graph:
    """Return a product of bytes as exporters write it; its bias is of int32, or of floats."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("qdq")
    is_conv = op == "Conv"
    shape = (2, 4, 6, 6) if is_conv else (5, 4)
    weights = (FEATURES, 4, 3, 3) if is_conv else (FEATURES, 4) if trans_b else (4, FEATURES)
    axis = 0 if is_conv or trans_b else 1
    scale = np.linspace(0.01, 0.02, FEATURES, dtype=F32) if per_feature else np.asarray(F32(0.015))
    x = b.op("QuantizeLinear", b.input("x", "float32", shape), F32(0.02), np.uint8(9))
    left = b.op("DequantizeLinear", x, F32(0.02), np.uint8(9))
    w = random.integers(-60, 60, weights).astype(np.int8)
    right = b.op("DequantizeLinear", w, scale, np.zeros(scale.shape, np.int8), axis=axis)
    bias = random.integers(-9999, 9999, FEATURES).astype(np.int32) if bias is None else bias
    if bias.dtype == np.int32:
        bias = b.op(
            "DequantizeLinear", bias, np.broadcast_to(F32(0.02) * scale, (FEATURES,)), axis=0
        )
    given: dict[str, Any] = {} if is_conv else {"transB": trans_b}
    y = b.op(op, left, right, bias, **given)
    if again:
        y = b.op("QuantizeLinear", y, F32(result), np.uint8(128))
        y = b.op("DequantizeLinear", y, F32(result), np.uint8(128))
    b.output("y", y)
    return b.build()


def integer_biases(graph: Graph) -> list[Any]:
    """Return the biases that are integers where ONNX Runtime is handed the graph."""
    made = with_integer_biases(simplify(graph))
    return [value for value in made.constants.values() if value.dtype == np.int32]


@settings(max_examples=30)
@given(
    bias=st.lists(st.integers(-(2**24), 2**24), min_size=FEATURES, max_size=FEATURES),
    per_feature=st.booleans(),
    product=st.sampled_from([("Conv", False), ("Gemm", False), ("Gemm", True)]),
)
def test_integers_that_became_floats_are_the_same_integers_again(
    bias: list[int], per_feature: bool, product: tuple[str, bool]
) -> None:
    op, trans_b = product
    wanted = np.array(bias, np.int32)
    graph = quantized(op, bias=wanted, per_feature=per_feature, trans_b=trans_b, result=1e-6)
    assert any(value.dtype == F32 and value.shape == (FEATURES,) for value in
               simplify(graph).constants.values())  # fmt: skip
    (found,) = integer_biases(graph)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=0)
    assert found.dtype == np.int32


@pytest.mark.parametrize(("op", "trans_b"), [("Conv", False), ("Gemm", False), ("Gemm", True)])
@pytest.mark.parametrize("of_floats", [False, True])
def test_onnx_runtime_computes_the_same_bits_alone(
    op: str, trans_b: bool, of_floats: bool, tmp_path: Path
) -> None:
    bias = np.linspace(-3, 3, FEATURES, dtype=F32) if of_floats else None
    graph = quantized(op, bias=bias, trans_b=trans_b)
    assert len(integer_biases(graph)) == 1
    pl.save(graph, tmp_path / "qdq.onnx")
    alone = start_exact_runtime(tmp_path / "qdq.onnx")
    x = np.random.default_rng(1).uniform(-2, 2, graph.tensors["x"].static_shape).astype(F32)
    (expected,) = alone.run(None, {"x": x})
    assert np.array_equal(pl.run(graph, {"x": x}, devices=["ort"])["y"], expected)
    by_floats = pl.run(graph, {"x": x}, devices=["cpu"])["y"]
    np.testing.assert_allclose(by_floats, expected, rtol=0, atol=0.25)  # one step


@pytest.mark.parametrize(
    "graph",
    [
        quantized(bias=np.linspace(-3, 3, FEATURES, dtype=F32), result=1e-4),
        quantized(bias=np.full(FEATURES, 1e9, F32)),
        quantized(again=False),
    ],
    ids=["steps of the sums are too coarse", "int32 is too small", "the result stays floats"],
)
def test_other_biases_stay_floats(graph: Graph) -> None:
    assert not integer_biases(graph)
