"""Formulas of conversions: between dtypes, and between real and quantized numbers.

Each takes a `call` and, as C expressions, its `arguments`; it returns the C expression of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.operator import Call
from ...graph.operators.quantization import is_single
from ...graph.values.dtypes import dtype_of
from .elementwise import elementwise
from .formulas import Operand, list_first_input
from .types import is_float, is_narrow, to_computed_type, write_literal, write_rounding


def convert(value: str, source: str, dtype: np.dtype[Any]) -> str:
    """Return the expression that converts `value`, of the computed type `source`, to `dtype`.

    Floats become integers by rounding toward zero; nonzero values become true.
    """
    target = to_computed_type(dtype)
    if dtype == np.bool_:
        return f"({value}) != 0"
    if source.startswith("f") and not target.startswith("f"):
        return f"to_{target}_{source}({value})"
    if is_narrow(dtype) and source == "f64":
        return f"odd_f32_f64({value})"
    return value if source == target else f"({target})({value})"


@elementwise("Cast", operands=list_first_input)
def cast(call: Call, arguments: Sequence[str]) -> str:
    source = to_computed_type(call.spec(0).dtype)
    return convert(arguments[0], source, dtype_of(call.attributes["to"]))


@elementwise("CastLike", operands=list_first_input)
def cast_like(call: Call, arguments: Sequence[str]) -> str:
    return convert(arguments[0], to_computed_type(call.spec(0).dtype), call.spec(1).dtype)


def refuse_blocks(call: Call) -> str | None:
    """Return why `call` has no formula, if its scales are per block, or else None."""
    shape = call.spec(1).shape
    if call.attributes["block_size"] and (shape is None or not is_single(shape)):
        return "elements side by side share a scale"
    return None


def _list_operands(call: Call) -> Sequence[Operand]:
    x = call.spec(0).static_shape
    later = len(x) - call.attributes["axis"] % len(x) - 1 if x else 0
    listed = [Operand(0, x)]
    for index in (1, 2):
        if call.has(index):
            own = call.spec(index).static_shape
            listed.append(Operand(index, () if is_single(own) else (*own, *(1,) * later)))
    return listed


@elementwise("QuantizeLinear", operands=_list_operands, unless=refuse_blocks, alone=False)
def quantize(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: x / scale, rounded, + zero point, saturated."""
    x, scale, zero = (*arguments, "")[:3]
    target = (
        call.spec(2).dtype if call.has(2) else dtype_of(call.attributes["output_dtype"] or "uint8")
    )
    dtype = _find_quotient_dtype(call)
    c = "f64" if "f64" in map(_find_computed_type, (dtype, call.spec(1).dtype)) else "f32"
    quotient = write_rounding(dtype, f"{write_rounding(dtype, f'({c}){x}')} / ({c}){scale}")
    moved = f"rint({quotient})" + (f" + ({c}){zero}" if zero else "")
    low, high = (write_literal(end, c) for end in (np.iinfo(target).min, np.iinfo(target).max))
    return convert(f"min_{c}(max_{c}({moved}, {low}), {high})", c, target)


def _find_quotient_dtype(call: Call) -> np.dtype[Any]:
    asked, scale = call.attributes["precision"], call.spec(1).dtype
    if asked is not None:
        return dtype_of(asked)
    return scale if is_float(scale) else np.dtype(np.float64)


def _find_computed_type(dtype: np.dtype[Any]) -> str:
    return to_computed_type(dtype) if is_float(dtype) else "f64"


@elementwise("DequantizeLinear", operands=_list_operands, unless=refuse_blocks, alone=False)
def dequantize(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: (x - zero point) · scale; int32 differences wrap."""
    x, scale, zero = (*arguments, "")[:3]
    target = dtype_of(call.attributes["output_dtype"] or call.spec(1).dtype)
    c = "f64" if "f64" in map(to_computed_type, (target, call.spec(1).dtype)) else "f32"
    moved = f"({c}){x}"
    if zero and call.spec(0).dtype.itemsize < 4:
        moved = f"({moved} - ({c}){zero})"
    elif zero:
        moved = f"({c})(i32)((u32){x} - (u32){zero})"
    return convert(f"{moved} * ({c}){scale}", c, target)
