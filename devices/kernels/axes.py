"""A tensor along one of its axes: parts of it, and the lines that run in its direction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.tensor import Array, TensorSpec
from .precision import compute_dtype


def at(axis: int, place: int | slice) -> tuple[int | slice, ...]:
    """Return the index of a place along an axis, counted from the front."""
    return (*(slice(None),) * axis, place)


def as_lines(array: Array, axis: int, end: int | None = None) -> Array:
    """Return a view as (outer, length, inner): the axis, or those from it to before `end`, between.

    Negative axes count from the end.
    """
    return array.reshape(_lines(array.shape, axis, end))


def line_scratch(x: TensorSpec, axis: int, end: int | None = None) -> TensorSpec:
    """Scratch: a number to compute with for each line of `as_lines`."""
    outer, _, inner = _lines(x.static_shape, axis, end)
    return TensorSpec(compute_dtype(x.dtype), (outer, 1, inner))


def _lines(shape: Sequence[int], axis: int, end: int | None) -> tuple[int, int, int]:
    first = axis % len(shape)
    last = first + 1 if end is None else end
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])
