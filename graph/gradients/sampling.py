"""Gradients of reading images at computed places, as weighted cells around each place.

The reads are recomputed with gathers and products, which have rules; cells are whole numbers,
so only the weights depend on a place. In RoiAlign, an average is a product with a matrix along each
axis, which RoiAlign itself computes from images with a 1 in one row or column. For the gradients of
regions, or of the largest sample, samples are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .elementwise import Gradients
from .formula import Term
from .movement import make_range
from .registry import Adjoint, gradient
from .via_decomposition import Inputs, differentiate_through

LINEAR = ((1.0, -1.0), (0.0, 1.0))
"""For each tap a polynomial of the distance of a place after the cell before it."""

_A = -0.75
_CUBIC = (
    (0.0, _A, -2 * _A, _A),
    (1.0, 0.0, -(_A + 3), _A + 2),
    (0.0, -_A, 2 * _A + 3, -(_A + 2)),
    (0.0, 0.0, _A, -_A),
)
"""Keys' weights of four cells, from one before that cell to two after it."""

_POLYNOMIALS = {"nearest": ((1.0,),), "linear": LINEAR, "cubic": _CUBIC}
_NEAR = 4
"""Cells outside of an image beyond which no tap is inside."""


class SamplingTaps(NamedTuple):
    """Cells that points read, and their weights: (images, points, taps)."""

    cells: Term
    weights: Term

    def times(self, other: SamplingTaps, length: Term) -> SamplingTaps:
        """Return the taps over this axis and the next, with taps `other` and `length` cells."""
        column, row = self.cells.formula.constant([-1]), self.cells.formula.constant([-2])
        cells = (self.cells * length).op("Unsqueeze", column) + other.cells.op("Unsqueeze", row)
        weights = self.weights.op("Unsqueeze", column) * other.weights.op("Unsqueeze", row)
        return SamplingTaps(*(_merge_axes(one, 2, 4) for one in (cells, weights)))


def _merge_axes(x: Term, start: int, end: int) -> Term:
    formula = x.formula
    parts = formula.shape_of(x, 0, start), formula.size_of(x, start, end), formula.shape_of(x, end)
    return x.reshaped(formula.joined(*parts))


def widen(x: Term) -> Term:
    """Return the floats `x` in single precision at least."""
    return x.cast("float32") if x.dtype.itemsize < 4 else x


def get_length(x: Term, axis: int) -> Term:
    return x.formula.shape_of(x, axis + 2, axis + 3)


def find_nearest(cells: Term, length: Term) -> tuple[Term, Term]:
    """Return `cells` as integers, clamped to `length`, and a mask of those that are inside."""
    last = length.cast(cells.dtype) - 1
    # Places far outside, or NaN, still need a cell that can be read: weights of 0 remove it later.
    held = cells.op("Max", cells.formula.constant(0, cells.dtype)).op("Min", last)
    known = held.where((held > last).op("Not").op("And", held.equals(held)))  # 0 for NaN
    return known.cast("int64"), held.equals(cells)


def weigh(fraction: Term, polynomials: Sequence[Sequence[float]]) -> Term:
    """Return weights of taps: `polynomials` of `fraction`, the distance from the cell before."""
    formula, total = fraction.formula, None
    # Horner's scheme, for all taps at once: a column holds their coefficients of one power.
    for column in np.transpose(polynomials)[::-1]:
        share = formula.constant(column, fraction.dtype)
        total = share if total is None else total * fraction + share
    assert total is not None
    return total


def read_taps(images: Term, taps: SamplingTaps, owners: Term | None = None) -> Term:
    """Return the values of `images`, (batch, channels, *spatial), at `taps`.

    They have the shape (images, points, channels). `owners` are the images that the rows of taps
    read; each row its own by default.
    """
    got = gather_cells(images, taps.cells, owners)
    weights = taps.weights.cast(images.dtype).op("Unsqueeze", images.formula.constant([-2]))
    return weights.op("MatMul", got).op("Squeeze", images.formula.constant([-2]))


