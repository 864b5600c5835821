"""Definitions, ``op(*inputs, **attributes)``, that read an image between its cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.operator import Specs
from ...graph.values.tensor import Array
from .elementwise import truncate
from .ieee import largest, sum_exactly
from .registry import at, definition, indices, table
from .windows import is_inside, iterate_places, make_windows

Tap: TypeAlias = tuple[int, float]
"""Where a cell is along an axis, and its weight."""


@definition("AffineGrid")
def affine_grid(theta: Array, size: Array, *, align_corners: bool) -> Array:
    # Y[n, (z,) y, x] = theta[n] · (x, y, (z,) 1), the places being evenly spaced in [-1, 1].
    batch, _, *spatial = (int(length) for length in size.tolist())

    def coordinate(i: int, length: int) -> float:
        if align_corners:
            return 2 * i / (length - 1) - 1 if length > 1 else 0.0
        return (2 * i + 1) / length - 1

    def element(n: int, *index: int) -> float:
        *place, row = index
        vector = [coordinate(i, length) for i, length in zip(place, spatial, strict=True)]
        homogeneous = (*reversed(vector), 1.0)
        return float(sum_exactly(at(theta, n, row, j) * v for j, v in enumerate(homogeneous)))

    return table((batch, *spatial, len(spatial)), element)


@definition("GridSample")
def grid_sample(
    x: Array, grid: Array, *, align_corners: bool, mode: str, padding_mode: str
) -> Array:
    # Y[n, c, o…] = x[n, c] at the place grid[n, o…], whose last axis comes first. -1 and 1 are the
    # centres of the outermost cells, or else their outer edges. Cells outside are 0, border cells,
    # or mirrored. Interpolation at NaN is NaN, and so at an infinity if places are mirrored. The
    # nearest cell of such a place is outside, or else the first. ONNX leaves this open.
    spatial = x.shape[2:]

    def find(axis: int, normalized: float) -> float:
        length = spatial[axis]
        place = _denormalize(normalized, length, align_corners)
        if padding_mode != "reflection":
            # Farther out nothing changes, and infinite places would have no cells around them.
            place = min(max(place, -4.0), length + 3.0)  # as far outside as makes a difference
        return place if mode == "nearest" else _move(place, length, align_corners, padding_mode)

    def taps(axis: int, place: float) -> list[Tap]:
        # Only nan and mirrored infinities get here: see above for their results.
        if not math.isfinite(place):
            return [(-1 if padding_mode == "zeros" else 0, 1)]
        around = TAPS[mode](place)
        return [(_pad(cell, spatial[axis], align_corners, padding_mode), w) for cell, w in around]

    def element(n: int, c: int, *output: int) -> Any:
        last = len(spatial) - 1
        places = [find(axis, at(grid, n, *output, last - axis)) for axis in range(len(spatial))]
        axes = [taps(axis, place) for axis, place in enumerate(places)]
        if mode == "nearest":
            return _read(x[n, c], axes)
        value = math.nan if any(map(math.isnan, places)) else _read(x[n, c], axes)
        return truncate(value) if x.dtype.kind in "iu" else value

    return table((*x.shape[:2], *grid.shape[1:-1]), element)


def _denormalize(coordinate: float, length: int, align_corners: bool) -> float:
    if align_corners:
        return (coordinate + 1) / 2 * (length - 1)
    return ((coordinate + 1) * length - 1) / 2


def _move(place: float, length: int, align_corners: bool, padding_mode: str) -> float:
    """Return where `place` on an axis of `length` cells is mirrored to, if beyond the border.

    Unless `padding_mode` is "reflection", it stays. The border is the centre of the outermost cell
    with `align_corners`, else its edge. Cells around the place may still be outside: each is padded
    by itself, as in ONNX Runtime and PyTorch. ONNX's reference implementation moves places instead.
    """
    low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
    if padding_mode != "reflection" or low <= place <= high:
        return place
    # There and back: after twice the length it begins again.
    period = 2 * (high - low)
    around = (place - low) % period if period else 0.0
    return low + min(around, period - around)


def _pad(cell: int, length: int, align_corners: bool, padding_mode: str) -> int:
    if padding_mode == "border":
        return min(max(cell, 0), length - 1)
    if padding_mode == "zeros":
        return cell
    return _reflect(cell, length, align_corners)


def _reflect(cell: int, length: int, align_corners: bool) -> int:
    """Return the cell that `cell` is mirrored to on an axis of `length` cells.

    With `align_corners` the mirrors are the outermost cells' centres, or else their edges.
    """
    if align_corners:
        around = cell % (2 * (length - 1)) if length > 1 else 0
        return min(around, 2 * (length - 1) - around)
    around = cell % (2 * length)
    return min(around, 2 * length - 1 - around)


def _find_nearest(place: float) -> list[Tap]:
    return [(round(place), 1)]


def _weigh_linear(place: float) -> list[Tap]:
    first = math.floor(place)
    return [(first, first + 1 - place), (first + 1, place - first)]


def _weigh_cubic(place: float) -> list[Tap]:
    """Return the four cells around `place`, weighted as by Keys (1981) with a = -0.75."""
    first = math.floor(place) - 1
    return [(cell, _weigh_keys(abs(place - cell), -0.75)) for cell in range(first, first + 4)]


def _weigh_keys(distance: float, a: float) -> float:
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * (distance**3 - 5 * distance**2 + 8 * distance - 4)


TAPS: dict[str, Callable[[float], list[Tap]]] = {
    "nearest": _find_nearest,
    "linear": _weigh_linear,
    "cubic": _weigh_cubic,
}


def _iterate_weighted(image: Array, axes: Sequence[Sequence[Tap]]) -> Iterator[Any]:
    for taps in product(*axes):
        cell = [place for place, _ in taps]
        if is_inside(cell, image.shape):
            yield at(image, *cell) * math.prod(weight for _, weight in taps)
        else:
            yield 0


def _read(image: Array, axes: Sequence[Sequence[Tap]]) -> Any:
    # Exact sums are of real numbers only.
    if image.dtype.kind == "c":
        return sum(_iterate_weighted(image, axes))
    return sum_exactly(_iterate_weighted(image, axes))


@definition("RoiAlign")
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Array:
    # Y[r, c, i, j] = the mean, or the largest, of samples evenly spaced in a cell of region r. The
    # largest is that of the samples' four weighted cells, as ONNX has it, not of their sums.
    # Source: ONNX RoiAlign; He et al., "Mask R-CNN" (2017).
    half_pixel = coordinate_transformation_mode == "half_pixel"
    sizes = (output_height, output_width)

    def samples(r: int, cell: Sequence[int]) -> Iterator[tuple[float, float]]:
        axes = []
        for axis, (size, i) in enumerate(zip(sizes, cell, strict=True)):
            # Regions are x1, y1, x2, y2, the other way round than axes.
            begin, end = (
                at(rois, r, corner) * spatial_scale - half_pixel / 2
                for corner in (1 - axis, 3 - axis)
            )
            # The older form has no region shorter than a cell.
            step = (end - begin if half_pixel else max(end - begin, 1.0)) / size
            # Where none is given, about one sample for each cell of x.
            count = sampling_ratio or math.ceil(step)
            axes.append([begin + step * (i + (k + 0.5) / count) for k in range(count)])
        yield from product(*axes)

    def element(r: int, c: int, *cell: int) -> float:
        owner = int(at(batch_indices, r))
        if not 0 <= owner < x.shape[0]:
            raise IndexError(f"batch index {owner} is outside a batch of {x.shape[0]}")
        image = x[owner, c]
        read = [list(_iterate_around(image, place)) for place in samples(r, cell)]
        if mode == "max":
            return largest(map(largest, read)) if read else 0.0
        return float(sum_exactly(value for cells in read for value in cells)) / max(len(read), 1)

    return table((rois.shape[0], x.shape[1], *sizes), element)


def _iterate_around(image: Array, place: Sequence[float]) -> Iterator[float]:
    """Yield weighted cells of `image` around `place`; the outermost extend beyond the border."""
    axes = []
    for coordinate, length in zip(place, image.shape, strict=True):
        if not -1 <= coordinate <= length:
            yield 0.0
            return
        taps = _weigh_linear(min(max(coordinate, 0.0), length - 1.0))
        axes.append([(min(place, length - 1), weight) for place, weight in taps])
    yield from _iterate_weighted(image, axes)


@definition("DeformConv")
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    group: int,
    offset_group: int,
    outputs: Specs,
    **attributes: Any,
) -> Array:
    # Each cell of a window is read where its offset moves it, and multiplied by its mask.
    # Source: ONNX DeformConv; Zhu et al., "Deformable ConvNets v2" (2019).
    shape, spatial = outputs[0].static_shape, x.shape[2:]
    sliding = make_windows(spatial, shape[2:], w.shape[2:], {**attributes, "auto_pad": "NOTSET"})
    cells, rank = math.prod(w.shape[2:]), len(spatial)
    read = np.empty((x.shape[0], x.shape[1], cells, *shape[2:]), object)
    for n, c, *window in indices((*x.shape[:2], *shape[2:])):
        # Channels of one group are moved together.
        moved = c // (x.shape[1] // offset_group) * cells
        for k, (_, place) in enumerate(iterate_places(sliding, window)):
            steps = [at(offset, n, (moved + k) * rank + axis, *window) for axis in range(rank)]
            value = _read(
                x[n, c], [_weigh_linear(p + s) for p, s in zip(place, steps, strict=True)]
            )
            factor = 1 if mask is None else at(mask, n, moved + k, *window)
            read[(n, c, k, *window)] = value * factor
    features = w.shape[0] // group

    def element(n: int, f: int, *window: int) -> float:
        # A feature reads the channels of its own group.
        first = f // features * w.shape[1]
        terms = [
            at(w, f, c, *cell) * read[(n, first + c, k, *window)]
            for c in range(w.shape[1])
            for k, cell in enumerate(indices(w.shape[2:]))
        ]
        return float(sum_exactly([*terms, *([] if b is None else [at(b, f)])]))

    return table(shape, element)
