"""Pooling, and its inverses: ``kernel(xp, inputs, outputs, attributes[, scratch])``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.pooling import find_pooling_window, infer_unpooled_shape
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .axes import to_lines
from .bounds import find_limits
from .maxima import find_places, place_scratch
from .normalization import raise_to, take_root
from .precision import compute_dtype, declare_wide_work, declare_work
from .registry import ArrayModule, Arrays, kernel
from .sliding import AxisWindow, list_axis_windows, slide
from .steps import Step, run_in_order
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
