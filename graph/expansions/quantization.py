"""Quantised operators in floats, and quantisation itself in arithmetic.

Sums that are rounded once in integers are rounded more often here: results that are quantised again
may differ by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dims import normalise_axis
from .rules import Draft, expands

WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

BYTES = ("int8", "uint8")


@expands("QLinearMatMul")
def qlinear_matmul(
    draft: Draft,
    a: str, a_scale: str, a_zero: str,
    b: str, b_scale: str, b_zero: str,
    y_scale: str, y_zero: str,
) -> str | None:  # fmt: skip
    """Dequantize, MatMul, Quantize."""
    if any(draft.shape(one) not in ((), (1,)) for one in (a_scale, b_scale, y_scale)):
        return None
    left = draft("DequantizeLinear", a, a_scale, a_zero)
    right = draft("DequantizeLinear", b, b_scale, b_zero)
    return draft("QuantizeLinear", draft("MatMul", left, right), y_scale, y_zero)


@expands("QLinearConv")
def qlinear_conv(
    draft: Draft,
    x: str, x_scale: str, x_zero: str,
    w: str, w_scale: str, w_zero: str,
    y_scale: str, y_zero: str,
    bias: str = "",
) -> str | None:  # fmt: skip
    """Dequantize, Conv, Quantize."""
    if any(draft.spec(one).dtype != np.float32 for one in (x_scale, w_scale, y_scale)):
        return None
    values = draft("DequantizeLinear", x, x_scale, x_zero)
    weights = draft("DequantizeLinear", w, w_scale, w_zero, axis=0)
    operands = [values, weights]
    if bias:
        scale = draft("Mul", x_scale, w_scale)
        operands.append(draft("Mul", draft.cast(bias, "float32"), scale))
    product = draft("Conv", *operands, **_window(draft.attributes))
    return draft("QuantizeLinear", product, y_scale, y_zero)


@expands("ConvInteger")
def conv_integer(draft: Draft, x: str, w: str, x_zero: str = "", w_zero: str = "") -> str | None:
    """Conv in float64, in which sums of products of bytes are exact."""
    shape = draft.shape(w)
    if shape is None:
        return None
    operands = []
    for factor, zero in ((x, x_zero), (w, w_zero)):
        wide = draft.cast(factor, "float64")
        if zero:
            offset = draft.cast(zero, "float64")
            if factor is w and draft.shape(zero) not in ((), (1,)):
                offset = draft("Reshape", offset, (-1, *(1,) * (len(shape) - 1)))
            wide = draft("Sub", wide, offset)
        operands.append(wide)
    return draft.cast(draft("Conv", *operands, **_window(draft.attributes)), "int32")


@expands("DequantizeLinear")
def dequantize_linear(draft: Draft, x: str, scale: str, zero: str = "") -> str | None:
    """(x - zero point) · scale."""
    if not _is_plain(draft, scale) or draft.spec(scale).dtype != np.float32:
        return None
    if draft.spec(x).dtype.kind not in "iu" or draft.spec(x).dtype.itemsize > 2:
        return None  # int32 is not exact in float32
    wide = draft.cast(x, "float32")
    if zero:
        wide = draft("Sub", wide, _along_axis(draft, x, draft.cast(zero, "float32")))
    return draft("Mul", wide, _along_axis(draft, x, scale))


@expands("QuantizeLinear")
def quantize_linear(draft: Draft, x: str, scale: str, zero: str = "") -> str | None:
    """Round(x / scale) + zero point, saturated."""
    if not _is_plain(draft, scale) or {draft.spec(n).dtype.name for n in (x, scale)} != {"float32"}:
        return None
    made = draft.spec(draft.node.outputs[0]).dtype
    if made.kind not in "iu":
        return None
    number = draft("Round", draft("Div", x, _along_axis(draft, x, scale)))
    if zero:
        number = draft("Add", number, _along_axis(draft, x, draft.cast(zero, "float32")))
    limits = np.iinfo(made)
    bounds = (np.asarray(bound, np.float32) for bound in (limits.min, limits.max))
    return draft.cast(draft("Clip", number, *bounds), made)


@expands("DynamicQuantizeLinear")
def dynamic_quantize_linear(draft: Draft, x: str) -> tuple[str, str, str] | None:
    """The scale from the range of x with 0 in it, the zero point from the scale, then Quantize."""
    shape = draft.shape(x)
    if shape is None or 0 in shape:
        return None
    most = draft("Max", draft("ReduceMax", x, keepdims=False), 0.0)
    least = draft("Min", draft("ReduceMin", x, keepdims=False), 0.0)
    step = draft("Div", draft("Sub", most, least), 255.0)
    scale = draft("Where", draft("Equal", step, 0.0), np.ones((), np.float32), step)
    offset = draft("Neg", draft("Div", least, scale))
    bounds = (np.asarray(bound, np.float32) for bound in (0, 255))
    zero = draft.cast(draft("Clip", draft("Round", offset), *bounds), "uint8")
    return draft("QuantizeLinear", x, scale, zero), scale, zero


def _window(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in WINDOW}


def _is_plain(draft: Draft, scale: str) -> bool:
    """True where there is one scale, or one for each index along an axis, in usual precision."""
    unusual = ("block_size", "output_dtype", "precision")
    given = any(draft.attributes.get(name) for name in unusual)
    return not given and draft.shape(scale) is not None


def _along_axis(draft: Draft, x: str, numbers: str) -> str:
    """Return what lies along the axis so that it broadcasts to x."""
    rank, shape = draft.spec(x).rank, draft.shape(numbers)
    if shape == ():
        return numbers
    if shape == (1,):
        return draft("Reshape", numbers, np.zeros(0, np.int64))
    assert rank is not None, "there are scales along its axis"
    axis = normalise_axis(draft.attributes["axis"], rank)
    return draft("Reshape", numbers, (-1, *(1,) * (rank - 1 - axis)))
