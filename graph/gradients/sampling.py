"""Gradients of reading images at computed places: the cells around each place, weighted.

What is read is computed again with gathers and products, which have rules; cells are whole numbers,
so that only the weights change with a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .movement import numbered
from .registry import gradient
from .via_decomposition import Inputs, through

LINEAR = ((1.0, -1.0), (0.0, 1.0))
"""Of each tap a polynomial of how far a place is behind the cell before it."""

_A = -0.75
_CUBIC = (
    (0.0, _A, -2 * _A, _A),
    (1.0, 0.0, -(_A + 3), _A + 2),
    (0.0, -_A, 2 * _A + 3, -(_A + 2)),
    (0.0, 0.0, _A, -_A),
)
"""Keys' weights of the cells from one before that to two behind it."""

_POLYNOMIALS = {"nearest": ((1.0,),), "linear": LINEAR, "cubic": _CUBIC}
_NEAR = 4
"""Cells outside of an image, where no tap is inside any more."""


class SamplingTaps(NamedTuple):
    """Cells that points read, and their weights: (images, points, taps)."""

    cells: Term
    weights: Term

    def times(self, other: SamplingTaps, length: Term) -> SamplingTaps:
        """Return the taps over this axis and another one, the next, of so many cells."""
        column, row = self.cells.formula.constant([-1]), self.cells.formula.constant([-2])
        cells = (self.cells * length).op("Unsqueeze", column) + other.cells.op("Unsqueeze", row)
        weights = self.weights.op("Unsqueeze", column) * other.weights.op("Unsqueeze", row)
        return SamplingTaps(*(_flattened(one, 2, 4) for one in (cells, weights)))


def _flattened(x: Term, start: int, end: int) -> Term:
    """Return a tensor with some of its axes made one."""
    formula = x.formula
    parts = formula.shape_of(x, 0, start), formula.size_of(x, start, end), formula.shape_of(x, end)
    return x.reshaped(formula.joined(*parts))


def widened(x: Term) -> Term:
    """Return floats in single precision at least."""
    return x.cast("float32") if x.dtype.itemsize < 4 else x


def length_of(x: Term, axis: int) -> Term:
    """Return how many cells images (batch, channels, *spatial) have along an axis, as a vector."""
    return x.formula.shape_of(x, axis + 2, axis + 3)


def inside(cells: Term, length: Term) -> tuple[Term, Term]:
    """Return the cells nearest to whole numbers, as integers, and where these are cells."""
    last = length.cast(cells.dtype) - 1
    # Places may be far outside, or NaN, and still need a cell that can be read: weights of 0
    # take it back afterwards.
    held = cells.op("Max", cells.formula.constant(0, cells.dtype)).op("Min", last)
    known = held.where((held > last).op("Not").op("And", held.equals(held)))  # 0 for NaN
    return known.cast("int64"), held.equals(cells)


def weighed(fraction: Term, polynomials: Sequence[Sequence[float]]) -> Term:
    """Return the taps' weights, given how far places are behind the cells before them."""
    formula, total = fraction.formula, None
    # Horner's scheme, for all taps at once: a column holds their coefficients of one power.
    for column in np.transpose(polynomials)[::-1]:
        share = formula.constant(column, fraction.dtype)
        total = share if total is None else total * fraction + share
    assert total is not None
    return total


def read(images: Term, taps: SamplingTaps, owners: Term | None = None) -> Term:
    """Return (images, points, channels, taps' sum) of images (batch, channels, *spatial).

    `owners` tells which image each row of taps reads; each its own, if left out.
    """
    got = gathered(images, taps.cells, owners)
    weights = taps.weights.cast(images.dtype).op("Unsqueeze", images.formula.constant([-2]))
    return weights.op("MatMul", got).op("Squeeze", images.formula.constant([-2]))


def gathered(images: Term, cells: Term, owners: Term | None = None) -> Term:
    """Return (rows of cells, points, taps, channels) of images (batch, channels, *spatial)."""
    formula, count = images.formula, images.formula.size_of(images, 2)
    # One Gather for all images: cells are numbered through, image after image, channels last.
    planes = _flattened(images, 2, images.rank)
    rows = _flattened(planes.transposed((0, 2, 1)), 0, 2)
    if owners is None:
        owners = numbered(formula.shape_of(images, 0, 1))
    first = (owners * count).op("Unsqueeze", formula.constant([1, 2]))
    return rows.op("Gather", cells + first, axis=0)


def over_axes(images: Term, taps: Sequence[SamplingTaps]) -> SamplingTaps:
    """Return the taps over all axes together, given those along each."""
    made = taps[0]
    for axis, more in enumerate(taps[1:], 1):
        made = made.times(more, length_of(images, axis))
    return made


def linear_taps(place: Term, length: Term) -> SamplingTaps:
    """Return the cells around places (images, points, 1); what is outside weighs nothing."""
    return _taps(_held_near(place, length), length, LINEAR, "zeros", None)


