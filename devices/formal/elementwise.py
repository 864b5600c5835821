"""Elementwise arithmetic, as ONNX defines it: ``op(*inputs, **attributes)``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.operator import Specs
from ...graph.values.dtypes import get_largest as largest_of
from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import Array
from .ieee import (
    Real,
    divide,
    divide_truncating,
    exp,
    largest,
    log,
    power,
    return_nan_outside,
    smallest,
    sqrt,
    sum_exactly,
)
from .registry import definition, per_element


def _round(rounding: Callable[[float], int], x: float) -> float:
    """Round `x` to an integer with `rounding`; zeros keep their sign, infinities and NaNs stay."""
    return math.copysign(rounding(x), x) if math.isfinite(x) else x


def _with_sign_where_infinite(function: Callable[[float], float], x: float) -> float:
    try:
        return function(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def _cosh(x: float) -> float:
    try:
        return math.cosh(x)
    except OverflowError:
        return math.inf


def _atanh(x: float) -> float:
    # Python raises where the function has a pole.
    return math.copysign(math.inf, x) if abs(x) == 1 else return_nan_outside(math.atanh)(x)


UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": abs,
    "Neg": lambda x: -x,
    "Sign": lambda x: x if x != x else (x > 0) - (x < 0),
    "BitwiseNot": lambda x: ~x,
    "Reciprocal": lambda x: divide(1.0, x),
    "Sqrt": sqrt,
    "Floor": lambda x: _round(math.floor, x),
    "Ceil": lambda x: _round(math.ceil, x),
    "Round": lambda x: _round(round, x),  # Python rounds halves to even, as ONNX does
    "Exp": exp,
    "Log": log,
    "Erf": math.erf,
    "Sin": return_nan_outside(math.sin),
    "Cos": return_nan_outside(math.cos),
    "Tan": return_nan_outside(math.tan),
    "Asin": return_nan_outside(math.asin),
    "Acos": return_nan_outside(math.acos),
    "Atan": math.atan,
    "Sinh": lambda x: _with_sign_where_infinite(math.sinh, x),
    "Cosh": _cosh,
    "Tanh": math.tanh,
    "Asinh": math.asinh,
    "Acosh": return_nan_outside(math.acosh),
    "Atanh": _atanh,
}
"""Operators with one input and no attributes, each as a function of one element."""


def _divide(a: Real, b: Real) -> Real:
    return divide_truncating(a, b) if isinstance(a, int) else divide(a, b)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divide,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}
"""Operators with two inputs and no attributes, each as a function of two elements."""


for _op, _function in (UNARY | BINARY).items():
    definition(_op)(partial(per_element, _function))


VARIADIC: dict[str, Callable[[list[Any]], Any]] = {
    "Max": largest,
    "Min": smallest,
    "Sum": sum_exactly,
    "Mean": lambda values: sum_exactly(values) / len(values),
}
"""Operators with any number of inputs, each as a function of one element of each."""


for _op, _of_all in VARIADIC.items():
    definition(_op)(partial(per_element, lambda *values, of_all=_of_all: of_all(list(values))))


@definition("Mod")
def modulo(a: Array, b: Array, *, fmod: bool) -> Array:
    """Return the rest of `a` / `b`, with the sign of b; with `fmod`, the sign of a.

    The rest of an integer by 0 is 0, of a float NaN.
    """
    return per_element(_compute_fmod if fmod else _compute_modulo, a, b)


def _compute_modulo(a: Real, b: Real) -> Real:
    if b == 0:
        return 0 if isinstance(a, int) else math.nan
    return a % b


def _compute_fmod(a: Real, b: Real) -> Real:
    if isinstance(a, int):
        return a - b * divide_truncating(a, b) if b else 0
    try:
        return math.fmod(a, b)
    except ValueError:
        return math.nan


@definition("BitShift")
def bit_shift(x: Array, y: Array, *, direction: str) -> Array:
    # z = x · 2ʸ, or x / 2ʸ rounded down; only the sign is left if y is not a bit's number.
    # Source: ONNX BitShift, which has unsigned integers only.
    width = 8 * x.dtype.itemsize

    def left(value: int, count: int) -> int:
        # The conversion to the result's dtype drops bits beyond the width.
        return value << count if 0 <= count < width else 0

    def right(value: int, count: int) -> int:
        return value >> (count if 0 <= count < width else width)

    return per_element(left if direction == "LEFT" else right, x, y)


@definition("Pow")
def pow_(x: Array, exponent: Array) -> Array:
    if kind_of(x.dtype) == "f":
        return per_element(lambda v, e: power(float(v), float(e)), x, exponent)
    if kind_of(exponent.dtype) == "f":
        return per_element(lambda v, e: truncate(power(float(v), e)), x, exponent)
    return per_element(_raise_integer, x, exponent)


def _raise_integer(x: int, exponent: int) -> int:
    """Return `x` to the power of `exponent` modulo 2⁶⁴, of which all integer dtypes keep low bits.

    If the exponent is negative, 1/x^|exponent| is cut to an integer.
    """
    if exponent >= 0:
        return pow(x, exponent, 2**64)
    if abs(x) != 1:
        return 0
    return x if exponent % 2 else 1


def truncate(value: float) -> int:
    """Return `value` rounded toward zero; 0 for infinities and NaN, which ONNX leaves open."""
    return int(value) if math.isfinite(value) else 0


def clamp(value: float, most: float) -> float:
    return float(smallest([largest([value, -most]), most]))


@definition("Clip")
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    least = [] if low is None else low.reshape(-1).tolist()
    most = [] if high is None else high.reshape(-1).tolist()
    return per_element(lambda value: smallest([largest([value, *least]), *most]), x)


@definition("Identity")
def identity(x: Array) -> Array:
    return x


@definition("Dropout")
def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None
) -> tuple[Array, Array]:
    return x, np.full(x.shape, True)


@definition("Cast")
def cast(x: Array, *, to: np.dtype[Any], saturate: bool, round_mode: str, outputs: Specs) -> Array:
    # Floats become integers by rounding toward zero, complex numbers their real part, and nonzero
    # values true. Devices also round to floats and wrap integers. With saturate, values beyond
    # floats of 8 bits become the largest one.
    return _to_dtype(x, outputs[0].dtype, saturate)


@definition("CastLike")
def cast_like(
    x: Array, target_type: Array, *, saturate: bool, round_mode: str, outputs: Specs
) -> Array:
    return _to_dtype(x, outputs[0].dtype, saturate)


@definition("BitCast")
def bit_cast(x: Array, *, to: np.dtype[Any], outputs: Specs) -> Array:
    return x.view(outputs[0].dtype)


def _to_dtype(x: Array, dtype: np.dtype[Any], saturate: bool) -> Array:
    kind = kind_of(dtype)
    if x.dtype == dtype:
        return x
    if kind in "bc":
        return per_element(bool if kind == "b" else complex, x)
    if kind == "e" and saturate:
        most = largest_of(dtype)
        return per_element(lambda value: clamp(value.real, most), x)
    if kind in "ef":
        return per_element(lambda value: value.real, x)
    return per_element(lambda value: value if isinstance(value, int) else truncate(value.real), x)
