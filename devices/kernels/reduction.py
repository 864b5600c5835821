"""Reductions over axes.

Empty axes give what ONNX says: 0, 1, the lowest or highest value, NaN for a mean. float16 is
accumulated in float32, integers in their own width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.operators.reduction import reduced_axes, reduced_count
from ...graph.tensor import Array, TensorSpec
from .blocks import compute_dtype
from .elementwise import divide_truncating, limits
from .registry import ArrayModule, Arrays, kernel
from .rows import bind_extremum, bind_sum
from .steps import Step, in_order


def _operands(
    inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> tuple[Array, Array, tuple[int, ...]]:
    """Return x, y with its reduced axes kept, and the axes.

    Axes are read when the plan is opened: they are constants, as the output's shape depends on
    them.
    """
    x, y = inputs[0], outputs[0]
    given = inputs[1].reshape(-1).tolist() if len(inputs) > 1 and inputs[1] is not None else None
    axes = reduced_axes(x.ndim, given, attributes["noop_with_empty_axes"])
    kept = tuple(1 if axis in axes else length for axis, length in enumerate(x.shape))
    return x, y.reshape(kept), axes


def _wide_output(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch for the result where it is accumulated in a wider dtype."""
    y = outputs[0]
    return [TensorSpec(np.float32, y.shape)] if y.dtype == np.float16 else ()


