"""Functions of Python floats with the results of IEEE 754 where Python raises; their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Real: TypeAlias = Any
"""An int, which is exact, or a float, which is a double."""


def divide(a: float, b: float) -> float:
    """Return `a` / `b`; for b = 0 infinity, or NaN where a is 0 too."""
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def divide_truncating(a: int, b: int) -> int:
    """Return `a` / `b` rounded toward zero, and 0 where b is 0."""
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def exp(x: float) -> float:
    """Return e to the power of `x`, infinity where it overflows."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def expm1(x: float) -> float:
    """Return exp(`x`) - 1 without cancellation, infinity where it overflows."""
    try:
        return math.expm1(x)
    except OverflowError:
        return math.inf


def log(x: float) -> float:
    """Return the natural logarithm of `x`: -infinity of 0, NaN of negative numbers."""
    if x == 0:
        return -math.inf
    return math.nan if x < 0 else math.log(x)


def sqrt(x: float) -> float:
    """Return the square root of `x`, NaN of negative numbers."""
    return math.nan if x < 0 else math.sqrt(x)


def power(x: float, exponent: float) -> float:
    """Return `x` to the power of `exponent` as C's `pow`.

    It is NaN for roots of negative numbers, and infinite where it overflows.
    """
    odd = exponent % 2 == 1 if math.isfinite(exponent) else False
    sign = math.copysign(1.0, x) if odd else 1.0
    try:
        return math.pow(x, exponent)
    except OverflowError:
        return sign * math.inf
    except ValueError:
        return sign * math.inf if x == 0 else math.nan


def return_nan_outside(function: Callable[[float], float]) -> Callable[[float], float]:
    def total(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return math.nan

    return total


def sum_exactly(values: Iterable[Real]) -> Real:
    """Return the sum of `values`: of ints exact, of floats the true sum rounded once; 0 of none.

    Infinities and NaNs add up as they do one by one.
    """
    terms = list(values)
    if all(isinstance(term, int) for term in terms):
        return sum(terms)
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        return sum(terms)


def largest(values: Iterable[Real]) -> Real:
    found = list(values)
    return math.nan if any(v != v for v in found) else max(found)


def smallest(values: Iterable[Real]) -> Real:
    found = list(values)
    return math.nan if any(v != v for v in found) else min(found)


def rank(x: Any) -> tuple[bool, Any]:
    """Return a key to compare numbers like `x` by; NaN is above all others."""
    return (True, 0) if x != x else (False, x)
