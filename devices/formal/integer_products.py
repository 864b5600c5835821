"""Definitions of products of quantized tensors: ``op(*inputs, **attributes)``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.core.operator import Specs
from ...graph.values.tensor import Array
from .convolution import conv
from .ieee import divide
from .linear_algebra import matmul
from .quantization import center, quantize_number, round_to
from .registry import broadcast_at, definition, table


@definition("MatMulInteger")
def matmul_integer(
    a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return matmul(center(a, _align_rows(a, a_zero)), center(b, _align_columns(b_zero)))


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
    sums = matmul_integer(a, b, a_zero, b_zero)
    of_rows = [_drop_axis(_align_rows(a, of), -1, b) for of in (a_scale, y_scale, y_zero)]
    scales = (of_rows[0], _drop_axis(_align_columns(b_scale), -2, a), of_rows[1])
    return _requantize(sums, scales, of_rows[2], outputs)


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
    # Outside of x, x minus its zero point is 0.
    centred_w = center(w, _align_features(w_zero, w.ndim, axis=0))
    return conv(center(x, _to_scalar(x_zero)), centred_w, outputs=outputs, **attributes)


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
    x_centred = center(x, _to_scalar(x_zero))
    w_centred = center(w, _align_features(w_zero, w.ndim, axis=0))
    sums = conv(x_centred, w_centred, b, outputs=outputs, **attributes)
    scales = (_to_scalar(x_scale), _align_features(w_scale, w.ndim, axis=1), _to_scalar(y_scale))
    return _requantize(sums, scales, _to_scalar(y_zero), outputs)


def _requantize(
    sums: Array, scales: tuple[Array, Array, Array], zero: Array, outputs: Specs
) -> Array:
    """Return `sums` times two of the `scales` by the third, as integers of `outputs` plus `zero`.

    They are computed in float32.
    """
    single = np.dtype(np.float32)

    def element(*index: int) -> int:
        left, right, output = (float(broadcast_at(scale, index)) for scale in scales)
        real = divide(sums[index] * left * right, output)
        return quantize_number(
            round_to(real, single), int(broadcast_at(zero, index)), outputs[0].dtype
        )

    return table(sums.shape, element)


def _to_scalar(number: Array | None) -> Any:
    return None if number is None else number.reshape(())


def _align_rows(a: Array, numbers: Array | None) -> Any:
    """Return `numbers`, a single one or one per row of the stack `a`, shaped to broadcast to it."""
    if numbers is None or numbers.size == 1:
        return _to_scalar(numbers)
    return numbers.reshape(-1, 1) if numbers.ndim == 1 else numbers


def _align_columns(numbers: Array | None) -> Any:
    return _to_scalar(numbers) if numbers is None or numbers.size == 1 else numbers


def _drop_axis(numbers: Any, axis: int, factor: Array) -> Any:
    """Return `numbers` without `axis`, of length 1, if `factor` is a vector: products lack it."""
    return np.squeeze(numbers, axis) if factor.ndim == 1 and numbers.ndim >= -axis else numbers


def _align_features(numbers: Array | None, rank: int, axis: int) -> Any:
    if numbers is None or numbers.size == 1:
        return _to_scalar(numbers)
    return numbers.reshape((-1, *(1,) * (rank - 1 - axis)))
