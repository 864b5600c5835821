"""Pooling, and its inverses: ``kernel(xp, inputs, outputs, attributes[, scratch])``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.pooling import find_pooling_window, infer_unpooled_shape
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional, to_lines
from .blocks import BLOCK, count_in_block, iterate_blocks
from .normalization import raise_to, take_root
from .precision import compute_dtype, declare_wide_work, declare_work, find_limits
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .sliding import AxisWindow, list_axis_windows, slide
from .sums import reduce_extremum, sum_over


def _list_windows(x_shape: tuple[int, ...], attributes: Attributes) -> list[AxisWindow]:
    window, outputs = find_pooling_window(x_shape, attributes)
    assert window is not None
    return list_axis_windows(window, x_shape[2:], outputs)


def _declare_between(
    x: TensorSpec, windows: Sequence[AxisWindow], dtype: np.dtype[Any]
) -> list[TensorSpec]:
    shape, shapes = list(x.static_shape), []
    for axis, window in enumerate(windows, 2):
        if not window.is_identity:
            shape[axis] = window.outputs
            shapes.append(tuple(shape))
    return [TensorSpec(dtype, kept) for kept in shapes[:-1]]


def _slide_all(
    xp: ArrayModule,
    combine: Callable[..., object],
    source: Array,
    buffers: Sequence[Array],
    windows: Sequence[AxisWindow],
    neutral: float,
) -> list[Step]:
    """Return the steps in `xp` that `combine` cells of `source` in `windows`, pass after pass.

    The last of `buffers` gets the result, the others hold it between passes. `neutral` is the
    result of a window without cells.
    """
    passes = [(axis, window) for axis, window in enumerate(windows, 2) if not window.is_identity]
    if not passes:
        return [partial(xp.copyto, buffers[-1], source)]
    steps: list[Step] = []
    for (axis, window), target in zip(passes, buffers, strict=True):
        steps += slide(xp, combine, source, target, axis, window, neutral)
        source = target
    return steps


def _declare_max_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    windows = _list_windows(x.static_shape, call.attributes)
    between = _declare_between(x, windows, x.dtype)
    planes = math.prod(x.static_shape[:2])
    return (*between, *(place_scratch(planes, windows) if call.n_outputs > 1 else ()))


@kernel("MaxPool", scratch=_declare_max_scratch, binds=True)
def max_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = inputs[0], outputs[0]
    windows = _list_windows(x.shape, attributes)
    between = scratch[: len(scratch) - 2 * (len(outputs) > 1)]
    # The least value as padding is below all that is there; places need two buffers more, at the
    # end.
    steps = _slide_all(xp, xp.maximum, x, (*between, y), windows, find_limits(x.dtype)[0])
    indices = get_optional(outputs, 1)
    if indices is not None:
        by_columns = bool(attributes["storage_order"])
        steps += find_places(xp, x, y, indices, windows, scratch[-2:], by_columns=by_columns)
    return run_in_order(steps)


def _sum_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    windows = _list_windows(x.static_shape, call.attributes)
    return (*_declare_between(x, windows, compute_dtype(x.dtype)), *declare_work(x, outputs[0]))


@kernel("AveragePool", scratch=_sum_scratch, binds=True)
def average_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = the sum over each window, divided by the number of its cells. Padding counts with
    # `count_include_pad`; cells that `ceil_mode` adds after it never count.
    x, y = inputs[0], outputs[0]
    windows = _list_windows(x.shape, attributes)
    buffers = _end_with(scratch, y)
    padding = attributes["count_include_pad"]
    counts = math.prod(np.ix_(*(window.counts(padding=padding) for window in windows)))
    # At least 1: the empty sum is 0 anyway.
    sizes = xp.asarray(np.maximum(counts, 1), buffers[-1].dtype)
    return run_in_order(
        (
            *_slide_all(xp, xp.add, x, buffers, windows, 0),
            partial(xp.divide, buffers[-1], sizes, out=y),
        )
    )


def _declare_power_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (TensorSpec(compute_dtype(x.dtype), x.shape), *_sum_scratch(call, outputs))


@kernel("LpPool", scratch=_declare_power_scratch, binds=True)
def lp_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y, p = inputs[0], outputs[0], attributes["p"]
    powers, *rest = scratch
    buffers = _end_with(rest, y)
    return run_in_order(
        (
            *raise_to(xp, x, powers, p),
            *_slide_all(xp, xp.add, powers, buffers, _list_windows(x.shape, attributes), 0),
            take_root(xp, buffers[-1], y, p),
        )
    )


def _end_with(scratch: Arrays, y: Array) -> Arrays:
    """Return `scratch` as buffers for the passes, followed by `y` if it is precise enough."""
    return scratch if y.dtype != compute_dtype(y.dtype) else (*scratch, y)


def _declare_total_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return declare_work(call.spec(0), outputs[0])


@kernel("MaxPoolGradient", scratch=_declare_total_scratch, binds=True)
def max_pool_gradient(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    dy, indices, dx = inputs[0].reshape(-1), inputs[1].reshape(-1), outputs[0]
    total = scratch[0] if scratch else dx
    # Windows may overlap: an index that is there twice gets both.
    steps = [partial(total.fill, 0), partial(xp.add.at, total.reshape(-1), indices, dy)]
    if scratch:
        steps.append(partial(xp.copyto, dx, total, casting="same_kind"))
    return run_in_order(steps)


def _to_planes(array: Array) -> Array:
    return to_lines(array, 2, array.ndim)


@kernel("GlobalAveragePool", scratch=_declare_total_scratch, binds=True)
def global_average_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = _to_planes(inputs[0]), _to_planes(outputs[0])
    total = _to_planes(scratch[0]) if scratch else y
    add_up = sum_over(xp, x, (1,), total)
    return run_in_order((add_up, partial(xp.divide, total, x.shape[1], out=y)))


@kernel("GlobalMaxPool", binds=True)
def global_max_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    x, y = _to_planes(inputs[0]), _to_planes(outputs[0])
    return reduce_extremum(xp, "max", x, (1,), y) if x.size else run_in_order(())


@kernel("GlobalLpPool", scratch=declare_wide_work, binds=True)
def global_lp_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y, p = _to_planes(inputs[0]), _to_planes(outputs[0]), attributes["p"]
    powers = _to_planes(scratch[0])
    total = _to_planes(scratch[1]) if scratch[1:] else y
    return run_in_order(
        (*raise_to(xp, x, powers, p), sum_over(xp, powers, (1,), total), take_root(xp, total, y, p))
    )


@kernel("MaxUnpool")
def max_unpool(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # y = x at the places that the indices name, 0 elsewhere. The indices count in the shape that
    # would be inferred; an `output_shape` that differs from it only adds or cuts off margins.
    (x, indices), (y,) = inputs[:2], outputs
    y.fill(0)
    y[xp.unravel_index(indices, infer_unpooled_shape(x.shape, attributes))] = x


def place_scratch(planes: int, windows: Sequence[AxisWindow]) -> list[TensorSpec]:
    cells = _count_planes(planes, windows) * _count_outputs(windows)
    number = "uint8" if _count_taps(windows) < 255 else "uint32"
    return [TensorSpec("bool", (cells,)), TensorSpec(number, (cells,))]


def find_places(
    xp: ArrayModule,
    x: Array,
    y: Array,
    indices: Array,
    windows: Sequence[AxisWindow],
    scratch: Arrays,
    *,
    by_columns: bool = False,
) -> list[Step]:
    """Return the steps in `xp` that write places of maxima of `windows` over `x` to `indices`.

    Tap by tap, windows with their maximum at the tap note its number, in a byte; only at the end
    numbers become indices, which are eight times as wide. Measured on 8·64 planes of 112², windows
    of 3² two apart, with the maxima themselves: 31 ms, 212 ms with indices written tap by tap; 7 ms
    of that are the maxima.

    `y` has the maxima, `scratch` the buffers of `place_scratch`. Places are counted row by row or,
    in each plane, `by_columns`; of equal maxima the first counts. A window without any cell, or
    with a NaN, has the first place of its plane.
    """
    spatial, outputs = x.shape[2:], y.shape[2:]
    planes = math.prod(x.shape[:2])
    apart = _find_steps(spatial, by_columns)
    origins, offsets = _find_origins(xp, windows, apart), _find_offsets(xp, windows, apart)
    firsts = xp.arange(planes).reshape(-1, *[1] * len(spatial)) * math.prod(spatial)
    sources, maxima, results = (
        array.reshape(planes, *shape)
        for array, shape in ((x, spatial), (y, outputs), (indices, outputs))
    )
    steps: list[Step] = []
    for part in iterate_blocks(planes, _count_planes(planes, windows)):
        shape = (part.stop - part.start, *outputs)
        hits, numbers = (buffer[: math.prod(shape)].reshape(shape) for buffer in scratch)
        steps += _find_taps(xp, sources[part], maxima[part], windows, hits, numbers)
        steps += [
            _look_up(xp, offsets, numbers, results[part]),
            partial(xp.add, results[part], origins, out=results[part]),
            partial(xp.copyto, results[part], 0, where=hits),
            partial(xp.add, results[part], firsts[part], out=results[part]),
        ]
    return steps


def _find_taps(
    xp: ArrayModule, x: Array, y: Array, windows: Sequence[AxisWindow], hits: Array, numbers: Array
) -> list[Step]:
    """Return the steps in `xp` that find the first tap with the maximum `y` of `windows` over `x`.

    They write its number to `numbers`, and to `hits` whether it is missing.
    """
    taps = itertools.product(*(range(window.kernel) for window in windows))
    none = _count_taps(windows)
    steps: list[Step] = [partial(numbers.fill, none)]
    for number, tap in enumerate(taps):
        reached, read = zip(*map(AxisWindow.slices, windows, tap), strict=True)
        places, cells = (slice(None), *reached), (slice(None), *read)
        steps.append(partial(xp.equal, x[cells], y[places], out=hits[places]))
        steps += _note(xp, number, none, hits[places], numbers[places])
    return [*steps, partial(xp.equal, numbers, none, out=hits)]


def _note(xp: ArrayModule, number: int, none: int, hits: Array, numbers: Array) -> list[Step]:
    """Return the steps in `xp` that lower `numbers` to `number` where there are `hits`.

    `none` is the value for no tap. Bytes are compared without a branch: a hit minus 1 is 0, none
    minus 1 has all bits set.
    """
    if numbers.itemsize > 1:
        first = partial(xp.equal, numbers, none, out=hits, where=hits)
        return [first, partial(xp.copyto, numbers, number, where=hits)]
    codes = hits.view("uint8")
    return [
        partial(xp.subtract, codes, 1, out=codes),
        partial(xp.bitwise_or, codes, number, out=codes),
        partial(xp.minimum, numbers, codes, out=numbers),
    ]


def _look_up(xp: ArrayModule, offsets: Array, numbers: Array, out: Array) -> Step:
    if isinstance(offsets, np.ndarray):
        return partial(offsets.take, numbers, 0, out, "clip")
    return partial(xp.take, offsets, numbers, 0, out)


def _find_steps(spatial: Sequence[int], by_columns: bool) -> list[int]:
    """Return how far neighbours on each axis of `spatial` are apart in number.

    Places are counted row by row, or `by_columns`.
    """
    if by_columns:
        return [math.prod(spatial[:axis]) for axis in range(len(spatial))]
    return [math.prod(spatial[axis + 1 :]) for axis in range(len(spatial))]


def _find_origins(xp: ArrayModule, windows: Sequence[AxisWindow], apart: Sequence[int]) -> Array:
    """Return the place of the first tap of each window, as an array of `xp`.

    `windows` has an entry for each axis, and `apart` the distance of neighbours along it.
    """
    along = (
        (np.arange(window.outputs) * window.stride - window.begin) * step
        for window, step in zip(windows, apart, strict=True)
    )
    return xp.asarray(sum(np.ix_(*along)))


def _find_offsets(xp: ArrayModule, windows: Sequence[AxisWindow], apart: Sequence[int]) -> Array:
    """Return the offset of each tap from the first one, then 0 for none, as an array of `xp`.

    `windows`, and the distances in number at which neighbours are `apart`, are given by axis.
    """
    moves = [window.dilation * step for window, step in zip(windows, apart, strict=True)]
    taps = itertools.product(*(range(window.kernel) for window in windows))
    found = [sum(t * move for t, move in zip(tap, moves, strict=True)) for tap in taps]
    return xp.asarray([*found, 0], dtype="int64")


def _count_taps(windows: Sequence[AxisWindow]) -> int:
    return math.prod(window.kernel for window in windows)


def _count_outputs(windows: Sequence[AxisWindow]) -> int:
    return math.prod(window.outputs for window in windows)


def _count_planes(planes: int, windows: Sequence[AxisWindow]) -> int:
    return count_in_block(BLOCK, _count_outputs(windows), planes)
