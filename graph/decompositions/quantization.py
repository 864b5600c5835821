"""Quantized operators in floats, and quantization as arithmetic.

Sums that integers round once are rounded more often here: requantized results may differ by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..values.dims import normalize_axis
from .rules import DecompositionBuilder, decomposition

WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

BYTES = ("int8", "uint8")


@decomposition("QLinearMatMul")
def qlinear_matmul(
    builder: DecompositionBuilder,
    a: str, a_scale: str, a_zero: str,
    b: str, b_scale: str, b_zero: str,
    y_scale: str, y_zero: str,
) -> str | None:  # fmt: skip
    if any(builder.shape(one) not in ((), (1,)) for one in (a_scale, b_scale, y_scale)):
        return None
    left = builder("DequantizeLinear", a, a_scale, a_zero)
    right = builder("DequantizeLinear", b, b_scale, b_zero)
    return builder("QuantizeLinear", builder("MatMul", left, right), y_scale, y_zero)


@decomposition("QLinearConv")
def qlinear_conv(
    builder: DecompositionBuilder,
    x: str, x_scale: str, x_zero: str,
    w: str, w_scale: str, w_zero: str,
    y_scale: str, y_zero: str,
    bias: str = "",
) -> str | None:  # fmt: skip
    if any(builder.spec(one).dtype != np.float32 for one in (x_scale, w_scale, y_scale)):
        return None
    values = builder("DequantizeLinear", x, x_scale, x_zero)
    weights = builder("DequantizeLinear", w, w_scale, w_zero, axis=0)
    operands = [values, weights]
    if bias:
        scale = builder("Mul", x_scale, w_scale)
        operands.append(builder("Mul", builder.cast(bias, "float32"), scale))
    product = builder("Conv", *operands, **_pick_window(builder.attributes))
    return builder("QuantizeLinear", product, y_scale, y_zero)


@decomposition("ConvInteger")
def conv_integer(
    builder: DecompositionBuilder, x: str, w: str, x_zero: str = "", w_zero: str = ""
) -> str | None:
    # float64 holds the sums exactly.
    shape = builder.shape(w)
    if shape is None:
        return None
    operands = []
    for factor, zero in ((x, x_zero), (w, w_zero)):
        wide = builder.cast(factor, "float64")
        if zero:
            offset = builder.cast(zero, "float64")
            if factor is w and builder.shape(zero) not in ((), (1,)):
                offset = builder("Reshape", offset, (-1, *(1,) * (len(shape) - 1)))
            wide = builder("Sub", wide, offset)
        operands.append(wide)
    return builder.cast(builder("Conv", *operands, **_pick_window(builder.attributes)), "int32")


@decomposition("DequantizeLinear")
def dequantize_linear(
    builder: DecompositionBuilder, x: str, scale: str, zero: str = ""
) -> str | None:
    if not _is_plain(builder, scale) or builder.spec(scale).dtype != np.float32:
        return None
    if builder.spec(x).dtype.kind not in "iu" or builder.spec(x).dtype.itemsize > 2:
        return None  # int32 is not exact in float32
    wide = builder.cast(x, "float32")
    if zero:
        wide = builder("Sub", wide, _align_to_axis(builder, x, builder.cast(zero, "float32")))
    return builder("Mul", wide, _align_to_axis(builder, x, scale))


@decomposition("QuantizeLinear")
def quantize_linear(
    builder: DecompositionBuilder, x: str, scale: str, zero: str = ""
) -> str | None:
    if not _is_plain(builder, scale) or {builder.spec(n).dtype.name for n in (x, scale)} != {
        "float32"
    }:
        return None
    made = builder.spec(builder.node.outputs[0]).dtype
    if made.kind not in "iu":
        return None
    number = builder("Round", builder("Div", x, _align_to_axis(builder, x, scale)))
    if zero:
        number = builder("Add", number, _align_to_axis(builder, x, builder.cast(zero, "float32")))
    limits = np.iinfo(made)
    bounds = (np.asarray(bound, np.float32) for bound in (limits.min, limits.max))
    return builder.cast(builder("Clip", number, *bounds), made)


@decomposition("DynamicQuantizeLinear")
def dynamic_quantize_linear(builder: DecompositionBuilder, x: str) -> tuple[str, str, str] | None:
    shape = builder.shape(x)
    if shape is None or 0 in shape:
        return None
    most = builder("Max", builder("ReduceMax", x, keepdims=False), 0.0)
    least = builder("Min", builder("ReduceMin", x, keepdims=False), 0.0)
    step = builder("Div", builder("Sub", most, least), 255.0)
    scale = builder("Where", builder("Equal", step, 0.0), np.ones((), np.float32), step)
    offset = builder("Neg", builder("Div", least, scale))
    bounds = (np.asarray(bound, np.float32) for bound in (0, 255))
    zero = builder.cast(builder("Clip", builder("Round", offset), *bounds), "uint8")
    return builder("QuantizeLinear", x, scale, zero), scale, zero


def _pick_window(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in WINDOW}


def _is_plain(builder: DecompositionBuilder, scale: str) -> bool:
    """Return whether `scale` in `builder` has a known shape, and no unusual attribute is given."""
    unusual = ("block_size", "output_dtype", "precision")
    given = any(builder.attributes.get(name) for name in unusual)
    return not given and builder.shape(scale) is not None


def _align_to_axis(builder: DecompositionBuilder, x: str, numbers: str) -> str:
    rank, shape = builder.spec(x).rank, builder.shape(numbers)
    if shape == ():
        return numbers
    if shape == (1,):
        return builder("Reshape", numbers, np.zeros(0, np.int64))
    assert rank is not None, "there are scales along its axis"
    axis = normalize_axis(builder.attributes["axis"], rank)
    return builder("Reshape", numbers, (-1, *(1,) * (rank - 1 - axis)))