def _held_near(place: Term, length: Term) -> Term:
    """Return places, those far outside moved to where all their taps still are."""
    low = place.formula.constant(-_NEAR, place.dtype)
    return place.op("Max", low).op("Min", length.cast(place.dtype) + (_NEAR - 1))


def _taps(
    place: Term,
    length: Term,
    polynomials: Sequence[Sequence[float]],
    padding: str,
    bounds: tuple[Term, Term] | None,
) -> SamplingTaps:
    count = len(polynomials)
    before = place.op("Floor")
    offsets = np.arange(count) - (count // 2 - 1 if count > 1 else 0)
    cells = before + place.formula.constant(offsets, place.dtype)
    if bounds is not None:
        cells = _mirrored(cells, *bounds)
    chosen, known = inside(cells, length)
    weights = weighed(place - before, polynomials)
    if padding == "zeros":
        return SamplingTaps(chosen, weights.where(known))
    return SamplingTaps(chosen, weights.expanded(place.formula.shape_of(chosen)))


def _mirrored(places: Term, low: Term, high: Term) -> Term:
    """Return places, mirrored at the bounds until they are between them."""
    # There and back again is the period of a place that is thrown back at both ends.
    span = (high - low) * 2
    period = span.op("Max", span.formula.constant(0.5, span.dtype))  # of one cell, any
    beyond = places - low
    beyond = beyond - (beyond / period).op("Floor") * period
    return beyond.op("Min", span - beyond) + low


@gradient("GridSample")
def grid_sample(at: Adjoint) -> Gradients:
    """Cells get their share of what was read; a place, how what it reads changes with it."""
    yield from through(at, partial(_sampled, at))


def _sampled(at: Adjoint, inputs: Inputs) -> list[Term]:
    x, grid = inputs
    assert x is not None
    assert grid is not None
    formula, images, rank = at.formula, widened(x), x.rank - 2
    points = _flattened(widened(grid), 1, grid.rank - 1)
    ones = formula.constant([1] * rank)
    named = formula.split("Split", points, ones, outputs=rank, axis=2)[::-1]  # the last axis first
    taps = [_along(at, place, length_of(x, axis)) for axis, place in enumerate(named)]
    y = read(images, over_axes(x, taps)).transposed((0, 2, 1))
    shape = formula.joined(formula.shape_of(x, 0, 2), formula.shape_of(grid, 1, grid.rank - 1))
    return [y.reshaped(shape).cast(x.dtype)]


def _along(at: Adjoint, place: Term, length: Term) -> SamplingTaps:
    """Return the taps along one axis, for places in [-1, 1]."""
    # Whether ±1 are the centers of the outer cells, or their outer borders.
    corners, mode, padding = at["align_corners"], at["mode"], at["padding_mode"]
    cells = length.cast(place.dtype)
    place = (place + 1) * 0.5 * (cells - 1) if corners else ((place + 1) * cells - 1) * 0.5
    margin = 0.0 if corners else 0.5
    low, high = place.formula.constant(-margin, place.dtype), cells - 1 + margin
    if mode == "nearest":
        place = place.op("Round")
    bounds = None
    if padding == "reflection":
        bounds, place = (low, high), _mirrored(place, low, high)
    elif padding == "border":
        place = place.where((place < low).op("Not")).where((place > high).op("Not"), cells - 1)
    else:
        place = _held_near(place, length)
    return _taps(place, length, _POLYNOMIALS[mode], padding, bounds)


@gradient("AffineGrid")
def affine_grid(at: Adjoint) -> Gradients:
    """Each map gets the sum over places of its dy times the place."""
    theta, dy, formula = at.input(0), at.dy, at.formula
    # The map is linear in theta: its gradient is what the unit map's places weigh dy by.
    rank = theta.spec.shape[1] if theta.spec.shape else None
    if not isinstance(rank, int):
        rank = dy.rank - 2
    unit = formula.constant(np.eye(rank, rank + 1)[None], widened(theta).dtype)
    size = formula.joined(formula.constant([1]), _behind(at.input(1)))
    places = unit.op("AffineGrid", size, align_corners=at["align_corners"])
    flat, slopes = _flattened(places, 0, rank + 1), _flattened(widened(dy), 1, rank + 1)
    turned = slopes.transposed((0, 2, 1))
    parts = turned.op("MatMul", flat), turned.sum([2])
    yield 0, formula.op("Concat", *parts, axis=2)


def _behind(size: Term) -> Term:
    """Return a shape without its first length."""
    formula, value = size.formula, size.value
    if value is not None:
        return formula.constant(value.reshape(-1)[1:])
    bounds = (formula.constant([1]), formula.constant([2**31 - 1]), formula.constant([0]))
    return size.cast("int64").op("Slice", *bounds)
