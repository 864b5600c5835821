"""Inputs of kernels: optional arrays, integers, and parts and lines of an array along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...graph.values.tensor import Array, TensorSpec
from .precision import compute_dtype
from .registry import Arrays


def get_optional(arrays: Arrays, index: int) -> Array | None:
    return arrays[index] if index < len(arrays) else None


def get_integers(arrays: Arrays, index: int) -> list[int] | None:
    """Return the integers of the input at `index` of `arrays`, or None if it is absent.

    Shapes depend on such inputs, so they are constants when a plan is opened.
    """
    array = get_optional(arrays, index)
    return None if array is None else [int(number) for number in array.reshape(-1).tolist()]


def check_indices(indices: Array, length: int, axis: int) -> bool:
    """Return whether any of `indices` may be negative; raise IndexError if outside of `axis`.

    That axis has `length` places. Indices that the host cannot read are not checked.
    """
    if not isinstance(indices, np.ndarray):
        return True
    if indices.size == 0:
        return False
    lowest, highest = int(indices.min()), int(indices.max())
    if lowest < -length or highest >= length:
        wrong = lowest if lowest < -length else highest
        raise IndexError(f"index {wrong} is outside axis {axis} of length {length}")
    return lowest < 0


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
