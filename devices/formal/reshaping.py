"""Definitions of the operators that keep the order of elements and change, or return, the shape."""

from __future__ import annotations

import math

from ...graph.values.tensor import Array
from .registry import definition


@definition("Reshape")
def reshape(data: Array, shape: Array, *, allowzero: bool) -> Array:
    """Read row by row and write row by row; 0 keeps a length, -1 is the rest.

    Source: ONNX Reshape.
    """
    wanted = [int(length) for length in shape.flat]
    kept = [axis for axis, n in enumerate(wanted) if n == 0 and not allowzero]
    spread = math.prod(n for axis, n in enumerate(data.shape) if axis not in kept)
    known = math.prod(n for n in wanted if n > 0)
    return data.reshape(
        [
            data.shape[axis] if axis in kept else spread // known if n == -1 else n
            for axis, n in enumerate(wanted)
        ]
    )


@definition("Flatten")
def flatten(x: Array, *, axis: int) -> Array:
    """Rows from the axes before `axis`, columns from the others.  Source: ONNX Flatten."""
    before = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:before]), math.prod(x.shape[before:]))


@definition("Squeeze")
def squeeze(data: Array, axes: Array | None = None) -> Array:
    """Leave out the axes given, or all of length 1.  Source: ONNX Squeeze."""
    if axes is None:
        removed = {axis for axis, length in enumerate(data.shape) if length == 1}
    else:
        removed = {int(axis) % data.ndim for axis in axes.flat}
    return data.reshape([length for axis, length in enumerate(data.shape) if axis not in removed])


@definition("Unsqueeze")
def unsqueeze(data: Array, axes: Array) -> Array:
    """Put in axes of length 1, counted in the output.  Source: ONNX Unsqueeze."""
    rank = data.ndim + axes.size
    inserted = {int(axis) % rank for axis in axes.flat}
    lengths = iter(data.shape)
    return data.reshape([1 if axis in inserted else next(lengths) for axis in range(rank)])


@definition("Shape")
def shape_of(data: Array, *, start: int, end: int | None) -> list[int]:
    """Lengths of the axes from start to end, both clamped to the rank.  Source: ONNX Shape."""
    return list(data.shape[start:end])


@definition("Size")
def size(data: Array) -> int:
    """Count the elements.  Source: ONNX Size."""
    return math.prod(data.shape)
