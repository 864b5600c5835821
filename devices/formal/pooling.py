"""Definitions of pooling over windows or planes: ``op(*inputs, **attributes)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.values.errors import ShapeError
from ...graph.values.tensor import Array, TensorSpec
from .ieee import largest, power, rank, sum_exactly
from .registry import at, definition, indices, table
from .windows import is_inside, iterate_places, make_windows


def _pool(
    x: Array,
    outputs: Sequence[TensorSpec],
    attributes: dict[str, Any],
    reduce: Callable[[Sequence[float], int], float],
) -> Array:
    """Return `reduce` of the values of `x` and the number of cells in each window.

    Windows have the `attributes`, results the shape of `outputs`. Padding has cells but no values;
    in ceil_mode a window may reach beyond the padding, and has no cells there.
    """
    shape, lengths = outputs[0].static_shape, x.shape[2:]
    sliding = make_windows(lengths, shape[2:], attributes["kernel_shape"], attributes)

    def is_cell(place: Sequence[int]) -> bool:
        pairs = zip(sliding, place, strict=True)
        return all(-axis.begin <= i < axis.length + axis.end for axis, i in pairs)

    def element(n: int, c: int, *window: int) -> float:
        reached = [place for _, place in iterate_places(sliding, window) if is_cell(place)]
        values = [at(x, n, c, *place) for place in reached if is_inside(place, lengths)]
        return reduce(values, len(reached))

    return table(shape, element)


@definition("MaxPool")
def max_pool(
    x: Array, *, storage_order: int, outputs: Sequence[TensorSpec], **attributes: Any
) -> tuple[Array, Array]:
    # Places are counted row by row, or with storage_order 1 column by column in each plane. The
    # greatest of nothing is the least number there is; a NaN is greater than all.
    shape, lengths = outputs[0].static_shape, x.shape[2:]
    sliding = make_windows(lengths, shape[2:], attributes["kernel_shape"], attributes)

    def first_greatest(n: int, c: int, *window: int) -> tuple[int, ...] | None:
        reached = [
            place for _, place in iterate_places(sliding, window) if is_inside(place, lengths)
        ]
        return max(reached, key=lambda place: rank(at(x, n, c, *place)), default=None)

    def value(n: int, c: int, *window: int) -> Any:
        place = found[(n, c, *window)]
        return _find_least(x.dtype) if place is None else at(x, n, c, *place)

    def number(n: int, c: int, *window: int) -> int:
        plane: int = (n * x.shape[1] + c) * math.prod(lengths)
        place = found[(n, c, *window)] or [0] * len(lengths)
        if storage_order == 1:
            return plane + _count_before(place[::-1], lengths[::-1])
        return plane + _count_before(place, lengths)

    found = table(shape, first_greatest)
    return table(shape, value), table(shape, number)


def _count_before(place: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the number of elements before `place` in `lengths`, the last axis moving fastest."""
    count = 0
    for i, length in zip(place, lengths, strict=True):
        count = count * length + i
    return count


def _find_least(dtype: np.dtype[Any]) -> float:
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -math.inf


@definition("AveragePool")
def average_pool(
    x: Array, *, count_include_pad: bool, outputs: Sequence[TensorSpec], **attributes: Any
) -> Array:
    def reduce(values: Sequence[float], cells: int) -> float:
        count = cells if count_include_pad else len(values)
        return sum_exactly(values) / count if count else 0.0

    return _pool(x, outputs, attributes, reduce)


@definition("LpPool")
def lp_pool(x: Array, *, p: int, outputs: Sequence[TensorSpec], **attributes: Any) -> Array:
    return _pool(x, outputs, attributes, lambda values, cells: _compute_norm(values, p))


def _compute_norm(values: Sequence[float], p: int) -> float:
    return power(float(sum_exactly(power(abs(value), p) for value in values)), 1 / p)


def _reduce_planes(x: Array, reduce: Callable[[list[float]], float]) -> Array:
    def element(n: int, c: int, *ones: int) -> float:
        return reduce([at(x, n, c, *place) for place in indices(x.shape[2:])])

    return table((*x.shape[:2], *(1 for _ in x.shape[2:])), element)


@definition("GlobalAveragePool")
def global_average_pool(x: Array) -> Array:
    return _reduce_planes(x, lambda values: float(sum_exactly(values)) / len(values))


@definition("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    return _reduce_planes(x, largest)


@definition("GlobalLpPool")
def global_lp_pool(x: Array, *, p: int) -> Array:
    return _reduce_planes(x, lambda values: _compute_norm(values, p))


@definition("MaxUnpool")
def max_unpool(
    x: Array,
    places: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    outputs: Sequence[TensorSpec],
) -> Array:
    # x is at the places counted in the tensor that a MaxPool takes to x. A given shape adds margins
    # to that tensor, it does not change how places count.
    spatial = len(kernel_shape)
    strides, pads = strides or (1,) * spatial, pads or (0,) * (2 * spatial)
    counted = list(x.shape)
    for axis, (size, stride) in enumerate(zip(kernel_shape, strides, strict=True)):
        counted[2 + axis] = (x.shape[2 + axis] - 1) * stride + size
        counted[2 + axis] -= pads[axis] + pads[axis + spatial]
    y = table(outputs[0].static_shape, lambda *index: 0)
    for index in indices(x.shape):
        y[_place(at(places, *index), counted)] = at(x, *index)
    return y


def _place(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    if not 0 <= number < math.prod(shape):
        raise ShapeError(
            f"element {number} is outside the shape {list(shape)}",
            fix="pass the indices that MaxPool returned",
        )
    index: list[int] = []
    for length in reversed(shape):
        number, i = divmod(number, length)
        index.insert(0, i)
    return tuple(index)


@definition("MaxPoolGradient")
def max_pool_gradient(
    dy: Array, places: Array, shape: Array, *, outputs: Sequence[TensorSpec], **window: Any
) -> Array:
    # dx[i] = Σ dy[o] over the windows o with element i, counted row by row, as their maximum. The
    # window's attributes only limit the search for them.
    made = outputs[0].static_shape
    gathered: list[list[float]] = [[] for _ in range(outputs[0].size)]
    for index in indices(dy.shape):
        gathered[at(places, *index)].append(at(dy, *index))
    sums = np.array([float(sum_exactly(parts)) for parts in gathered], object)
    return sums.reshape(made)
