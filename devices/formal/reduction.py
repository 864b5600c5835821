"""Reductions over axes, and scans along one, as ``op(*inputs, **attributes)`` of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import Array
from .ieee import Real, divide, divide_truncating, exp, largest, log, smallest, sqrt, sum_exactly
from .registry import at, definition, indices, table

Reduction: TypeAlias = Callable[[list[Real]], Real]


def _list_reduced_axes(rank: int, axes: Array | None, noop_with_empty_axes: bool) -> set[int]:
    """Return which of `rank` axes to reduce: those in `axes`, or all if it is empty or None.

    With `noop_with_empty_axes`, none are reduced in that case.
    """
    given = [] if axes is None else axes.reshape(-1).tolist()
    if given:
        return {axis % rank for axis in given}
    return set() if noop_with_empty_axes else set(range(rank))


def _iterate_elements(x: Array, kept: Sequence[int], index: Sequence[int]) -> Iterator[Real]:
    fixed = dict(zip(kept, index, strict=True))
    ranges = [
        (fixed[axis],) if axis in fixed else range(length) for axis, length in enumerate(x.shape)
    ]
    for place in indices([len(choices) for choices in ranges]):
        yield at(x, *(choices[i] for choices, i in zip(ranges, place, strict=True)))


def _reduce(
    function: Reduction, x: Array, axes: Array | None, keepdims: bool, noop_with_empty_axes: bool
) -> Array:
    reduced = _list_reduced_axes(x.ndim, axes, noop_with_empty_axes)
    kept = [axis for axis in range(x.ndim) if axis not in reduced]
    y = table(
        [x.shape[axis] for axis in kept], lambda *i: function(list(_iterate_elements(x, kept, i)))
    )
    return y.reshape([1 if a in reduced else n for a, n in enumerate(x.shape)]) if keepdims else y


def _multiply(values: list[Real]) -> Real:
    return math.prod(values)


def _compute_mean(values: list[float]) -> float:
    return divide(sum_exactly(values), len(values))


def _compute_integer_mean(values: list[int]) -> int:
    return divide_truncating(sum_exactly(values), len(values))


def _compute_length(values: list[Real]) -> Real:
    """Return the Euclidean length of `values`; of integers, rounded down."""
    if all(isinstance(value, int) for value in values):
        return math.isqrt(sum(value * value for value in values))
    return sqrt(sum_exactly(value * value for value in values))


def _log_sum_exp(values: list[float]) -> float:
    """Return log Σ eˣ of `values`; if the largest, m, is finite, eˣ is computed as eᵐ eˣ⁻ᵐ."""
    peak = largest(values) if values else 0.0
    if not math.isfinite(peak):
        return log(sum_exactly(map(exp, values)))
    return float(peak + log(sum_exactly(exp(value - peak) for value in values)))


REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": sum_exactly,
    "ReduceProd": _multiply,
    "ReduceL1": lambda values: sum_exactly(map(abs, values)),
    "ReduceL2": _compute_length,
    "ReduceSumSquare": lambda values: sum_exactly(value * value for value in values),
    "ReduceLogSum": lambda values: log(sum_exactly(values)),
    "ReduceLogSumExp": _log_sum_exp,
}
"""Each as a function of the elements that it makes one."""


def _define_reduction(op: str, function: Reduction) -> None:
    @definition(op)
    def apply(
        x: Array, axes: Array | None = None, *, keepdims: bool, noop_with_empty_axes: bool
    ) -> Array:
        return _reduce(function, x, axes, keepdims, noop_with_empty_axes)


for _op, _function in REDUCTIONS.items():
    _define_reduction(_op, _function)


@definition("ReduceMean")
def reduce_mean(
    x: Array, axes: Array | None = None, *, keepdims: bool, noop_with_empty_axes: bool
) -> Array:
    mean = _compute_mean if kind_of(x.dtype) == "f" else _compute_integer_mean
    return _reduce(mean, x, axes, keepdims, noop_with_empty_axes)


@definition("ReduceMax")
def reduce_max(
    x: Array, axes: Array | None = None, *, keepdims: bool, noop_with_empty_axes: bool
) -> Array:
    lowest, _ = _find_bounds(x.dtype)
    return _reduce(
        lambda values: largest([lowest, *values]), x, axes, keepdims, noop_with_empty_axes
    )


@definition("ReduceMin")
def reduce_min(
    x: Array, axes: Array | None = None, *, keepdims: bool, noop_with_empty_axes: bool
) -> Array:
    _, highest = _find_bounds(x.dtype)
    return _reduce(
        lambda values: smallest([highest, *values]), x, axes, keepdims, noop_with_empty_axes
    )


def _find_bounds(dtype: np.dtype[Any]) -> tuple[Real, Real]:
    if dtype.kind == "b":
        return False, True
    if kind_of(dtype) == "f":
        return -math.inf, math.inf
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _place_of(
    extremum: Reduction, x: Array, axis: int, keepdims: bool, select_last_index: bool
) -> Array:
    """Return the first place of `extremum` on `axis` of `x`, or with `select_last_index` the last.

    With `keepdims` the axis is kept, of length 1. NaN is an extremum.
    """
    if x.ndim == 0:
        return np.array(0)
    axis %= x.ndim

    def place(*index: int) -> int:
        line = [at(x, *index[:axis], i, *index[axis:]) for i in range(x.shape[axis])]
        best = extremum(line)
        places = [i for i, value in enumerate(line) if value == best or value != value]
        return places[-1 if select_last_index else 0]

    y = table(x.shape[:axis] + x.shape[axis + 1 :], place)
    return np.expand_dims(y, axis) if keepdims else y


@definition("ArgMax")
def arg_max(x: Array, *, axis: int, keepdims: bool, select_last_index: bool) -> Array:
    return _place_of(largest, x, axis, keepdims, select_last_index)


@definition("ArgMin")
def arg_min(x: Array, *, axis: int, keepdims: bool, select_last_index: bool) -> Array:
    return _place_of(smallest, x, axis, keepdims, select_last_index)


def _scan(combine: Reduction, x: Array, axis: Array, *, exclusive: bool, reverse: bool) -> Array:
    """Return for each place `combine` of the list of elements of `x` up to it along `axis`.

    With `reverse` the list is from there on; `exclusive` leaves out the place's element.
    """
    along = int(axis.reshape(()))
    if not -x.ndim <= along < x.ndim:
        raise IndexError(f"axis {along} is outside a tensor of rank {x.ndim}")
    along %= x.ndim

    def combined(*index: int) -> Real:
        here = index[along]
        before = range(here + (not exclusive))
        behind = range(here + exclusive, x.shape[along])
        return combine(
            [at(x, *index[:along], i, *index[along + 1 :]) for i in (behind if reverse else before)]
        )

    return table(x.shape, combined)


definition("CumSum")(partial(_scan, sum_exactly))
definition("CumProd")(partial(_scan, _multiply))
