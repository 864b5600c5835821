"""Differences of OpenVINO's provider from ONNX; such nodes go to other devices.

Found by running ONNX's own node tests on version 1.8.1, on a processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...graph.core.ir import Node
from ...graph.core.operator import Call
from ...graph.operators.attention import MASK
from ...graph.values.tensor import TensorSpec
from .differences import Difference

_EXACT = frozenset({"float32", "float16", "int32", "int8", "uint8", "bool"})
"""Dtypes that it computes exactly. int64 becomes int32, float64 becomes float32."""

_POSITIONS: Mapping[str, tuple[Sequence[int], bool]] = {
    "ArgMax": ((), True),
    "ArgMin": ((), True),
    "ConstantOfShape": ((0,), False),
    "Expand": ((1,), False),
    "Gather": ((1,), False),
    "GatherElements": ((1,), False),
    "GatherND": ((1,), False),
    "NonZero": ((), True),
    "Reshape": ((1,), False),
    "Shape": ((), True),
    "Size": ((), True),
    "Slice": ((1, 2, 3, 4), False),
    "Tile": ((1,), False),
    "TopK": ((), True),
}
"""Inputs that are positions and lengths, and whether int64 outputs are: these fit into 32 bits."""

_PEEPHOLES = 7


def find_openvino_difference(
    node: Node, call: Call, outputs: Sequence[TensorSpec | None]
) -> str | None:
    taken, yields = _POSITIONS.get(node.op, ((), False))
    for index, (spec, value) in enumerate(zip(call.inputs, call.values, strict=True)):
        if spec is None or value is not None or index in taken:
            continue
        if spec.dtype.name not in _EXACT:
            return _explain_rounding(spec)
    for spec in outputs:
        if spec is None or (yields and spec.dtype == np.int64):
            continue
        if spec.dtype.name not in _EXACT:
            return _explain_rounding(spec)
    found = _DIFFERENCES.get(node.op)
    return None if found is None else found(call)


def _explain_rounding(spec: TensorSpec) -> str:
    return f"OpenVINO computes {spec.dtype.name} in another type"


def _accept_all(call: Call) -> bool:
    return True


def _is_masked(call: Call) -> bool:
    return call.has(MASK) or bool(call.attributes["is_causal"])


def _has_layout(call: Call) -> bool:
    return bool(call.attributes["layout"])


def _is_resized_otherwise(call: Call) -> bool:
    told = call.attributes
    keeps = told["keep_aspect_ratio_policy"] != "stretch"
    return keeps or bool(told["antialias"] or told["exclude_outside"])


_DIFFERENCES: Mapping[str, Difference] = {
    "Attention": Difference(_is_masked, "what is masked altogether comes out as NaN"),
    "DFT": Difference(
        _accept_all, "it needs complex numbers, and other axes than the last but one"
    ),
    "DynamicQuantizeLinear": Difference(_accept_all, "it rounds halves up"),
    "GRU": Difference(_has_layout, "batches come second"),
    "LSTM": Difference(
        lambda call: _has_layout(call) or call.has(_PEEPHOLES),
        "batches come second, and peepholes are left out",
    ),
    "MaxPool": Difference(
        lambda call: bool(call.attributes["ceil_mode"]), "windows that begin behind the end count"
    ),
    "Resize": Difference(
        _is_resized_otherwise, "what is outside counts, nothing is smoothed, ratios change"
    ),
    "RoiAlign": Difference(
        lambda call: call.attributes["mode"] == "max", "maxima are those of averages"
    ),
    "RNN": Difference(_has_layout, "batches come second"),
}
