"""Reals as bytes: scales, zero points, and the integers of constants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ...graph.tensor import Array
from .ranges import Range

WEIGHT_LIMIT = 127
"""Weights have no zero point, so that of int8 the lowest number is left out."""

BIAS_LIMIT = 1 << 30
"""Below half of what int32 holds: sums of products are added to it."""


class Integers(NamedTuple):
    """A constant as integers: real = (value - zero point) · scale.

    Attributes
    ----------
    value, scale, zero : Array
    axis : int
        Along which there are scales, where there are several.
    """

    value: Array
    scale: Array
    zero: Array
    axis: int = 0


def parameters(between: Range, dtype: DTypeLike) -> tuple[Array, Array]:
    """Return scale and zero point for which a range and 0 are spread over all integers."""
    limits = np.iinfo(np.dtype(dtype))
    low, high = min(between.low, 0.0), max(between.high, 0.0)
    scale = np.float32((high - low) / (limits.max - limits.min))
    if scale < np.finfo(np.float32).tiny:
        scale = np.float32(1)
    zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)
    return np.asarray(scale), zero.astype(dtype)


def quantized_weights(weights: Array, axis: int | None, least: Array | float = 0.0) -> Integers:
    """Return weights as int8 without zero points, by slice along an axis, or as a whole.

    Parameters
    ----------
    weights : Array
    axis : int or None
    least : Array or float
        What scales must be at least: that of a bias depends on them, and must hold it.
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(others if axis is not None else None, initial=0)
    scale = np.maximum(largest / np.float32(WEIGHT_LIMIT), least).astype(np.float32)
    scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
    along = [1] * weights.ndim
    if axis is not None:
        along[axis] = -1
    value = np.clip(np.rint(weights / scale.reshape(along)), -WEIGHT_LIMIT, WEIGHT_LIMIT)
    return Integers(value.astype(np.int8), scale, np.zeros(scale.shape, np.int8), axis or 0)


def least_scale(bias: Array, input_scale: Array, axis: int | None) -> Array:
    """Return the smallest scales of weights with which a bias is an int32."""
    needed = np.abs(bias.astype(np.float64)) / (float(input_scale) * BIAS_LIMIT)
    return np.asarray(needed if axis is not None else needed.max(initial=0))


def quantized_bias(bias: Array, input_scale: Array, weight_scale: Array) -> Integers:
    """Return a bias as int32 of the scale that sums of products have."""
    scale = (input_scale * weight_scale).astype(np.float32)
    wide = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    value = np.clip(wide, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    return Integers(value, scale, np.zeros(scale.shape, np.int32))
