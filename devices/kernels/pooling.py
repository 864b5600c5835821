"""Pooling kernels: windows over one spatial axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.operators.pooling import pooling_window
from ...graph.tensor import Array, TensorSpec
from .arguments import optional
from .bounds import limits
from .maxima import find_places, place_scratch
from .norms import raise_to, root_of
from .precision import compute_dtype, work_scratch
from .registry import ArrayModule, Arrays, kernel
from .sliding import AxisWindow, axis_windows, slide
from .steps import Step, in_order


def _windows(x_shape: tuple[int, ...], attributes: Attributes) -> list[AxisWindow]:
    """Return the window along each spatial axis."""
    window, outputs = pooling_window(x_shape, attributes)
    assert window is not None
    return axis_windows(window, x_shape[2:], outputs)


def _between(
    x: TensorSpec, windows: Sequence[AxisWindow], dtype: np.dtype[Any]
) -> list[TensorSpec]:
    """Scratch: what lies between the passes along two axes that have windows."""
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
    """Return the steps that combine over all windows; the last buffer holds the result."""
    passes = [(axis, window) for axis, window in enumerate(windows, 2) if not window.is_identity]
    if not passes:
        return [partial(xp.copyto, buffers[-1], source)]
    steps: list[Step] = []
    for (axis, window), target in zip(passes, buffers, strict=True):
        steps += slide(xp, combine, source, target, axis, window, neutral)
        source = target
    return steps


def _max_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    windows = _windows(x.static_shape, call.attributes)
    between = _between(x, windows, x.dtype)
    planes = math.prod(x.static_shape[:2])
    return (*between, *(place_scratch(planes, windows) if call.n_outputs > 1 else ()))


@kernel("MaxPool", scratch=_max_scratch, binds=True)
def max_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the maximum over each window; a window of padding alone yields the least value.

    Source: ONNX MaxPool.
    """
    x, y = inputs[0], outputs[0]
    windows = _windows(x.shape, attributes)
    between = scratch[: len(scratch) - 2 * (len(outputs) > 1)]
    steps = _slide_all(xp, xp.maximum, x, (*between, y), windows, limits(x.dtype)[0])
    indices = optional(outputs, 1)
    if indices is not None:
        by_columns = bool(attributes["storage_order"])
        steps += find_places(xp, x, y, indices, windows, scratch[-2:], by_columns=by_columns)
    return in_order(steps)


def _sum_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    windows = _windows(x.static_shape, call.attributes)
    return (*_between(x, windows, compute_dtype(x.dtype)), *work_scratch(x, outputs[0]))


@kernel("AveragePool", scratch=_sum_scratch, binds=True)
def average_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the sum over each window, divided by the number of its cells.

    Padding counts where `count_include_pad` says so; what `ceil_mode` adds behind it never does.
    Source: ONNX AveragePool.
    """
    x, y = inputs[0], outputs[0]
    windows = _windows(x.shape, attributes)
    buffers = _ending(scratch, y)
    padding = attributes["count_include_pad"]
    counts = math.prod(np.ix_(*(window.counts(padding=padding) for window in windows)))
    sizes = xp.asarray(np.maximum(counts, 1), buffers[-1].dtype)
    return in_order(
        (
            *_slide_all(xp, xp.add, x, buffers, windows, 0),
            partial(xp.divide, buffers[-1], sizes, out=y),
        )
    )


def _power_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (TensorSpec(compute_dtype(x.dtype), x.shape), *_sum_scratch(call, outputs))


@kernel("LpPool", scratch=_power_scratch, binds=True)
def lp_pool(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (Σ |x|ᵖ)^(1/p) over each window.  Source: ONNX LpPool."""
    x, y, p = inputs[0], outputs[0], attributes["p"]
    powers, *rest = scratch
    buffers = _ending(rest, y)
    return in_order(
        (
            *raise_to(xp, x, powers, p),
            *_slide_all(xp, xp.add, powers, buffers, _windows(x.shape, attributes), 0),
            root_of(xp, buffers[-1], y, p),
        )
    )


def _ending(scratch: Arrays, y: Array) -> Arrays:
    """Return buffers for the passes: scratch, then y where that is precise enough."""
    return scratch if y.dtype != compute_dtype(y.dtype) else (*scratch, y)
