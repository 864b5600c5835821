"""A tensor along one of its axes: its parts, and its lines along the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...graph.values.tensor import Array, TensorSpec
from .precision import compute_dtype


def index_at(axis: int, place: int | slice) -> tuple[int | slice, ...]:
    return (*(slice(None),) * axis, place)


def to_lines(array: Array, axis: int, end: int | None = None) -> Array:
    """Return a view of `array` as (outer, axes from `axis` to before `end`, inner).

    `end` defaults to the next axis. A negative `axis` counts from the end.
    """
    return array.reshape(_count_lines(array.shape, axis, end))


def declare_line_scratch(x: TensorSpec, axis: int, end: int | None = None) -> TensorSpec:
    outer, _, inner = _count_lines(x.static_shape, axis, end)
    return TensorSpec(compute_dtype(x.dtype), (outer, 1, inner))


def _count_lines(shape: Sequence[int], axis: int, end: int | None) -> tuple[int, int, int]:
    first = axis % len(shape)
    last = first + 1 if end is None else end
    return math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:])
