"""Weights of 4 bits: read as bytes where they are decoded, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from plait.graph.values.tensor import Array

KINDS = {"INT4": (TensorProto.INT4, -8, 7), "UINT4": (TensorProto.UINT4, 0, 15)}


def decoding(kind: str, values: Array, *, form: str = "raw", block: int = 0, op: str = "") -> Any:
    """Return a model of x · (values - zero) · scale, or with the values as a node's zero point."""
    type_, low, _ = KINDS[kind]
    rows, columns = values.shape
    w = helper.make_tensor("w", type_, values.shape, values.ravel().tolist())
    if form != "listed":
        w = numpy_helper.from_array(numpy_helper.to_array(w), "w")
    blocks = (-(-rows // block), columns) if block else ()
    scales = np.linspace(0.5, 1, int(np.prod(blocks)), dtype=np.float32).reshape(blocks)
    zero = helper.make_tensor("z", type_, blocks, [low + 3] * scales.size)
    extra: dict[str, Any] = {"axis": 0, "block_size": block} if block else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["floats"], **extra),
        helper.make_node("MatMul", ["x", "floats"], ["y"]),
    ]
    if op:
        nodes[0] = helper.make_node(op, ["s", "s", "z"], ["floats"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "decoding",
        [value("x", TensorProto.FLOAT, ["n", rows])],
        [value("y", TensorProto.FLOAT, ["n", columns])],
        [w, numpy_helper.from_array(scales, "s"), zero],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@settings(max_examples=20)
@given(data=st.data(), kind=st.sampled_from(list(KINDS)), form=st.sampled_from(["raw", "listed"]))
def test_they_are_what_onnx_reads(data: st.DataObject, kind: str, form: str) -> None:
    _, low, high = KINDS[kind]
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    count = shape[0] * shape[1]
    listed = data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    model = decoding(kind, np.array(listed).reshape(shape), form=form)
    wanted = numpy_helper.to_array(model.graph.initializer[0]).astype(np.int8)
    graph = pl.load(model)
    (found,) = (value for value in graph.constants.values() if value.shape == shape)
    assert found.dtype == ("int8" if kind == "INT4" else "uint8")
    assert np.array_equal(found.astype(np.int8), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [0, 4])
@pytest.mark.parametrize("device", ["cpu", "compiled", "worker:0", "ort"])
def test_onnxruntime_computes_the_same_of_them(
    kind: str, block: int, device: str, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    _, low, high = KINDS[kind]
    random = np.random.default_rng(0)
    model = decoding(kind, random.integers(low, high + 1, (8, 5)), block=block)
    x = random.standard_normal((3, 8), np.float32)
    options = onnxruntime.SessionOptions()
    # One of its optimizers rounds what these weights are multiplied by to 8 bits.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    alone = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (wanted,) = alone.run(None, {"x": x})
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    found = pl.run(pl.load(tmp_path / "m.onnx"), {"x": x}, devices=[device])["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_where_they_are_not_decoded_they_are_refused() -> None:
    model = decoding("INT4", np.zeros((2, 2), int), op="QuantizeLinear")
    with pytest.raises(pl.ParseError, match="elements of type INT4 are not supported"):
        pl.load(model)


def test_too_few_bytes_are_refused() -> None:
    model = decoding("UINT4", np.zeros((3, 3), int))
    model.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(pl.ParseError, match="needs 5 bytes"):
        pl.load(model)