def gather_cells(images: Term, cells: Term, owners: Term | None = None) -> Term:
    """Return `cells` of `images` as (rows, points, taps, channels); `owners` as in `read_taps`."""
    formula, count = images.formula, images.formula.size_of(images, 2)
    # One Gather for all images: cells are numbered through, image after image, channels last.
    planes = _merge_axes(images, 2, images.rank)
    rows = _merge_axes(planes.transposed((0, 2, 1)), 0, 2)
    if owners is None:
        owners = make_range(formula.shape_of(images, 0, 1))
    first = (owners * count).op("Unsqueeze", formula.constant([1, 2]))
    return rows.op("Gather", cells + first, axis=0)


def combine_axes(images: Term, taps: Sequence[SamplingTaps]) -> SamplingTaps:
    """Return the taps over all axes of `images`, combined from the `taps` along each of them."""
    made = taps[0]
    for axis, more in enumerate(taps[1:], 1):
        made = made.times(more, get_length(images, axis))
    return made


def make_linear_taps(place: Term, length: Term) -> SamplingTaps:
    """Return the cells around `place`, (images, points, 1); beyond `length` they have weight 0."""
    return _make_taps(_clamp_near(place, length), length, LINEAR, "zeros", None)


def _clamp_near(place: Term, length: Term) -> Term:
    """Return `place`, with places far beyond `length` moved near, but with all taps outside."""
    low = place.formula.constant(-_NEAR, place.dtype)
    return place.op("Max", low).op("Min", length.cast(place.dtype) + (_NEAR - 1))


