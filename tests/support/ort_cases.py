"""Models of operators that only ONNX Runtime has, and what to feed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from plait.graph.values.tensor import Array

OPSET = 21
_FLOAT = TensorProto.FLOAT


class Case(NamedTuple):
    """A node between an Abs and a Neg of ONNX, and its inputs: the first is fed."""

    op: str
    domain: str
    fed: Array
    constants: Mapping[str, Array]
    attributes: Mapping[str, Any]
    outputs: int = 1

    def model(self) -> ModelProto:
        dtype = helper.np_dtype_to_tensor_dtype(self.fed.dtype)
        names = ["inner", *(name if array.size else "" for name, array in self.constants.items())]
        made = [f"y{i}" for i in range(self.outputs)]
        nodes = [
            helper.make_node("Max", ["x", "x"], ["inner"]),
            helper.make_node(self.op, names, made, "own", domain=self.domain, **self.attributes),
            helper.make_node("Identity" if dtype != _FLOAT else "Neg", [made[-1]], ["y"]),
        ]
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            nodes,
            "case",
            [value("x", dtype, ["n", *self.fed.shape[1:]])],
            [value("y", _FLOAT if self.op == "TreeEnsembleRegressor" else dtype, None)],
            [numpy_helper.from_array(a, name) for name, a in self.constants.items() if a.size],
        )
        version = 1
        if self.domain == "ai.onnx.ml":
            version = {"TreeEnsemble": 5, "LabelEncoder": 4}.get(self.op, 3)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(self.domain, version)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


_rng = np.random.default_rng(0)
_NONE = np.zeros(0, np.float32)


def _floats(*shape: int) -> Array:
    return _rng.standard_normal(shape, np.float32)


def _tensor(values: Any, dtype: Any) -> Any:
    return numpy_helper.from_array(np.array(values, dtype))


TREES: dict[str, Any] = {
    "n_targets": 1,
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [0, 0, 0, 3, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
    "nodes_values": [0.1, 0.0, 0.0, -0.3, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
    "target_treeids": [0, 0, 1, 1],
    "target_nodeids": [1, 2, 1, 2],
    "target_ids": [0] * 4,
    "target_weights": [1.5, -2.0, 0.25, 8.0],
}

_NEWER_TREES = {
    "n_targets": 1,
    "tree_roots": [0, 1],
    "nodes_featureids": [0, 3],
    "nodes_modes": _tensor([0, 0], np.uint8),
    "nodes_splits": _tensor([0.1, -0.3], np.float64),
    "nodes_truenodeids": [0, 2],
    "nodes_trueleafs": [1, 1],
    "nodes_falsenodeids": [1, 3],
    "nodes_falseleafs": [1, 1],
    "leaf_targetids": [0] * 4,
    "leaf_weights": _tensor([1.5, -2.0, 0.25, 8.0], np.float64),
}

_TREES_OF_DOUBLES = {
    **{
        name: value
        for name, value in TREES.items()
        if name not in ("nodes_values", "target_weights")
    },
    "nodes_values_as_tensor": _tensor(TREES["nodes_values"], np.float64),
    "target_weights_as_tensor": _tensor(TREES["target_weights"], np.float64),
}

_SCALE, _ZERO = np.float32(0.05), np.uint8(128)

CASES = (
    Case("FusedMatMul", "com.microsoft", _floats(3, 4), {"b": _floats(5, 4)},
         {"transB": 1, "alpha": 0.5}),
    Case("BiasGelu", "com.microsoft", _floats(3, 8), {"b": _floats(8)}, {}),
    Case("SkipLayerNormalization", "com.microsoft", _floats(2, 3, 8),
         {"skip": _floats(3, 8), "gamma": _floats(8), "beta": _NONE, "bias": _floats(8)},
         {"epsilon": 1e-6}),
    Case("MatMulNBits", "com.microsoft", _floats(3, 32),
         {"b": _rng.integers(0, 256, (4, 2, 8), np.uint8), "scales": _floats(8)},
         {"K": 32, "N": 4, "bits": 4, "block_size": 16}),
    Case("QLinearAdd", "com.microsoft", _rng.integers(0, 256, (3, 5), np.uint8),
         {"a_scale": np.array(_SCALE), "a_zero": np.array(_ZERO),
          "b": _rng.integers(0, 256, (5,), np.uint8), "b_scale": np.array(_SCALE),
          "b_zero": np.array(_ZERO), "c_scale": np.array(2 * _SCALE), "c_zero": np.array(_ZERO)},
         {}),
    Case("QuickGelu", "com.microsoft", _floats(4, 7), {}, {"alpha": 1.5}),
    Case("TreeEnsembleRegressor", "ai.onnx.ml", _floats(6, 4), {}, TREES),
    Case("TreeEnsembleRegressor", "ai.onnx.ml", _floats(6, 4).astype(np.float64), {},
         _TREES_OF_DOUBLES),
    Case("TreeEnsemble", "ai.onnx.ml", _floats(6, 4).astype(np.float64), {}, _NEWER_TREES),
    Case("LabelEncoder", "ai.onnx.ml", _rng.integers(0, 5, (6, 2)), {},
         {"keys_tensor": _tensor([0, 1, 2], np.int64), "default_tensor": _tensor([-1], np.int64),
          "values_tensor": _tensor([9, 8, 7], np.int64)}),
    Case("Scaler", "ai.onnx.ml", _floats(6, 4), {},
         {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [1.0, 2.0, 3.0, 4.0]}),
)  # fmt: skip
