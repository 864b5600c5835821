"""Differences of OpenVINO's provider from ONNX, for which nodes go to other devices.

Found by running ONNX's own node tests on version 1.8.1, on a processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...graph.ir import Node
from ...graph.operator import Call
from ...graph.operators.dot_attention import MASK
from ...graph.tensor import TensorSpec

_EXACT = frozenset({"float32", "float16", "int32", "int8", "uint8", "bool"})
"""Dtypes that it computes as they are. Integers of 64 bits become such of 32, float64 float32."""

_INDICES = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Tile": (1,),
}
"""The inputs that hold positions and lengths, which fit into 32 bits."""

_POSITIONS = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK"})
"""Operators whose int64 are such."""

_PEEPHOLES = 7


def openvino_difference(node: Node, call: Call, outputs: Sequence[TensorSpec | None]) -> str | None:
    """Return what OpenVINO would do otherwise than ONNX; None where nothing is known."""
    for index, (spec, value) in enumerate(zip(call.inputs, call.values, strict=True)):
        if spec is None or value is not None or index in _INDICES.get(node.op, ()):
            continue
        if spec.dtype.name not in _EXACT:
            return _rounded(spec)
    for spec in outputs:
        if spec is None or (spec.dtype == np.int64 and node.op in _POSITIONS):
            continue
        if spec.dtype.name not in _EXACT:
            return _rounded(spec)
    found = _DIFFERENCES.get(node.op)
    return found[1] if found is not None and found[0](call) else None


def _rounded(spec: TensorSpec) -> str:
    return f"OpenVINO computes {spec.dtype.name} in another type"


def _always(call: Call) -> bool:
    return True


def _is_masked(call: Call) -> bool:
    return call.has(MASK) or bool(call.attributes["is_causal"])


def _has_layout(call: Call) -> bool:
    return bool(call.attributes["layout"])


def _rounds_up(call: Call) -> bool:
    return bool(call.attributes["ceil_mode"])


def _resizes_otherwise(call: Call) -> bool:
    told = call.attributes
    keeps = told["keep_aspect_ratio_policy"] != "stretch"
    return keeps or bool(told["antialias"] or told["exclude_outside"])


_DIFFERENCES: Mapping[str, tuple[Callable[[Call], bool], str]] = {
    "Attention": (_is_masked, "what is masked altogether comes out as NaN"),
    "DFT": (_always, "it needs both parts of numbers, and other axes than the last but one"),
    "DynamicQuantizeLinear": (_always, "it rounds halves up"),
    "GRU": (_has_layout, "batches come second"),
    "LSTM": (
        lambda call: _has_layout(call) or call.has(_PEEPHOLES),
        "batches come second, and peepholes are left out",
    ),
    "MaxPool": (_rounds_up, "windows that begin behind the end count"),
    "Resize": (_resizes_otherwise, "what is outside counts, nothing is smoothed, ratios change"),
    "RoiAlign": (lambda call: call.attributes["mode"] == "max", "maxima are those of averages"),
    "RNN": (_has_layout, "batches come second"),
}
