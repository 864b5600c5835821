"""Definitions, ``op(*inputs, **attributes)``, of quantization: q = r / scale + zero point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.operator import Specs
from ...graph.values.dtypes import dtype_of, kind_of
from ...graph.values.dtypes import get_largest as largest_of
from ...graph.values.tensor import Array
from .elementwise import clamp
from .ieee import divide, largest, smallest
from .registry import at, broadcast_at, definition, indices, table
from .results import to_dtype


@definition("QuantizeLinear")
def quantize_linear(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: np.dtype[Any] | None,
    precision: np.dtype[Any] | None,
    saturate: bool,
    outputs: Specs,
) -> Array:
    # The quotient has the dtype of precision, or of the scale. Floats of 8 bits have the zero point
    # 0, and are rounded as such.
    divides_in = dtype_of(precision) if precision is not None else scale.dtype
    dtype = outputs[0].dtype

    def element(*index: int) -> float:
        place = _find_granule(scale.shape, index, axis, block_size)
        quotient = divide(float(at(x, *index)), float(at(scale, *place)))
        quotient = round_to(quotient, divides_in)
        if kind_of(dtype) == "e":
            return clamp(quotient, largest_of(dtype)) if saturate else quotient
        return quantize_number(quotient, 0 if zero is None else at(zero, *place), dtype)

    return table(x.shape, element)


@definition("DequantizeLinear")
def dequantize_linear(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: np.dtype[Any] | None,
) -> Array:
    def element(*index: int) -> float:
        place = _find_granule(scale.shape, index, axis, block_size)
        offset = 0 if zero is None else at(zero, *place)
        return float((at(x, *index) - offset) * at(scale, *place))

    return table(x.shape, element)


@definition("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Array) -> tuple[Array, float, int]:
    # In uint8, with a range that includes 0. Where all is 0 the scale may be anything but 0: it is
    # 1. Source: ONNX DynamicQuantizeLinear, which computes in float32.
    single, byte = np.dtype(np.float32), np.dtype(np.uint8)
    values = [at(x, *index) for index in indices(x.shape)]
    low, high = smallest([*values, 0.0]), largest([*values, 0.0])
    scale = round_to(round_to(high - low, single) / 255, single) or 1.0
    zero = quantize_number(round_to(-low / scale, single), 0, byte)

    def element(*index: int) -> int:
        return quantize_number(round_to(at(x, *index) / scale, single), zero, byte)

    return table(x.shape, element), scale, zero


def _find_granule(
    shape: Sequence[int], index: Sequence[int], axis: int, block_size: int
) -> tuple[int, ...]:
    """Return the index of the scale for element `index`, among scales of `shape`.

    There is one scale, or one for each slice along `axis`, or for each `block_size` slices; 0 means
    without blocks.
    """
    if len(shape) < 2 and math.prod(shape) == 1:
        return (0,) * len(shape)
    axis %= len(index)
    if not block_size:
        return (index[axis],)
    return (*index[:axis], index[axis] // block_size, *index[axis + 1 :])


def round_to(value: float, dtype: np.dtype[Any]) -> float:
    return float(to_dtype(value, dtype).item()) if kind_of(dtype) == "f" else value


def quantize_number(quotient: float, zero: int, dtype: np.dtype[Any]) -> int:
    """Return `quotient` rounded, halves to even, plus the `zero` point, saturated to `dtype`."""
    bounds = np.iinfo(dtype)
    if not math.isfinite(quotient):
        return int(bounds.max if quotient > 0 else bounds.min)
    return min(max(round(quotient) + zero, int(bounds.min)), int(bounds.max))


def center(x: Array, zero: Array | None) -> Array:
    if zero is None:
        return x
    return table(x.shape, lambda *i: np.int64(at(x, *i) - broadcast_at(zero, i))).astype(np.int64)
