"""Reductions over axes, and scans along one, which combine each element with all before it.

Empty axes give ONNX's values: 0, 1, the lowest or highest value, NaN for a mean. float16 is
accumulated in float32, integers in their own width, but for means in 64 bits. Kernels take
``(xp, inputs, outputs, attributes) -> Step``, and `scratch` if they declare it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.reduction import count_reduced, list_reduced_axes
from ...graph.values.dims import normalize_axis
from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_integers, index_at
from .elementwise import divide_truncating
from .precision import compute_dtype, declare_work, find_limits
from .registry import ArrayModule, Arrays, ScratchRule, Step, kernel, run_in_order
from .sums import reduce_extremum, sum_over


def _get_operands(
    inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> tuple[Array, Array, tuple[int, ...]]:
    x, y = inputs[0], outputs[0]
    axes = list_reduced_axes(x.ndim, get_integers(inputs, 1), attributes["noop_with_empty_axes"])
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    return x, y.reshape(kept), axes


def _declare_total(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return declare_work(outputs[0], outputs[0])


def _reduce_extremum(
    name: str, xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    x, y, axes = _get_operands(inputs, outputs, attributes)
    if count_reduced(x.shape, axes) == 0:
        # numpy raises for the extremum of nothing.
        lowest, highest = find_limits(x.dtype)
        return partial(y.fill, lowest if name == "max" else highest)
    return reduce_extremum(xp, name, x, axes, y)


kernel("ReduceMax", binds=True)(partial(_reduce_extremum, "max"))
kernel("ReduceMin", binds=True)(partial(_reduce_extremum, "min"))


def _accumulate(
    name: str,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
    scratch: Arrays,
) -> Step:
    x, y, axes = _get_operands(inputs, outputs, attributes)
    total = scratch[0].reshape(y.shape) if scratch else y
    if name == "sum":
        reduce = sum_over(xp, x, axes, total)
    else:
        reduce = partial(x.prod, axes, total.dtype, total, True)
    return run_in_order((reduce, partial(xp.copyto, y, total))) if scratch else reduce


kernel("ReduceSum", scratch=_declare_total, binds=True)(partial(_accumulate, "sum"))
kernel("ReduceProd", scratch=_declare_total, binds=True)(partial(_accumulate, "prod"))


def _declare_mean(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the scratch for `call` and `outputs`: sums (64 bits for integers) and remainders."""
    (y,) = outputs
    if y.dtype.kind not in "iu":
        return _declare_total(call, outputs)
    if y.dtype.kind == "u":
        return [TensorSpec("uint64", y.shape)]
    return [TensorSpec("int64", y.shape)] * 2


