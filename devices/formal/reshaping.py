"""Definitions, ``op(*inputs, **attributes)``, that change or return the shape alone."""

from __future__ import annotations

import math

from ...graph.values.tensor import Array
from .registry import definition


@definition("Reshape")
def reshape(data: Array, shape: Array, *, allowzero: bool) -> Array:
    # Elements are read and written row by row; 0 keeps a length, -1 is the rest, but for zeros.
    wanted = [int(length) for length in shape.flat]
    kept = [axis for axis, n in enumerate(wanted) if n == 0 and not allowzero]
    left = [n for axis, n in enumerate(data.shape) if axis not in kept]
    spread = math.prod(n for n in left if n or 0 not in wanted or kept)
    known = math.prod(n for n in wanted if n > 0)
    return data.reshape(
        [
            data.shape[axis] if axis in kept else spread // known if n == -1 else n
            for axis, n in enumerate(wanted)
        ]
    )


@definition("Flatten")
def flatten(x: Array, *, axis: int) -> Array:
    """Return `x` with the axes before `axis` joined as rows, the others as columns."""
    before = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:before]), math.prod(x.shape[before:]))


@definition("Squeeze")
def squeeze(data: Array, axes: Array | None = None) -> Array:
    """Return `data` without `axes`, or by default without all axes of length 1."""
    if axes is None:
        removed = {axis for axis, length in enumerate(data.shape) if length == 1}
    else:
        removed = {int(axis) % data.ndim for axis in axes.flat}
    return data.reshape([length for axis, length in enumerate(data.shape) if axis not in removed])


@definition("Unsqueeze")
def unsqueeze(data: Array, axes: Array) -> Array:
    """Return `data` with `axes` of length 1, counted in the output, inserted."""
    rank = data.ndim + axes.size
    inserted = {int(axis) % rank for axis in axes.flat}
    lengths = iter(data.shape)
    return data.reshape([1 if axis in inserted else next(lengths) for axis in range(rank)])


@definition("Shape")
def shape_of(data: Array, *, start: int, end: int | None) -> list[int]:
    """Return the lengths of the axes of `data` from `start` to `end`, both clamped to the rank."""
    return list(data.shape[start:end])


@definition("Size")
def size(data: Array) -> int:
    return math.prod(data.shape)
