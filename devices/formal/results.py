"""Conversion of a definition's results, which are exact numbers, to a tensor's dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.values.tensor import Array, TensorSpec
from ..errors import DeviceError


def to_dtype(result: Any, dtype: np.dtype[Any]) -> Array:
    """Return `result` of a definition as an array of `dtype`; unchanged if it is one already.

    Integers are taken modulo 2ⁿ, two's complement; everything else is rounded once, to even. Raises
    DeviceError if an integer dtype gets another number.
    """
    array = result if isinstance(result, np.ndarray) else np.array(result, object)
    if array.dtype == dtype:
        return array
    convert = _make_converter(dtype)
    values = [convert(value) for value in array.reshape(-1).tolist()]
    return np.array(values, dtype).reshape(array.shape)


def check_fits(result: Array, spec: TensorSpec, exactly: bool = True) -> Array:
    """Return `result` in the shape of `spec` or, without `exactly`, within it.

    Nested lists cannot represent axes after one of length 0: then the tensor's shape is used.
    Raises DeviceError if it has another shape.
    """
    shape = spec.static_shape
    if exactly and result.size == 0 == spec.size:
        return result.reshape(shape)
    within = result.ndim == len(shape) and all(
        a <= b for a, b in zip(result.shape, shape, strict=False)
    )
    if not within or (exactly and result.shape != shape):
        raise DeviceError(
            f"a definition returned the shape {list(result.shape)} for {spec}",
            fix="correct the definition, or the operator's shape rule",
        )
    return result


EXTENSIONS = {
    "bfloat16": (8, -126),
    "float8_e4m3fn": (4, -6),
    "float8_e4m3fnuz": (4, -7),
    "float8_e5m2": (3, -14),
    "float8_e5m2fnuz": (3, -15),
}
"""Binary digits of floats that numpy lacks, and the exponent of their smallest normal number."""


def _make_converter(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    if dtype.kind == "b":
        return bool
    if dtype.kind == "c":
        return complex
    if dtype.name in EXTENSIONS:
        digits, least = EXTENSIONS[dtype.name]
        return lambda value: round_to_digits(_round(value, digits), digits, least)
    if dtype.kind == "f":
        digits = np.finfo(dtype).nmant + 1
        return lambda value: _round(value, digits)
    bits = 8 * dtype.itemsize
    return lambda value: wrap(_to_integer(value), bits, signed=dtype.kind == "i")


def _round(value: Any, digits: int) -> float:
    return round_to_float(value, digits) if type(value) is int else float(value)


def round_to_digits(value: float, digits: int, least: int) -> float:
    """Return `value` rounded once to `digits` binary digits, halves to even.

    Below 2 to the power of `least` there are fewer. (`ml_dtypes` rounds through float32: twice.)
    """
    if not math.isfinite(value) or value == 0:
        return value
    exponent = max(math.frexp(value)[1] - 1, least) - (digits - 1)
    return math.copysign(math.ldexp(round(math.ldexp(value, -exponent)), exponent), value)


def wrap(value: int, bits: int, *, signed: bool) -> int:
    """Return the number congruent to `value` modulo 2ⁿ that fits in n `bits`, perhaps `signed`."""
    low = value % (1 << bits)
    return low - (1 << bits) if signed and low >> (bits - 1) else low


def round_to_float(value: int, digits: int) -> float:
    """Return the integer `value` rounded once to `digits` binary digits, halves to even.

    Through a double it would be rounded twice.
    """
    excess = abs(value).bit_length() - digits
    if excess > 0:
        quotient, rest = divmod(abs(value), 1 << excess)
        half = 1 << (excess - 1)
        quotient += rest > half or (rest == half and quotient % 2)
        value = (quotient << excess) * (-1 if value < 0 else 1)
    try:
        return float(value)
    except OverflowError:
        return float("-inf") if value < 0 else float("inf")


def _to_integer(value: Any) -> int:
    if value != value or value in (float("inf"), float("-inf")) or int(value) != value:
        raise DeviceError(f"{value} is not an integer", fix="round it in the definition")
    return int(value)
