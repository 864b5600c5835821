"""Definitions of cvm's elementwise operators: exact integers, reduced to int32 by the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....devices.formal.ieee import divide_truncating
from ....devices.formal.registry import at, broadcast_at, definition, table
from ....graph.values.tensor import Array


def _map_elements(function: Callable[[int], int], x: Array) -> Array:
    return table(x.shape, lambda *i: function(at(x, *i)))


def _broadcast(function: Callable[[int, int], int], a: Array, b: Array) -> Array:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return table(shape, lambda *i: function(broadcast_at(a, i), broadcast_at(b, i)))


def _compute_limit(precision: int) -> int:
    return int(2 ** (precision - 1)) - 1


def _clip(value: int, low: int, high: int) -> int:
    if value < low:
        return low
    return high if value > high else value


def _to_precision(value: int, precision: int) -> int:
    return _clip(value, -_compute_limit(precision), _compute_limit(precision))


@definition("cvm.broadcast_add")
def broadcast_add(a: Array, b: Array) -> Array:
    return _broadcast(lambda p, q: p + q, a, b)


@definition("cvm.broadcast_sub")
def broadcast_sub(a: Array, b: Array) -> Array:
    return _broadcast(lambda p, q: p - q, a, b)


@definition("cvm.broadcast_mul")
def broadcast_mul(a: Array, b: Array) -> Array:
    return _broadcast(lambda p, q: p * q, a, b)


@definition("cvm.broadcast_max")
def broadcast_max(a: Array, b: Array) -> Array:
    return _broadcast(max, a, b)


@definition("cvm.broadcast_div")
def broadcast_div(a: Array, b: Array) -> Array:
    """Return `a` / `b` without its fraction, and 0 where b is 0."""
    return _broadcast(divide_truncating, a, b)


@definition("cvm.broadcast_greater")
def broadcast_greater(a: Array, b: Array) -> Array:
    return _broadcast(lambda p, q: 1 if p > q else 0, a, b)


@definition("cvm.elemwise_add")
def elemwise_add(a: Array, b: Array) -> Array:
    return table(a.shape, lambda *i: at(a, *i) + at(b, *i))


@definition("cvm.elemwise_sub")
def elemwise_sub(a: Array, b: Array) -> Array:
    return table(a.shape, lambda *i: at(a, *i) - at(b, *i))


@definition("cvm.relu")
def relu(x: Array) -> Array:
    return _map_elements(lambda value: max(value, 0), x)


@definition("cvm.abs")
def absolute(x: Array) -> Array:
    return _map_elements(abs, x)


@definition("cvm.negative")
def negative(x: Array) -> Array:
    return _map_elements(lambda value: -value, x)


@definition("cvm.precision")
def precision(x: Array) -> Array:
    """Return the number of binary digits of |`x`|: the least n ≥ 1 with |x| < 2^n."""
    return _map_elements(_count_digits, x)


def _count_digits(value: int) -> int:
    count = 1
    while abs(value) >= 2**count:
        count += 1
    return count


@definition("cvm.clip")
def clip(x: Array, *, a_min: int, a_max: int, **_: Any) -> Array:
    return _map_elements(lambda value: _clip(value, a_min, a_max), x)


@definition("cvm.cvm_clip")
def cvm_clip(x: Array, *, precision: int, **_: Any) -> Array:
    """Return `x` within ±(2^(`precision`-1) - 1)."""
    return _map_elements(lambda value: _to_precision(value, precision), x)


@definition("cvm.right_shift")
def right_shift(x: Array, *, precision: int, shift_bit: int, **_: Any) -> Array:
    """Return `x` / 2^`shift_bit`, rounded half up, within ±(2^(`precision`-1) - 1).

    ⌊x / 2^b + 1/2⌋ is (2x + 2^b) / 2^(b+1), rounded down.
    """

    def shifted(value: int) -> int:
        return _to_precision((2 * value + 2**shift_bit) // 2 ** (shift_bit + 1), precision)

    return _map_elements(shifted, x)


@definition("cvm.left_shift")
def left_shift(x: Array, *, precision: int, shift_bit: int, **_: Any) -> Array:
    """Return `x` · 2^`shift_bit` within ±(2^(`precision`-1) - 1)."""
    return _map_elements(lambda value: _to_precision(value * 2**shift_bit, precision), x)
