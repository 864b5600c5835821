"""Products of integers that floating-point BLAS computes exactly, and their conversion to outputs.

Each sum and each part of it is an integer below 2²⁴ in magnitude for float32, below 2⁵³ for
float64, so that nothing is rounded in any order. The bound is that of the dtypes, or closer if
weights and zero points are constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...graph.core.operator import Call
from ...graph.values.tensor import Array, TensorSpec
from .precision import find_limits
from .quantization import round_to_integers, subtract_zero
from .registry import ArrayModule, Arrays, Step

Alignment: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""From the shape of a zero point or scale to the one in which it is repeated over its tensor."""


class Factors(NamedTuple):
    """Where among its inputs an operator has two factors and their zero points."""

    left: int
    right: int
    left_zero: int
    right_zero: int
    axes: tuple[int, ...]
    """The right factor's axes that are summed over."""
    align: Alignment
    """How the right zero point stands against the right factor."""
    bias: int | None = None
    """Where the number is that is added to each sum."""


def find_exact_dtype(call: Call, on: Factors) -> np.dtype[Any]:
    """Return the narrowest float dtype in which all sums of products of `call` are exact.

    `on` says which inputs are the factors. A bias has to be exact by itself; that the sum with it
    may be rounded, once, does not matter.
    """
    bound = _find_magnitude(call, on.left, on.left_zero) * _sum(call, on)
    if on.bias is not None and call.has(on.bias):
        bias = call.value(on.bias)
        bound = max(bound, 1 << 31 if bias is None else int(np.abs(bias, dtype=float).max()))
    return np.dtype(np.float32 if bound < 1 << 24 else np.float64)


def is_constant(call: Call, on: Factors) -> bool:
    """Return whether the right factor of `call`, given by `on`, and its zero point are constant."""
    zero = on.right_zero
    return call.value(on.right) is not None and not (call.has(zero) and call.value(zero) is None)


def _find_magnitude(call: Call, index: int, zero: int) -> int:
    """Return a bound of |value - zero point| for inputs number `index` and `zero` of `call`."""
    low, high = map(int, find_limits(call.spec(index).dtype))
    if not call.has(zero):
        return max(-low, high)
    offset = call.value(zero)
    if offset is None:
        return high - low
    return max(high - int(offset.min(initial=high)), int(offset.max(initial=low)) - low)


def _sum(call: Call, on: Factors) -> int:
    """Return a bound of Σ |value - zero point| over axes of the right factor of `call`, by `on`."""
    if not is_constant(call, on):
        shape = call.spec(on.right).static_shape
        return math.prod(shape[axis] for axis in on.axes) * _find_magnitude(
            call, on.right, on.right_zero
        )
    value, zero = call.value(on.right), call.value(on.right_zero)
    assert value is not None
    wide = value.astype(np.int64)
    if zero is not None:
        wide -= zero.reshape(on.align(zero.shape))
    return int(np.abs(wide).sum(on.axes).max(initial=0))


def center(
    xp: ArrayModule, value: Array, zero: Array | None, align: Alignment, wide: Array
) -> Step:
    if zero is None:
        return partial(xp.copyto, wide, value)
    return partial(subtract_zero, xp, value, zero.reshape(align(zero.shape)), wide)


def to_int32(xp: ArrayModule, total: Array, y: Array, depth: int) -> list[Step]:
    """Return the steps in `xp` that write `total`, sums of `depth` products of bytes, to `y`.

    The sums are taken modulo 2³² if they need it.
    """
    steps: list[Step] = []
    if depth * 255 * 255 >= 1 << 31:
        steps = [
            partial(xp.add, total, 1 << 31, out=total),
            partial(xp.remainder, total, 1 << 32, out=total),
            partial(xp.subtract, total, 1 << 31, out=total),
        ]
    return [*steps, partial(xp.copyto, y, total, casting="unsafe")]


def declare_multiplier(shapes: Sequence[Sequence[int]]) -> TensorSpec:
    """Return the scratch for the product and quotient of scales of these `shapes`."""
    return TensorSpec(np.float32, np.broadcast_shapes(*map(tuple, shapes)))


def requantize(
    xp: ArrayModule, total: Array, scales: Arrays, zero: Array, y: Array, scratch: Arrays
) -> list[Step]:
    """Return the steps in `xp` that quantize `total` by `scales` and `zero`, and write it to `y`.

    The numbers are total · (left · right / output scale), rounded, + zero. The three scales are
    multiplied in float32, as ONNX Runtime does. `scratch` is the multiplier, and a float32 copy of
    the sums unless they are float32 already.
    """
    left, right, output = scales
    multiplier, *wide = scratch
    work = wide[0] if wide else total
    steps: list[Step] = [partial(xp.copyto, work, total, casting="same_kind")] if wide else []
    return [
        *steps,
        partial(xp.multiply, left, right, out=multiplier, dtype=np.float32),
        partial(xp.divide, multiplier, output, out=multiplier),
        partial(xp.multiply, work, multiplier, out=work),
        *round_to_integers(xp, work, zero, y),
    ]