@kernel("ReduceMean", scratch=_declare_mean, binds=True)
def reduce_mean(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y, axes = _get_operands(inputs, outputs, attributes)
    # A number by now: shapes are known when kernels are bound.
    count = count_reduced(x.shape, axes)
    total, *rest = [buffer.reshape(y.shape) for buffer in scratch] or [y]
    add_up = sum_over(xp, x, axes, total)
    if kind_of(y.dtype) == "f":
        return run_in_order((add_up, partial(xp.divide, total, count, out=y, casting="same_kind")))
    divide = (
        partial(divide_truncating, xp, total, count, total, rest[0])
        if rest
        else partial(xp.floor_divide, total, count, total)
    )
    return run_in_order((add_up, divide, partial(xp.copyto, y, total, casting="same_kind")))


def _choose_norm_dtype(op: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which `op` prepares `dtype` elements: roots of integers need floats."""
    if op == "ReduceL2" and dtype.kind in "iu":
        return np.dtype(np.float64)
    return compute_dtype(dtype)


def _declare_norm(op: str) -> ScratchRule:
    def scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
        data, y = call.spec(0), outputs[0]
        wide = _choose_norm_dtype(op, data.dtype)
        prepared = [TensorSpec(wide, data.shape)]
        return prepared + ([TensorSpec(wide, y.shape)] if wide != y.dtype else [])

    return scratch


def _reduce_norm(
    prepare: str,
    finish: str | None,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
    scratch: Arrays,
) -> Step:
    x, y, axes = _get_operands(inputs, outputs, attributes)
    prepared = scratch[0]
    total = scratch[1].reshape(y.shape) if scratch[1:] else y
    steps: list[Step] = [
        partial(getattr(xp, prepare), x, out=prepared, dtype=prepared.dtype),
        sum_over(xp, prepared, axes, total),
    ]
    if finish is not None:
        steps.append(partial(getattr(xp, finish), total, total))
    if total is not y:
        steps.append(partial(xp.copyto, y, total, casting="unsafe"))
    return run_in_order(steps)


for _op, _prepare, _finish in (
    ("ReduceL1", "absolute", None),
    ("ReduceL2", "square", "sqrt"),
    ("ReduceSumSquare", "square", None),
):
    kernel(_op, scratch=_declare_norm(_op), binds=True)(partial(_reduce_norm, _prepare, _finish))


@kernel("ReduceLogSum", scratch=_declare_total, binds=True)
def reduce_log_sum(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y, axes = _get_operands(inputs, outputs, attributes)
    total = scratch[0].reshape(y.shape) if scratch else y
    add_up = sum_over(xp, x, axes, total)
    return run_in_order((add_up, partial(xp.log, total, out=y, casting="same_kind")))


def _log_sum_exp_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    data, y = call.spec(0), outputs[0]
    wide = compute_dtype(y.dtype)
    return [
        TensorSpec(wide, data.shape),
        TensorSpec(wide, y.shape),
        TensorSpec(wide, y.shape),
        TensorSpec(bool, y.shape),
    ]


@kernel("ReduceLogSumExp", scratch=_log_sum_exp_scratch, binds=True)
def reduce_log_sum_exp(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = log Σ exp(x), as m + log Σ exp(x - m) with the maximum m: nothing overflows.
    x, y, axes = _get_operands(inputs, outputs, attributes)
    if count_reduced(x.shape, axes) == 0:
        # Nothing has no maximum; its sum is 0, and this is log 0.
        return partial(y.fill, -np.inf)
    shifted, (peak, total, infinite) = scratch[0], (s.reshape(y.shape) for s in scratch[1:])
    # The maximum is taken of the wide copy, which is made anyway.
    source = x if x.dtype == shifted.dtype else shifted
    steps = [] if source is x else [partial(xp.copyto, shifted, x)]
    return run_in_order(
        (
            *steps,
            reduce_extremum(xp, "max", source, axes, peak),
            partial(xp.isfinite, peak, out=infinite),
            partial(xp.logical_not, infinite, out=infinite),
            partial(xp.copyto, peak, 0, where=infinite),  # ∞ - ∞ is NaN
            partial(xp.subtract, source, peak, out=shifted),
            partial(xp.exp, shifted, out=shifted),
            sum_over(xp, shifted, axes, total),
            partial(xp.log, total, out=total),
            partial(xp.add, total, peak, out=y, casting="same_kind"),
        )
    )


def _find_extremum(
    name: str, xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    x = inputs[0] if inputs[0].ndim else inputs[0].reshape(1)
    axis = attributes["axis"] % x.ndim
    y = outputs[0].reshape(x.shape[:axis] + x.shape[axis + 1 :])
    if not attributes["select_last_index"]:
        return partial(getattr(x, name), axis, y)
    # numpy finds the first: the last one is the first from the end.
    backward = x[index_at(axis, slice(None, None, -1))]
    find = partial(getattr(backward, name), axis, y)
    return run_in_order((find, partial(xp.subtract, x.shape[axis] - 1, y, y)))


kernel("ArgMax", binds=True)(partial(_find_extremum, "argmax"))
kernel("ArgMin", binds=True)(partial(_find_extremum, "argmin"))


_ACROSS = 96
"""Elements in a slice across the axis, from which on numpy adds slices faster than it scans."""


def _scan(
    name: str,
    neutral: int,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
) -> None:
    x, y = inputs[0], outputs[0]
    axis = normalize_axis(int(inputs[1].reshape(())), x.ndim)
    if attributes["reverse"]:
        backward = index_at(axis, slice(None, None, -1))
        x, y = x[backward], y[backward]
    if attributes["exclusive"]:
        # Moved on by one, each element gets the result of all before it.
        y[index_at(axis, slice(0, 1))] = neutral
        x, y = x[index_at(axis, slice(None, -1))], y[index_at(axis, slice(1, None))]
    across = x.size // max(x.shape[axis], 1)
    if xp is np and axis < x.ndim - 1 and across >= _ACROSS:
        _combine_slices(np.add if name == "cumsum" else np.multiply, x, y, axis)
    else:
        getattr(x, name)(axis, x.dtype, y)


def _combine_slices(combine: Any, x: Array, y: Array, axis: int) -> None:
    source, target = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
    target[:1] = source[:1]
    for before, part, found in zip(target, source[1:], target[1:], strict=False):
        combine(before, part, found)


_READS_AXIS = "its axis is read by the host on each run"
kernel("CumSum", host=_READS_AXIS)(partial(_scan, "cumsum", 0))
kernel("CumProd", host=_READS_AXIS)(partial(_scan, "cumprod", 1))
