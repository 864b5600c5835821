"""The kernel of Resize: axis by axis, by copies or by weighted sums.

Sums use slices if outputs repeat a pattern. A doubled axis has two kinds of outputs: those a
quarter of a cell before a cell and those a quarter after. Each kind reads adjacent cells with the
same weights, so that slices suffice. Measured on 96×80×80 float32, one thread: doubled in 2.9 ms,
by gathers in 3.9; halved from there in 0.9 and 2.3.

Source: ONNX Resize; cubic: R. Keys, Cubic convolution interpolation for digital image
processing, IEEE Trans. ASSP 29 (1981), equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.resampling import CROP, Resampling, read_target, resample_axes
from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import Array, TensorSpec
from .arguments import index_at
from .precision import find_limits
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order

Floats = NDArray[np.float64]
Cells = NDArray[np.int64]


class Weighted(NamedTuple):
    """The first cell that each output reads along one axis, and (outputs, taps) weights from it."""

    first: Cells
    weights: Floats


def compute_places(axis: Resampling, transformation: str) -> Floats:
    """Return the place of each output of `axis`, in cells of the input, by `transformation`.

    Products come before quotients, so that exact ties and whole numbers are exact here, too.
    """
    x = np.arange(axis.resized, dtype=np.float64)
    length, resized = axis.length, axis.resized
    width, parts = axis.width.as_integer_ratio()
    if not resized:
        return x
    if transformation == "asymmetric":
        return x * length * parts / width
    if transformation == "align_corners":
        return x * (length - 1) * parts / (width - parts) if width != parts else x
    if transformation == CROP:
        if resized == 1:
            return np.full(1, 0.5 * (axis.start + axis.end) * (length - 1))
        step = (axis.end - axis.start) * (length - 1)
        return axis.start * (length - 1) + x * step / (resized - 1)
    if transformation == "pytorch_half_pixel" and resized == 1:
        return x
    if transformation == "half_pixel_symmetric":
        return length * ((2 * x + 1 - resized) * parts + width) / (2 * width) - 0.5
    return (x + 0.5) * length * parts / width - 0.5


_ROUNDINGS: dict[str, Callable[[Floats], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
}


def round_to_cells(places: Floats, length: int, nearest_mode: str) -> Cells:
    rounded: Floats = np.clip(_ROUNDINGS[nearest_mode](places), 0, length - 1)
    return rounded.astype(np.int64)


def weigh(places: Floats, axis: Resampling, attributes: Attributes) -> Weighted:
    """Return the cells around each of `places` on `axis`, with linear or cubic weights.

    The `attributes` are those of Resize: with antialias, a filter for shrinking is as many times
    wider. Weights of cells outside the input go to the ones at its border, or with
    exclude_outside do not count.
    """
    cubic = attributes["mode"] == "cubic"
    widens = attributes["antialias"] and 0 < axis.width < axis.length
    stretch = float(axis.length / axis.width) if widens else 1.0
    radius = (2 if cubic else 1) * stretch
    first = np.floor(places - radius) + 1
    cells = first[:, None] + np.arange(np.ceil(2 * radius))
    distance = np.abs(cells - places[:, None]) / stretch
    if cubic:
        weights = _weigh_cubic(distance, attributes["cubic_coeff_a"])
    else:
        weights = np.maximum(1 - distance, 0)
    if widens:
        weights = _normalize(weights)
    if attributes["exclude_outside"]:
        weights = _normalize(np.where((cells < 0) | (cells >= axis.length), 0, weights))
    return _keep_inside(np.clip(cells, 0, axis.length - 1).astype(np.int64), weights, axis.length)


def _keep_inside(cells: Cells, weights: Floats, length: int) -> Weighted:
    taps = min(cells.shape[1], length)
    first = np.minimum(cells[:, 0], length - taps)
    inside = np.zeros((len(cells), taps))
    np.add.at(inside, (np.arange(len(cells))[:, None], cells - first[:, None]), weights)
    return Weighted(first, inside)


def _weigh_cubic(distance: Floats, a: float) -> Floats:
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    outer = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))


def _normalize(weights: Floats) -> Floats:
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


LONGEST_PERIOD = 8
SHORTEST_RUN = 4
"""Outputs, on the average; with less, one gather for all of them is faster."""


class SumRun(NamedTuple):
    """Outputs at equal distances, the first cell that each reads, and weights: (outputs, taps).

    The cells are at equal distances too, or any cells, to be gathered.
    """

    outputs: slice
    cells: slice | Cells
    weights: Floats


def split_into_runs(places: Floats, weighted: Weighted) -> list[SumRun]:
    first, weights = weighted
    count = len(places)
    if not count:
        return []
    # For a ratio of small numbers, the distances to cells repeat after as many outputs as its
    # denominator.
    pace = Fraction((places[-1] - places[0]) / max(count - 1, 1)).limit_denominator(LONGEST_PERIOD)
    period, step = pace.denominator, max(pace.numerator, 1)
    runs: list[SumRun] = []
    for phase in range(min(period, count)):
        alike = np.arange(phase, count, period)
        # At borders, and where places were rounded, the pattern breaks.
        for run in np.split(alike, np.flatnonzero(np.diff(first[alike]) != step) + 1):
            outputs = slice(int(run[0]), int(run[-1]) + 1, period)
            cells = slice(int(first[run[0]]), int(first[run[-1]]) + 1, step)
            runs.append(SumRun(outputs, cells, weights[run]))
    if len(runs) * SHORTEST_RUN <= count or count == 1:
        return runs
    return [SumRun(slice(0, count), first, weights)]


def measure_longest_run(runs: Sequence[SumRun]) -> int:
    return max((len(run.weights) for run in runs), default=0)


def add_weighted(
    xp: ArrayModule,
    source: Array,
    run: SumRun,
    axis: int,
    target: Array,
    total: Array,
    product: Array,
) -> list[Step]:
    """Return the steps in `xp` that write weighted sums of `source` along `axis` to `target`.

    They are the outputs of `run`. Equal weights are applied to the sum, once. `total` and `product`
    are flat buffers, long enough for the outputs of the longest run.
    """
    outputs = target[index_at(axis, run.outputs)]
    taps = [int(tap) for tap in np.flatnonzero(run.weights.any(axis=0))]
    if not taps:
        return [partial(outputs.fill, 0)]
    total, product = (flat[: outputs.size].reshape(outputs.shape) for flat in (total, product))
    factors = [_to_factor(xp, run.weights[:, tap], outputs, axis) for tap in taps]
    # With equal weights the sum is scaled once, at its end.
    same = len(taps) == 1 or all(isinstance(f, float) and f == factors[0] for f in factors)
    steps: list[Step] = []
    sums: Array = None
    for tap, factor in zip(taps, factors, strict=True):
        buffer = total if sums is None else product
        cells = _read(xp, source, run, axis, tap, buffer, steps)
        if not same:
            steps.append(partial(xp.multiply, cells, factor, out=buffer))
            cells = buffer
            # Cells of no weight are not read: zero times infinity would be NaN.
            unread = np.flatnonzero(run.weights[:, tap] == 0)
            if len(unread):
                places = index_at(axis, xp.asarray(unread))
                steps.append(partial(buffer.__setitem__, places, 0))
        if sums is not None:
            ends = tap == taps[-1] and not same
            steps.append(partial(xp.add, sums, cells, out=outputs if ends else total))
        sums = cells if sums is None else total
    return [*steps, partial(xp.multiply, sums, factors[0], out=outputs)] if same else steps


def _to_factor(xp: ArrayModule, weights: Floats, outputs: Array, axis: int) -> Any:
    narrow = weights.astype(outputs.dtype)
    if (narrow == narrow[0]).all():
        return float(narrow[0])
    return xp.asarray(narrow).reshape(-1, *(1 for _ in outputs.shape[axis + 1 :]))


def _read(
    xp: ArrayModule,
    source: Array,
    run: SumRun,
    axis: int,
    tap: int,
    buffer: Array,
    steps: list[Step],
) -> Array:
    """Return cells of `source` along `axis` for `tap` of `run`: a view, or else `buffer`.

    A step in `xp` that fills the buffer is then appended to `steps`.
    """
    if isinstance(run.cells, slice):
        shifted = slice(run.cells.start + tap, run.cells.stop + tap, run.cells.step)
        return source[index_at(axis, shifted)]
    steps.append(gather(xp, source, xp.asarray(run.cells + tap), axis, buffer))
    return buffer


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, y = call.spec(0), outputs[0]
    axes = _list_axes(x.static_shape, call.attributes, call.values)
    changed = _order_changed(axes)
    between = _list_shapes(x.static_shape, axes, changed)[:-1]
    if call.attributes["mode"] == "nearest":
        cells = _find_cells(axes, call.attributes)
        return () if all(map(find_repeat, cells)) else [TensorSpec(x.dtype, s) for s in between]
    if not changed:
        return ()
    wide = np.result_type(x.dtype, np.float32)
    sizes = [
        measure_longest_run(_find_runs(axes[axis], call.attributes))
        * math.prod(shape)
        // axes[axis].resized
        for axis, shape in zip(changed, _list_shapes(x.static_shape, axes, changed), strict=True)
        if axes[axis].resized
    ]
    sums = TensorSpec(wide, (max(sizes, default=0),))
    copies = [x.static_shape, y.static_shape] if x.dtype != wide else []
    return [sums, sums, *(TensorSpec(wide, shape) for shape in (*between, *copies))]


@kernel("Resize", scratch=_declare_scratch, binds=True)
def resize(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = inputs[0], outputs[0]
    axes = _list_axes(x.shape, attributes, inputs)
    if attributes["mode"] == "nearest":
        steps = _copy(xp, x, y, axes, attributes, scratch)
    else:
        steps = _interpolate(xp, x, y, axes, attributes, scratch)
    if attributes["coordinate_transformation_mode"] == CROP:
        steps += _extrapolate(y, axes, attributes)
    return run_in_order(steps)


def _list_axes(
    shape: tuple[int, ...], attributes: Attributes, values: Sequence[Array | None]
) -> tuple[Resampling, ...]:
    return resample_axes(shape, attributes, read_target(values, attributes))


def _order_changed(axes: Sequence[Resampling]) -> list[int]:
    """Return the numbers of `axes` that are not shown as they are, those that shrink most first.

    Among equals the last comes first: passes along it cost most, and the tensor still grows.
    """
    found = [
        axis
        for axis, how in enumerate(axes)
        if not (how.length == how.resized == how.width and (how.start, how.end) == (0, 1))
    ]
    # Shrinking first leaves less work along the other axes.
    return sorted(found, key=lambda axis: (axes[axis].resized / max(axes[axis].length, 1), -axis))


def _list_shapes(
    shape: tuple[int, ...], axes: Sequence[Resampling], order: Sequence[int]
) -> list[tuple[int, ...]]:
    lengths, shapes = list(shape), []
    for axis in order:
        lengths[axis] = axes[axis].resized
        shapes.append(tuple(lengths))
    return shapes


def _find_places(how: Resampling, attributes: Attributes) -> Floats:
    return compute_places(how, attributes["coordinate_transformation_mode"])


def _find_runs(how: Resampling, attributes: Attributes) -> list[SumRun]:
    places = _find_places(how, attributes)
    return split_into_runs(places, weigh(places, how, attributes))


def _find_cells(axes: Sequence[Resampling], attributes: Attributes) -> list[Cells]:
    mode = attributes["nearest_mode"]
    return [round_to_cells(_find_places(how, attributes), how.length, mode) for how in axes]


def _copy(
    xp: ArrayModule,
    x: Array,
    y: Array,
    axes: Sequence[Resampling],
    attributes: Attributes,
    scratch: Arrays,
) -> list[Step]:
    cells = _find_cells(axes, attributes)
    repeats = [pattern for pattern in map(find_repeat, cells) if pattern is not None]
    if len(repeats) == len(axes):
        return repeat(xp, x, y, repeats)
    steps, source = [], x
    for axis, target in zip(_order_changed(axes), (*scratch, y), strict=True):
        steps.append(gather(xp, source, xp.asarray(cells[axis]), axis, target))
        source = target
    return steps


def _interpolate(
    xp: ArrayModule,
    x: Array,
    y: Array,
    axes: Sequence[Resampling],
    attributes: Attributes,
    scratch: Arrays,
) -> list[Step]:
    """Return the steps in `xp` that write weighted cells of `x` to `y`, along one axis at a time.

    `axes` and `attributes` say how; `scratch` has buffers for sums, products and passes.
    """
    changed = _order_changed(axes)
    if not changed:
        return [partial(xp.copyto, y, x)]
    steps: list[Step] = []
    total, product, *buffers = scratch
    source, result = x, y
    if x.dtype != total.dtype:
        *buffers, source, result = buffers
        steps.append(partial(xp.copyto, source, x))
    for axis, target in zip(changed, (*buffers, result), strict=True):
        for run in _find_runs(axes[axis], attributes):
            steps += add_weighted(xp, source, run, axis, target, total, product)
        source = target
    return steps if result is y else [*steps, *_narrow(xp, result, y)]


def _narrow(xp: ArrayModule, result: Array, y: Array) -> list[Step]:
    if kind_of(y.dtype) == "f":
        return [partial(xp.copyto, y, result)]
    lowest, highest = find_limits(y.dtype)
    # The largest integers of 64 bits are not floats: clip to one below.
    high = result.dtype.type(highest)
    high = np.nextafter(high, result.dtype.type(0)) if int(high) > highest else high
    return [
        partial(xp.rint, result, out=result),
        partial(xp.clip, result, lowest, high, out=result),
        partial(xp.copyto, y, result, casting="unsafe"),
    ]


def _extrapolate(y: Array, axes: Sequence[Resampling], attributes: Attributes) -> list[Step]:
    steps: list[Step] = []
    for axis, how in enumerate(axes):
        places = _find_places(how, attributes)
        inside = np.flatnonzero((places >= 0) & (places <= how.length - 1))
        first, last = (inside[0], inside[-1]) if len(inside) else (how.resized, how.resized)
        for margin in (slice(0, first), slice(last + 1, how.resized)):
            target = y[index_at(axis, margin)]
            if target.size:
                steps.append(partial(target.fill, attributes["extrapolation_value"]))
    return steps


class Repeat(NamedTuple):
    """Cells at equal distances, each shown a number of times in a row."""

    cells: slice
    times: int


def find_repeat(cells: Cells) -> Repeat | None:
    """Return the pattern of an axis's `cells`, or None if they have none."""
    if not len(cells):
        return Repeat(slice(0, 0), 1)
    changes = np.flatnonzero(np.diff(cells))
    times = int(changes[0]) + 1 if len(changes) else len(cells)
    if len(cells) % times:
        return None
    shown = cells[::times]
    step = int(shown[1] - shown[0]) if len(shown) > 1 else 1
    start = int(shown[0])
    if step < 1 or not np.array_equal(
        np.repeat(start + step * np.arange(len(shown)), times), cells
    ):
        return None
    return Repeat(slice(start, int(shown[-1]) + 1, step), times)


