"""Formulas of conversions: between dtypes, and between real numbers and quantized ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.dtypes import dtype_of
from ...graph.operator import Call
from ...graph.operators.quantization import is_single
from .elementwise import elementwise
from .formulas import Operand, first_input
from .types import computed_type, is_float, is_narrow, literal, rounded


def converted(value: str, source: str, dtype: np.dtype[Any]) -> str:
    """Return the expression of a value of a computed type, as one of another dtype.

    Floats become integers by rounding toward zero, and what is not zero becomes true.
    """
    target = computed_type(dtype)
    if dtype == np.bool_:
        return f"({value}) != 0"
    if source.startswith("f") and not target.startswith("f"):
        return f"to_{target}_{source}({value})"
    if is_narrow(dtype) and source == "f64":
        return f"odd_f32_f64({value})"
    return value if source == target else f"({target})({value})"


@elementwise("Cast", operands=first_input)
def cast(call: Call, arguments: Sequence[str]) -> str:
    """Write x in the dtype `to`."""
    source = computed_type(call.spec(0).dtype)
    return converted(arguments[0], source, dtype_of(call.attributes["to"]))


@elementwise("CastLike", operands=first_input)
def cast_like(call: Call, arguments: Sequence[str]) -> str:
    """Write x in the dtype of the second input."""
    return converted(arguments[0], computed_type(call.spec(0).dtype), call.spec(1).dtype)


def has_blocks(call: Call) -> str | None:
    """Say so of a node whose scales are for blocks of elements."""
    shape = call.spec(1).shape
    if call.attributes["block_size"] and (shape is None or not is_single(shape)):
        return "elements side by side share a scale"
    return None


def _quantized(call: Call) -> Sequence[Operand]:
    """Return x, the scale and the zero point: one number each, or one per index of the axis."""
    x = call.spec(0).static_shape
    behind = len(x) - call.attributes["axis"] % len(x) - 1 if x else 0
    listed = [Operand(0, x)]
    for index in (1, 2):
        if call.has(index):
            own = call.spec(index).static_shape
            listed.append(Operand(index, () if is_single(own) else (*own, *(1,) * behind)))
    return listed


@elementwise("QuantizeLinear", operands=_quantized, unless=has_blocks, alone=False)
def quantize(call: Call, arguments: Sequence[str]) -> str:
    """Write x / scale, rounded, + zero point, saturated."""
    x, scale, zero = (*arguments, "")[:3]
    target = (
        call.spec(2).dtype if call.has(2) else dtype_of(call.attributes["output_dtype"] or "uint8")
    )
    dtype = _quotient_dtype(call)
    c = "f64" if "f64" in map(_computed, (dtype, call.spec(1).dtype)) else "f32"
    quotient = rounded(dtype, f"{rounded(dtype, f'({c}){x}')} / ({c}){scale}")
    moved = f"rint({quotient})" + (f" + ({c}){zero}" if zero else "")
    low, high = (literal(end, c) for end in (np.iinfo(target).min, np.iinfo(target).max))
    return converted(f"min_{c}(max_{c}({moved}, {low}), {high})", c, target)


def _quotient_dtype(call: Call) -> np.dtype[Any]:
    """Return the dtype that quotients are rounded to: as asked for, or the scale's."""
    asked, scale = call.attributes["precision"], call.spec(1).dtype
    if asked is not None:
        return dtype_of(asked)
    return scale if is_float(scale) else np.dtype(np.float64)


def _computed(dtype: np.dtype[Any]) -> str:
    return computed_type(dtype) if is_float(dtype) else "f64"


@elementwise("DequantizeLinear", operands=_quantized, unless=has_blocks, alone=False)
def dequantize(call: Call, arguments: Sequence[str]) -> str:
    """Write (x - zero point) · scale; of int32 the difference wraps around."""
    x, scale, zero = (*arguments, "")[:3]
    target = dtype_of(call.attributes["output_dtype"] or call.spec(1).dtype)
    c = "f64" if "f64" in map(computed_type, (target, call.spec(1).dtype)) else "f32"
    moved = f"({c}){x}"
    if zero and call.spec(0).dtype.itemsize < 4:
        moved = f"({moved} - ({c}){zero})"
    elif zero:
        moved = f"({c})(i32)((u32){x} - (u32){zero})"
    return converted(f"{moved} * ({c}){scale}", c, target)