def _make_taps(
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
        cells = _mirror(cells, *bounds)
    chosen, known = find_nearest(cells, length)
    weights = weigh(place - before, polynomials)
    if padding == "zeros":
        return SamplingTaps(chosen, weights.where(known))
    return SamplingTaps(chosen, weights.expanded(place.formula.shape_of(chosen)))


def _mirror(places: Term, low: Term, high: Term) -> Term:
    # Mirroring at both ends has the period of a round trip.
    span = (high - low) * 2
    period = span.op("Max", span.formula.constant(0.5, span.dtype))  # of one cell, any
    beyond = places - low
    beyond = beyond - (beyond / period).op("Floor") * period
    return beyond.op("Min", span - beyond) + low


@gradient("GridSample")
def grid_sample(at: Adjoint) -> Gradients:
    yield from differentiate_through(at, partial(_sample, at))


def _sample(at: Adjoint, inputs: Inputs) -> list[Term]:
    x, grid = inputs
    assert x is not None
    assert grid is not None
    formula, images, rank = at.formula, widen(x), x.rank - 2
    points = _merge_axes(widen(grid), 1, grid.rank - 1)
    ones = formula.constant([1] * rank)
    named = formula.split("Split", points, ones, outputs=rank, axis=2)[::-1]  # the last axis first
    taps = [_place_taps(at, place, get_length(x, axis)) for axis, place in enumerate(named)]
    y = read_taps(images, combine_axes(x, taps)).transposed((0, 2, 1))
    shape = formula.joined(formula.shape_of(x, 0, 2), formula.shape_of(grid, 1, grid.rank - 1))
    return [y.reshaped(shape).cast(x.dtype)]


def _place_taps(at: Adjoint, place: Term, length: Term) -> SamplingTaps:
    """Return the taps that `at` reads on an axis of `length`, for `place` in [-1, 1]."""
    # ±1 are the centers of the outer cells, or their outer borders.
    corners, mode, padding = at["align_corners"], at["mode"], at["padding_mode"]
    cells = length.cast(place.dtype)
    place = (place + 1) * 0.5 * (cells - 1) if corners else ((place + 1) * cells - 1) * 0.5
    margin = 0.0 if corners else 0.5
    low, high = place.formula.constant(-margin, place.dtype), cells - 1 + margin
    if mode == "nearest":
        place = place.op("Round")
    bounds = None
    if padding == "reflection":
        bounds, place = (low, high), _mirror(place, low, high)
    else:
        place = _clamp_near(place, length)
    return _make_taps(place, length, _POLYNOMIALS[mode], padding, bounds)


@gradient("AffineGrid")
def affine_grid(at: Adjoint) -> Gradients:
    # The gradient of a map is the sum over places of dy times the place.
    theta, dy, formula = at.input(0), at.dy, at.formula
    # The map is linear in theta: its gradient is dy weighted by the places of the unit map.
    rank = theta.spec.shape[1] if theta.spec.shape else None
    if not isinstance(rank, int):
        rank = dy.rank - 2
    unit = formula.constant(np.eye(rank, rank + 1)[None], widen(theta).dtype)
    size = formula.joined(formula.constant([1]), _drop_batch(at.input(1)))
    places = unit.op("AffineGrid", size, align_corners=at["align_corners"])
    flat, slopes = _merge_axes(places, 0, rank + 1), _merge_axes(widen(dy), 1, rank + 1)
    turned = slopes.transposed((0, 2, 1))
    parts = turned.op("MatMul", flat), turned.sum([2])
    yield 0, formula.op("Concat", *parts, axis=2)


def _drop_batch(size: Term) -> Term:
    formula, value = size.formula, size.value
    if value is not None:
        return formula.constant(value.reshape(-1)[1:])
    bounds = (formula.constant([1]), formula.constant([2**31 - 1]), formula.constant([0]))
    return size.cast("int64").op("Slice", *bounds)


_REGION = 4
"""Numbers of a region: x1, y1, x2, y2."""


@gradient("RoiAlign")
def roi_align(at: Adjoint) -> Gradients:
    if at["mode"] == "avg" and not at.wants(1):
        yield 0, _spread_averages(at)
        return
    if not at["sampling_ratio"]:
        what = "its regions" if at.wants(1) else "the largest samples"
        raise at.refused_error(
            f"how many samples it takes depends on its regions, so no gradient flows to {what}",
            "set its sampling_ratio",
        )
    yield from differentiate_through(at, partial(_read_samples, at))


def _spread_averages(at: Adjoint) -> Term:
    """Return the gradient of the averages that `at` computes, added to the image of each region."""
    x, rois, owners, formula = at.input(0), widen(at.input(1)), at.input(2), at.formula
    down, across = (_make_matrix(at, rois, axis) for axis in range(2))  # (regions, cells, outputs)
    lines = widen(at.dy).op("MatMul", across.transposed((0, 2, 1)).op("Unsqueeze", _make_one(at)))
    batch, channels = formula.shape_of(x, 0, 1), formula.shape_of(x, 1, 2)
    height, width = get_length(x, 0), get_length(x, 1)
    rows = formula.size_of(down, 0, 1) * formula.shape_of(down, 2, 3)
    own = (
        make_range(batch)
        .op("Unsqueeze", _make_one(at))
        .equals(owners.cast("int64"))
        .cast(down.dtype)
    )
    own = own.op("Unsqueeze", formula.constant([1, 3]))  # (batch, 1, regions, 1)
    left = (down.transposed((1, 0, 2)) * own).reshaped(formula.joined(batch, height, rows))
    right = lines.transposed((0, 2, 1, 3)).reshaped(formula.joined(rows, channels * width))
    made = left.op("MatMul", right).reshaped(formula.joined(batch, height, channels, width))
    return made.transposed((0, 2, 1, 3))


def _make_one(at: Adjoint) -> Term:
    return at.formula.constant([1])


def _make_matrix(at: Adjoint, rois: Term, axis: int) -> Term:
    """Return the weight of each cell along `axis` in each output: (regions, cells, outputs)."""
    formula, length = at.formula, get_length(at.input(0), axis)
    unit = formula.filled(formula.joined(length, length), 0, rois.dtype).op("EyeLike")
    other = [3 - axis]  # of (batch, channels, h, w)
    images = unit.op("Unsqueeze", formula.constant(sorted([0, *other])))
    place = np.eye(_REGION)[[1 - axis, 3 - axis]].sum(0)
    end = np.eye(_REGION)[2 + axis] / (at["spatial_scale"] or 1.0)
    held = rois * formula.constant(place, rois.dtype) + formula.constant(end, rois.dtype)
    owners = formula.op("ConstantOfShape", formula.shape_of(rois, 0, 1), value=0, dtype="int64")
    names = ("coordinate_transformation_mode", "sampling_ratio", "spatial_scale")
    sizes = {"output_height": 1, "output_width": 1}
    sizes["output_width" if axis else "output_height"] = _get_size(at, axis)
    made = images.op("RoiAlign", held, owners, **{name: at[name] for name in names}, **sizes)
    return made.op("Squeeze", formula.constant(other))


def _get_size(at: Adjoint, axis: int) -> int:
    size: int = at["output_width" if axis else "output_height"]
    return size


def _read_samples(at: Adjoint, inputs: Inputs) -> list[Term]:
    x, rois, owners = inputs
    assert x is not None
    assert rois is not None
    assert owners is not None
    formula, images, ratio = at.formula, widen(x), at["sampling_ratio"]
    down, across = (_place_samples(at, widen(rois), axis, get_length(x, axis)) for axis in range(2))
    rows, columns = formula.constant([2, 4]), formula.constant([1, 3])
    cells = (down.cells * get_length(x, 1)).op("Unsqueeze", rows)
    cells = cells + across.cells.op("Unsqueeze", columns)
    weights = down.weights.op("Unsqueeze", rows) * across.weights.op("Unsqueeze", columns)
    count = formula.shape_of(rois, 0, 1)
    flat = formula.joined(count, formula.constant([-1, 1]))
    got = gather_cells(images, cells.reshaped(flat), owners.cast("int64"))
    got = got * weights.reshaped(flat).op("Unsqueeze", formula.constant([-1]))
    sizes = [_get_size(at, 0), ratio, _get_size(at, 1), ratio, 4]
    got = got.reshaped(formula.joined(count, formula.constant(sizes), formula.shape_of(x, 1, 2)))
    if at["mode"] == "avg":
        y = got.sum([2, 4, 5], keepdims=False) / ratio**2
    else:
        y = got.reduced("Max", [2, 4, 5], keepdims=False)
    return [y.transposed((0, 3, 1, 2)).cast(x.dtype)]


def _place_samples(at: Adjoint, rois: Term, axis: int, length: Term) -> SamplingTaps:
    """Return the cells that `at` samples along `axis`, in the shape (regions, samples, 2)."""
    formula, half = at.formula, at["coordinate_transformation_mode"] == "half_pixel"
    ratio, size = at["sampling_ratio"], _get_size(at, axis)
    corners = rois * at["spatial_scale"] - half / 2
    x1, y1, x2, y2 = formula.split("Split", corners, formula.constant([1] * 4), outputs=4, axis=1)
    begin, end = (x1, x2) if axis else (y1, y2)
    extent = end - begin
    if not half:
        extent = extent.op("Max", formula.constant(1, extent.dtype))
    samples = np.arange(size)[:, None] + (np.arange(ratio) + 0.5) / ratio
    place = begin + extent / size * formula.constant(samples.reshape(-1), begin.dtype)
    near = (place < -1).op("Or", place > length.cast(place.dtype)).op("Not")
    held = place.op("Max", formula.constant(0, place.dtype)).op("Min", length.cast(place.dtype) - 1)
    column = formula.constant([-1])
    held, near = held.op("Unsqueeze", column), near.op("Unsqueeze", column)
    before = held.op("Floor")
    chosen, _ = find_nearest(before + formula.constant([0, 1], held.dtype), length)
    return SamplingTaps(chosen, weigh(held - before, LINEAR).where(near))