def repeat(xp: ArrayModule, x: Array, y: Array, repeats: Sequence[Repeat]) -> list[Step]:
    source = x[tuple(axis.cells for axis in repeats)]
    times = [axis.times for axis in repeats]
    spread = source[(..., *(slice(None), None) * source.ndim)]
    target = y.reshape(
        [number for pair in zip(source.shape, times, strict=True) for number in pair]
    )
    if xp is not np or not times or times[-1] == 1:
        return [partial(xp.copyto, target, spread)]
    # numpy's loop over a last axis of length 2 costs ten times a copy.
    if times[-1] == 2 and y.itemsize < 8:
        return _repeat_as_pairs(spread, target)
    return _repeat_last_first(spread, target)


def _repeat_as_pairs(spread: Array, target: Array) -> list[Step]:
    """Return the steps that repeat `spread` twice along the last axis of `target`.

    The same bits twice side by side are one product of an integer twice as wide.
    """
    bits = 8 * target.itemsize
    pairs = target.view(f"u{target.itemsize * 2}")
    factor = pairs.dtype.type(1 + (1 << bits))
    return [
        partial(np.copyto, pairs, spread.view(f"u{target.itemsize}")),
        partial(np.multiply, pairs, factor, out=pairs),
    ]


def _repeat_last_first(spread: Array, target: Array) -> list[Step]:
    firsts: list[slice] = [slice(0, 1) if size == 1 else slice(None) for size in spread.shape[:-1]]
    steps: list[Step] = [
        partial(np.copyto, target[(*firsts, index)], spread[..., 0])
        for index in range(target.shape[-1])
    ]
    for axis in reversed(range(1, target.ndim - 1, 2)):
        if target.shape[axis] > 1:
            made = target[tuple(firsts)]
            firsts[axis] = slice(1, None)
            steps.append(partial(np.copyto, target[tuple(firsts)], made))
            firsts[axis] = slice(None)
    return steps


def gather(xp: ArrayModule, source: Array, cells: Array, axis: int, target: Array) -> Step:
    if xp is np:  # the default mode would write to a buffer first; the cells are in range
        return partial(np.take, source, cells, axis, target, "clip")
    return partial(xp.take, source, cells, axis, target)
