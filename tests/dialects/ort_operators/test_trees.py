"""Shapes of tree ensembles, which plait infers without a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from ort_cases import TREES
from plait.dialects.ort_operators import inference

SPLITS = {name: value for name, value in TREES.items() if name.startswith("nodes_")}
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def make_model(
    attributes: dict[str, Any], dtype: str, rows: Any, outputs: Mapping[str, int]
) -> Any:
    op = "TreeEnsembleClassifier" if len(outputs) > 1 else "TreeEnsembleRegressor"
    value = helper.make_tensor_value_info
    node = helper.make_node(op, ["x"], [*outputs], domain="ai.onnx.ml", **attributes)
    made = [value(name, type_, None) for name, type_ in outputs.items()]
    graph = helper.make_graph([node], "trees", [value("x", TYPES[dtype], [rows, 4])], made)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make_leaves(prefix: str, count: int) -> dict[str, Any]:
    return {
        f"{prefix}_treeids": [0, 0, 1, 1],
        f"{prefix}_nodeids": [1, 2, 1, 2],
        f"{prefix}_ids": [n % count for n in range(4)],
        f"{prefix}_weights": [1.5, -2.0, 0.25, 8.0],
    }


@settings(max_examples=40)
@given(
    count=st.integers(1, 4),
    labels=st.sampled_from(["", "int64s", "strings"]),
    dtype=st.sampled_from(sorted(TYPES)),
    rows=st.sampled_from(["n", 1, 3]),
)
def test_they_are_those_of_onnxruntime(count: int, labels: str, dtype: str, rows: Any) -> None:
    count += labels == "strings"  # of one label, it aborts
    attributes, outputs = {**SPLITS, **make_leaves("target", count)}, {"y": TensorProto.FLOAT}
    if labels:
        named = list(range(5, 5 + count)) if labels == "int64s" else list("abcde"[:count])
        attributes = {**SPLITS, **make_leaves("class", count), f"classlabels_{labels}": named}
        is_text = labels == "strings"
        outputs["y"] = TensorProto.STRING if is_text else TensorProto.INT64
        outputs["scores"] = TensorProto.FLOAT
    else:
        attributes["n_targets"] = count
    model = make_model(attributes, dtype, rows, outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "load", None)
        graph = pl.load(model)
    length = 2 if rows == "n" else rows
    x = np.linspace(-1, 1, 4 * length).reshape(length, 4).astype(dtype)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = pl.run(graph, {"x": x}, devices=["ort"])
    for name, array in zip(outputs, wanted, strict=True):
        spec = graph.tensors[name]
        assert spec.shape == (rows, *array.shape[1:])
        assert spec.dtype.kind == array.dtype.kind
        np.testing.assert_array_equal(found[name], array)


def test_one_label_of_text_is_refused() -> None:
    attributes = {**SPLITS, **make_leaves("class", 1), "classlabels_strings": ["only"]}
    outputs = {"y": TensorProto.STRING, "scores": TensorProto.FLOAT}
    with pytest.raises(pl.PlaitError, match="one label, 'only'"):
        pl.load(make_model(attributes, "float32", "n", outputs))


@pytest.mark.parametrize("targets", [0, -3])
def test_ensembles_without_results_are_refused(targets: int) -> None:
    attributes = {**SPLITS, **make_leaves("target", 1), "n_targets": targets}
    model = make_model(attributes, "float32", "n", {"y": TensorProto.FLOAT})
    with pytest.raises(pl.PlaitError):
        pl.run(pl.load(model), {"x": np.ones((2, 4), "float32")}, devices=["ort"])
