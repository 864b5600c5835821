"""The kernel of Resize: axis by axis, by copies or by weighted sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.attribute import Attributes
from ...graph.dtypes import kind_of
from ...graph.operator import Call, Specs
from ...graph.resampling import CROP, Resampling, read_target, resample_axes
from ...graph.tensor import Array, TensorSpec
from .axes import at
from .bounds import limits
from .interpolation import Cells, Floats, coordinates, nearest_cells, weigh
from .nearest import as_repeat, gather, repeat
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order
from .weighted_sums import SumRun, add_weighted, longest_run, split_into_runs


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, y = call.spec(0), outputs[0]
    axes = _axes(x.static_shape, call.attributes, call.values)
    changed = _changed(axes)
    between = _shapes(x.static_shape, axes, changed)[:-1]
    if call.attributes["mode"] == "nearest":
        cells = _all_cells(axes, call.attributes)
        return () if all(map(as_repeat, cells)) else [TensorSpec(x.dtype, s) for s in between]
    if not changed:
        return ()
    wide = np.result_type(x.dtype, np.float32)
    sizes = [
        longest_run(_runs(axes[axis], call.attributes)) * math.prod(shape) // axes[axis].resized
        for axis, shape in zip(changed, _shapes(x.static_shape, axes, changed), strict=True)
        if axes[axis].resized
    ]
    sums = TensorSpec(wide, (max(sizes, default=0),))
    copies = [x.static_shape, y.static_shape] if x.dtype != wide else []
    return [sums, sums, *(TensorSpec(wide, shape) for shape in (*between, *copies))]


@kernel("Resize", scratch=_scratch, binds=True)
def resize(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x at other places: the nearest cell, or a weighted sum of cells around.

    Source: ONNX Resize.
    """
    x, y = inputs[0], outputs[0]
    axes = _axes(x.shape, attributes, inputs)
    if attributes["mode"] == "nearest":
        steps = _copy(xp, x, y, axes, attributes, scratch)
    else:
        steps = _interpolate(xp, x, y, axes, attributes, scratch)
    if attributes["coordinate_transformation_mode"] == CROP:
        steps += _extrapolate(y, axes, attributes)
    return in_order(steps)


def _axes(
    shape: tuple[int, ...], attributes: Attributes, values: Sequence[Array | None]
) -> tuple[Resampling, ...]:
    return resample_axes(shape, attributes, read_target(values, attributes))


def _changed(axes: Sequence[Resampling]) -> list[int]:
    """Return the axes that are not shown as they are, those that shrink most first.

    Among equals the last comes first: passes along it cost most, and the tensor still grows.
    """
    found = [
        axis
        for axis, how in enumerate(axes)
        if not (how.length == how.resized == how.width and (how.start, how.end) == (0, 1))
    ]
    return sorted(found, key=lambda axis: (axes[axis].resized / max(axes[axis].length, 1), -axis))


def _shapes(
    shape: tuple[int, ...], axes: Sequence[Resampling], order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the tensor's shape after each pass."""
    lengths, shapes = list(shape), []
    for axis in order:
        lengths[axis] = axes[axis].resized
        shapes.append(tuple(lengths))
    return shapes


def _places(how: Resampling, attributes: Attributes) -> Floats:
    return coordinates(how, attributes["coordinate_transformation_mode"])


def _runs(how: Resampling, attributes: Attributes) -> list[SumRun]:
    places = _places(how, attributes)
    return split_into_runs(places, weigh(places, how, attributes))


def _all_cells(axes: Sequence[Resampling], attributes: Attributes) -> list[Cells]:
    """Return the cells that are nearest to each axis's outputs."""
    mode = attributes["nearest_mode"]
    return [nearest_cells(_places(how, attributes), how.length, mode) for how in axes]


def _copy(
    xp: ArrayModule,
    x: Array,
    y: Array,
    axes: Sequence[Resampling],
    attributes: Attributes,
    scratch: Arrays,
) -> list[Step]:
    """Return the steps that copy the nearest cells."""
    cells = _all_cells(axes, attributes)
    repeats = [pattern for pattern in map(as_repeat, cells) if pattern is not None]
    if len(repeats) == len(axes):
        return repeat(xp, x, y, repeats)
    steps, source = [], x
    for axis, target in zip(_changed(axes), (*scratch, y), strict=True):
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
    """Return the steps that add up weighted cells, along one axis after the other."""
    changed = _changed(axes)
    if not changed:
        return [partial(xp.copyto, y, x)]
    steps: list[Step] = []
    total, product, *buffers = scratch
    source, result = x, y
    if x.dtype != total.dtype:
        *buffers, source, result = buffers
        steps.append(partial(xp.copyto, source, x))
    for axis, target in zip(changed, (*buffers, result), strict=True):
        for run in _runs(axes[axis], attributes):
            steps += add_weighted(xp, source, run, axis, target, total, product)
        source = target
    return steps if result is y else [*steps, *_narrow(xp, result, y)]


def _narrow(xp: ArrayModule, result: Array, y: Array) -> list[Step]:
    """Return the steps y = result, rounded and clipped where y is of an integer dtype."""
    if kind_of(y.dtype) == "f":
        return [partial(xp.copyto, y, result)]
    lowest, highest = limits(y.dtype)
    # The largest integers of 64 bits are no floats: clip to one that is below.
    high = result.dtype.type(highest)
    high = np.nextafter(high, result.dtype.type(0)) if int(high) > highest else high
    return [
        partial(xp.rint, result, out=result),
        partial(xp.clip, result, lowest, high, out=result),
        partial(xp.copyto, y, result, casting="unsafe"),
    ]


def _extrapolate(y: Array, axes: Sequence[Resampling], attributes: Attributes) -> list[Step]:
    """Return the steps that fill what lies outside the input, at either end of each axis."""
    steps: list[Step] = []
    for axis, how in enumerate(axes):
        places = _places(how, attributes)
        inside = np.flatnonzero((places >= 0) & (places <= how.length - 1))
        first, last = (inside[0], inside[-1]) if len(inside) else (how.resized, how.resized)
        for margin in (slice(0, first), slice(last + 1, how.resized)):
            target = y[at(axis, margin)]
            if target.size:
                steps.append(partial(target.fill, attributes["extrapolation_value"]))
    return steps
