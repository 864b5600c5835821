"""Definitions of the products of quantized tensors, as exact integers or quantized again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.operator import Specs
from ...graph.tensor import Array
from .convolution import conv
from .ieee import divide
from .indices import broadcast_at, table
from .linear_algebra import matmul
from .quantization import centred, in_precision, quantized
from .registry import definition


@definition("MatMulInteger")
def matmul_integer(
    a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    """Y = (a - its zero point) · (b - its zero point).  Source: ONNX MatMulInteger."""
    return matmul(centred(a, _per_row(a, a_zero)), centred(b, _per_column(b_zero)))


@definition("QLinearMatMul")
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
    *,
    outputs: Specs,
) -> Array:
    """Y = (a - zero point) · (b - zero point), quantized again by the output's scale.

    Source: ONNX QLinearMatMul.
    """
    sums = matmul_integer(a, b, a_zero, b_zero)
    of_rows = [_without(_per_row(a, of), -1, b) for of in (a_scale, y_scale, y_zero)]
    scales = (of_rows[0], _without(_per_column(b_scale), -2, a), of_rows[1])
    return _requantized(sums, scales, of_rows[2], outputs)


@definition("ConvInteger")
def conv_integer(
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    *,
    outputs: Specs,
    **attributes: Any,
) -> Array:
    """Y = Conv of x - its zero point and w - its zero point; outside of x that is 0.

    Source: ONNX ConvInteger.
    """
    centred_w = centred(w, _per_feature(w_zero, w.ndim, axis=0))
    return conv(centred(x, _single(x_zero)), centred_w, outputs=outputs, **attributes)


@definition("QLinearConv")
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    b: Array | None = None,
    *,
    outputs: Specs,
    **attributes: Any,
) -> Array:
    """Y = ConvInteger + b, quantized again by the output's scale.  Source: ONNX QLinearConv."""
    x_centred = centred(x, _single(x_zero))
    w_centred = centred(w, _per_feature(w_zero, w.ndim, axis=0))
    sums = conv(x_centred, w_centred, b, outputs=outputs, **attributes)
    scales = (_single(x_scale), _per_feature(w_scale, w.ndim, axis=1), _single(y_scale))
    return _requantized(sums, scales, _single(y_zero), outputs)


def _requantized(
    sums: Array, scales: tuple[Array, Array, Array], zero: Array, outputs: Specs
) -> Array:
    """Return sums · one scale · the other / the output's scale, in float32, quantized."""
    single = np.dtype(np.float32)

    def element(*index: int) -> int:
        left, right, output = (float(broadcast_at(scale, index)) for scale in scales)
        real = divide(sums[index] * left * right, output)
        return quantized(
            in_precision(real, single), int(broadcast_at(zero, index)), outputs[0].dtype
        )

    return table(sums.shape, element)


def _single(number: Array | None) -> Any:
    return None if number is None else number.reshape(())


def _per_row(a: Array, numbers: Array | None) -> Any:
    """Return one number, or one per row of a stack of matrices, such that it is repeated right."""
    if numbers is None or numbers.size == 1:
        return _single(numbers)
    return numbers.reshape(-1, 1) if numbers.ndim == 1 else numbers


def _per_column(numbers: Array | None) -> Any:
    return _single(numbers) if numbers is None or numbers.size == 1 else numbers


def _without(numbers: Any, axis: int, factor: Array) -> Any:
    """Return numbers without an axis of length 1 that a product with a vector lacks."""
    return np.squeeze(numbers, axis) if factor.ndim == 1 and numbers.ndim >= -axis else numbers


def _per_feature(numbers: Array | None, rank: int, axis: int) -> Any:
    if numbers is None or numbers.size == 1:
        return _single(numbers)
    return numbers.reshape((-1, *(1,) * (rank - 1 - axis)))
