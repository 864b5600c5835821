"""Sums and extrema over axes, where numpy's own reductions are slow.

Measured on float32, one thread, numpy 2.4 (µs by ndarray.sum or max, then here):

    rows × length   sum          max
    100000 × 4      1164, 117    3329, 150    column by column
    6304 × 64       139, 30      461, 178     einsum, reduceat
    80 × 6625       83, 32       29, 25       einsum of pieces, reduceat

    outer × length × inner, over the middle
    1 × 1000 × 49   16, 3        28, 28       a product with ones, max
    1000 × 64 × 2   744, 36      1451, 246    a product with ones, place by place

A product of rows with ones is the fastest for as long as BLAS leaves its threads asleep: where they
are woken and have to wait for a core, a sum of 30 µs was seen to take 8 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.values.tensor import Array
from .precision import compute_dtype
from .registry import ArrayModule, Step, run_in_order

_THREADLESS = 1 << 18
"""Elements; OpenBLAS 0.3.31 wakes threads to multiply a matrix and a vector from 460,800 on."""

_PIECE = 4096
"""Elements that are added one after the other in each SIMD lane: more would lose precision."""


def sum_over(xp: ArrayModule, x: Array, axes: Sequence[int], y: Array) -> Step:
    """Return the step in `xp` that writes the sums of `x` over `axes` to `y`, in its dtype.

    y has the reduced axes kept with length 1.
    """
    lines = _to_lines(x, axes)
    if lines is None or x.dtype != y.dtype or x.dtype.kind != "f":
        return partial(x.sum, tuple(axes), y.dtype, y, True)
    length, inner = lines.shape[1:]
    if inner == 1 and lines.size <= _THREADLESS:
        return partial(xp.matmul, lines[:, :, 0], xp.ones(length, x.dtype), y.reshape(-1))
    if inner > 1 and length * inner <= _THREADLESS:
        return partial(xp.matmul, xp.ones((1, length), x.dtype), lines, y.reshape(-1, 1, inner))
    if xp is np and _is_narrow(lines, 8):
        return partial(_place_by_place, np.add, lines, y.reshape(-1, inner))
    if xp is np and inner == 1:
        return _sum_pieces(lines[:, :, 0], y.reshape(-1))
    return partial(x.sum, tuple(axes), y.dtype, y, True)


def reduce_extremum(xp: ArrayModule, name: str, x: Array, axes: Sequence[int], y: Array) -> Step:
    """Return the step in `xp` that writes extrema of `x` over `axes`, kept with length 1, to `y`.

    `name` is "max" or "min".
    """
    lines = _to_lines(x, axes) if xp is np and compute_dtype(x.dtype) == x.dtype else None
    if lines is not None:
        combine, (length, inner) = np.maximum if name == "max" else np.minimum, lines.shape[1:]
        if _is_narrow(lines, 24 if inner == 1 else 128):
            return partial(_place_by_place, combine, lines, y.reshape(-1, inner))
        if inner == 1:
            starts = np.arange(0, x.size, length)
            return partial(combine.reduceat, x.reshape(-1), starts, out=y.reshape(-1))
    return partial(getattr(x, name), tuple(axes), y, True)


def _to_lines(x: Array, axes: Sequence[int]) -> Array | None:
    """Return `x` as (outer, length, inner), `axes` in the middle; None for other layouts."""
    wide = [axis for axis in sorted(axes) if x.shape[axis] > 1]
    if not x.flags.c_contiguous or not wide or not x.size:
        return None
    first, end = wide[0], wide[-1] + 1
    length = math.prod(x.shape[axis] for axis in wide)
    if math.prod(x.shape[first:end]) != length:  # axes between them stay
        return None
    return x.reshape(math.prod(x.shape[:first]), length, math.prod(x.shape[end:]))


def _is_narrow(lines: Array, most: int) -> bool:
    outer, length, inner = lines.shape
    return bool(length <= most and inner <= 16 and outer * inner >= 8 * length)


def _place_by_place(combine: Any, lines: Array, y: Array) -> None:
    combine(lines[:, 0], lines[:, 1], out=y)
    for place in range(2, lines.shape[1]):
        combine(y, lines[:, place], out=y)


def _sum_pieces(rows: Array, y: Array) -> Step:
    count, length = rows.shape
    if length <= _PIECE:
        return partial(np.einsum, "ij->i", rows, out=y)
    pieces = length // _PIECE
    whole = rows[:, : pieces * _PIECE].reshape(count, pieces, _PIECE)
    parts = np.empty((count, pieces + 1), rows.dtype)
    return run_in_order(
        (
            partial(np.einsum, "ijk->ij", whole, out=parts[:, :pieces]),
            partial(np.einsum, "ij->i", rows[:, pieces * _PIECE :], out=parts[:, pieces]),
            partial(np.sum, parts, 1, None, y),
        )
    )