def _extremum(
    name: str, xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    x, y, axes = _operands(inputs, outputs, attributes)
    if reduced_count(x.shape, axes) == 0:
        lowest, highest = limits(x.dtype) if x.dtype != bool else (False, True)
        return partial(y.fill, lowest if name == "max" else highest)
    return bind_extremum(name, x, axes, y)


kernel("ReduceMax", binds=True)(partial(_extremum, "max"))
kernel("ReduceMin", binds=True)(partial(_extremum, "min"))


def _accumulation(
    name: str,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
    scratch: Arrays,
) -> Step:
    x, y, axes = _operands(inputs, outputs, attributes)
    total = scratch[0].reshape(y.shape) if scratch else y
    if name == "sum":
        reduce = bind_sum(x, axes, total)
    else:
        reduce = partial(x.prod, axes, total.dtype, total, True)
    return in_order((reduce, partial(xp.copyto, y, total))) if scratch else reduce


kernel("ReduceSum", scratch=_wide_output, binds=True)(partial(_accumulation, "sum"))
kernel("ReduceProd", scratch=_wide_output, binds=True)(partial(_accumulation, "prod"))


def _mean_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return outputs if outputs[0].dtype.kind == "i" else _wide_output(call, outputs)


@kernel("ReduceMean", scratch=_mean_scratch, binds=True)
def reduce_mean(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = the mean; of integers, rounded toward zero.  Source: ONNX ReduceMean."""
    x, y, axes = _operands(inputs, outputs, attributes)
    count = reduced_count(x.shape, axes)
    total = y if y.dtype != np.float16 else scratch[0].reshape(y.shape)
    add_up = bind_sum(x, axes, total)
    if y.dtype.kind == "i":
        rest = scratch[0].reshape(y.shape)
        return in_order((add_up, partial(divide_truncating, xp, y, count, y, rest)))
    if y.dtype.kind == "u":
        return in_order((add_up, partial(xp.floor_divide, y, count, y)))
    return in_order((add_up, partial(xp.divide, total, count, out=y, casting="same_kind")))


def _norm_dtype(op: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which the elements are prepared: roots of integers need floats."""
    if op == "ReduceL2" and dtype.kind in "iu":
        return np.dtype(np.float64)
    return compute_dtype(dtype)


def _norm_scratch(op: str) -> Any:
    def scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
        data, y = call.spec(0), outputs[0]
        wide = _norm_dtype(op, data.dtype)
        prepared = [TensorSpec(wide, data.shape)]
        return prepared + ([TensorSpec(wide, y.shape)] if wide != y.dtype else [])

    return scratch


def _norm(
    prepare: str,
    finish: str | None,
    xp: ArrayModule,
    inputs: Arrays,
    outputs: Arrays,
    attributes: Attributes,
    scratch: Arrays,
) -> Step:
    """Apply a ufunc to the elements, add up, apply another to the sum."""
    x, y, axes = _operands(inputs, outputs, attributes)
    prepared = scratch[0]
    total = scratch[1].reshape(y.shape) if len(scratch) > 1 else y
    apply = partial(getattr(xp, prepare), x, out=prepared, dtype=prepared.dtype)
    add_up = bind_sum(prepared, axes, total)
    end = partial(getattr(xp, finish), total, total) if finish else None

    def step() -> None:
        apply()
        add_up()
        if end is not None:
            end()
        if total is not y:
            xp.copyto(y, total, casting="unsafe")

    return step


for _op, _prepare, _finish in (
    ("ReduceL1", "absolute", None),
    ("ReduceL2", "square", "sqrt"),
    ("ReduceSumSquare", "square", None),
):
    kernel(_op, scratch=_norm_scratch(_op), binds=True)(partial(_norm, _prepare, _finish))


@kernel("ReduceLogSum", scratch=_wide_output, binds=True)
def reduce_log_sum(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = log of the sum.  Source: ONNX ReduceLogSum."""
    x, y, axes = _operands(inputs, outputs, attributes)
    total = scratch[0].reshape(y.shape) if scratch else y
    add_up = bind_sum(x, axes, total)
    return in_order((add_up, partial(xp.log, total, out=y, casting="same_kind")))


def _exp_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    data, y = call.spec(0), outputs[0]
    wide = compute_dtype(y.dtype)
    return [
        TensorSpec(wide, data.shape),
        TensorSpec(wide, y.shape),
        TensorSpec(wide, y.shape),
        TensorSpec(bool, y.shape),
    ]


@kernel("ReduceLogSumExp", scratch=_exp_scratch, binds=True)
def reduce_log_sum_exp(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = log Σ exp(x), as m + log Σ exp(x - m) with the maximum m: nothing overflows."""
    x, y, axes = _operands(inputs, outputs, attributes)
    if reduced_count(x.shape, axes) == 0:
        return partial(y.fill, -np.inf)
    shifted, (peak, total, infinite) = scratch[0], (s.reshape(y.shape) for s in scratch[1:])
    source = x if x.dtype == shifted.dtype else shifted
    find_peak = bind_extremum("max", source, axes, peak)
    add_up = bind_sum(shifted, axes, total)

    def step() -> None:
        if source is shifted:
            xp.copyto(shifted, x)
        find_peak()
        xp.isfinite(peak, out=infinite)
        xp.logical_not(infinite, out=infinite)
        xp.copyto(peak, 0, where=infinite)  # ∞ - ∞ is NaN
        xp.subtract(source, peak, out=shifted)
        xp.exp(shifted, out=shifted)
        add_up()
        xp.log(total, out=total)
        xp.add(total, peak, out=y, casting="same_kind")

    return step


def _arg_extremum(
    name: str, xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes
) -> Step:
    x = inputs[0] if inputs[0].ndim else inputs[0].reshape(1)
    axis = attributes["axis"] % x.ndim
    y = outputs[0].reshape(x.shape[:axis] + x.shape[axis + 1 :])
    if not attributes["select_last_index"]:
        return partial(getattr(x, name), axis, y)
    backward = x[(slice(None),) * axis + (slice(None, None, -1),)]
    find = partial(getattr(backward, name), axis, y)
    return in_order((find, partial(xp.subtract, x.shape[axis] - 1, y, y)))


kernel("ArgMax", binds=True)(partial(_arg_extremum, "argmax"))
kernel("ArgMin", binds=True)(partial(_arg_extremum, "argmin"))
