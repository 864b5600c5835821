"""Definitions, ``op(*inputs, **attributes)``, that select some elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from ...graph.values.tensor import Array
from .ieee import rank
from .registry import at, definition, indices

Box: TypeAlias = tuple[float, float, float, float]
"""The low and high ends along one axis, then along the other."""


@definition("NonZero")
def non_zero(x: Array) -> Array:
    found = [index for index in indices(x.shape) if at(x, *index)]
    return np.array(found, np.int64).reshape(len(found), x.ndim).T


@definition("Compress")
def compress(x: Array, condition: Array, *, axis: int | None) -> Array:
    source, along = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    kept = [place for (place,) in indices(condition.shape) if at(condition, place)]
    return _take_slices(source, along, kept)


def _take_slices(x: Array, axis: int, places: Sequence[int]) -> Array:
    y = np.empty((*x.shape[:axis], len(places), *x.shape[axis + 1 :]), x.dtype)
    for index in indices(y.shape):
        y[index] = x[(*index[:axis], places[index[axis]], *index[axis + 1 :])]
    return y


@definition("Unique")
def unique(x: Array, *, axis: int | None, sorted: bool) -> tuple[Array, ...]:
    # Slices are compared element by element. The outputs are they, the first place of each, the
    # number of each slice of x among them, and counts.
    source, along = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    keys = [_make_key(source, along, place) for place in range(source.shape[along])]
    different = list(dict.fromkeys(keys))
    if sorted:
        different.sort()
    first = [keys.index(key) for key in different]
    inverse = [different.index(key) for key in keys]
    counts = [keys.count(key) for key in different]
    numbers = (np.array(each, np.int64) for each in (first, inverse, counts))
    return (_take_slices(source, along, first), *numbers)


def _make_key(x: Array, axis: int, place: int) -> tuple[Any, ...]:
    others = (*x.shape[:axis], *x.shape[axis + 1 :])
    elements = (at(x, *index[:axis], place, *index[axis:]) for index in indices(others))
    return tuple((rank(one.real), rank(one.imag)) for one in elements)


@definition("NonMaxSuppression")
def non_max_suppression(
    boxes: Array,
    scores: Array,
    limit: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
    *,
    center_point_box: bool,
) -> Array:
    # Of equal scores the lower box is the better; NaN is the worst score, and under any threshold.
    most, threshold = (0 if given is None else given.item() for given in (limit, overlap))
    if not 0 <= threshold <= 1:
        raise ValueError(f"an overlap of {threshold} is not in [0, 1]")
    rows: list[tuple[int, int, int]] = []
    for image, label in indices(scores.shape[:2]):
        score = [at(scores, image, label, box) for box in range(scores.shape[2])]
        corners = [
            _find_corners(boxes[image, box].tolist(), center_point_box) for box in range(len(score))
        ]
        kept: list[int] = []
        for box in sorted(range(len(score)), key=lambda box: (isnan(score[box]), -score[box])):
            if len(kept) >= most or (least is not None and not score[box] > least.item()):
                break
            if all(_compute_overlap(corners[box], corners[other]) <= threshold for other in kept):
                kept.append(box)
        rows += [(image, label, box) for box in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def _find_corners(box: Sequence[float], by_centre: bool) -> Box:
    a, b, c, d = box
    if by_centre:
        return a - c / 2, a + c / 2, b - d / 2, b + d / 2
    return min(a, c), max(a, c), min(b, d), max(b, d)


def _compute_overlap(one: Box, other: Box) -> float:
    """Return the area that boxes `one` and `other` share, relative to their union."""
    shared = _compute_area(
        (max(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), min(one[3], other[3]))
    )
    return shared / (_compute_area(one) + _compute_area(other) - shared) if shared else 0.0


def _compute_area(box: Box) -> float:
    return max(box[1] - box[0], 0.0) * max(box[3] - box[2], 0.0)
