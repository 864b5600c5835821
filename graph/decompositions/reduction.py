"""Reductions, scans over lines, and softmaxes as simpler operators."""

from __future__ import annotations

import math

from ..operators.reduction import list_reduced_axes
from ..values.dims import normalize_axis
from .rules import DecompositionBuilder, decomposition


@decomposition("ReduceMean")
def reduce_mean(builder: DecompositionBuilder, x: str, axes: str = "") -> str | None:
    count = _count(builder, x, axes)
    if builder.spec(x).dtype.kind != "f" or not count:
        return None
    return builder("Div", _reduce_again(builder, "ReduceSum", x, axes), float(count))


@decomposition("ReduceL1")
def reduce_l1(builder: DecompositionBuilder, x: str, axes: str = "") -> str:
    return _reduce_again(builder, "ReduceSum", builder("Abs", x), axes)


@decomposition("ReduceL2")
def reduce_l2(builder: DecompositionBuilder, x: str, axes: str = "") -> str | None:
    if builder.spec(x).dtype.kind != "f":
        return None
    return builder("Sqrt", _reduce_again(builder, "ReduceSumSquare", x, axes))


@decomposition("ReduceSumSquare")
def reduce_sum_square(builder: DecompositionBuilder, x: str, axes: str = "") -> str:
    return _reduce_again(builder, "ReduceSum", builder("Mul", x, x), axes)


@decomposition("ReduceLogSum")
def reduce_log_sum(builder: DecompositionBuilder, x: str, axes: str = "") -> str:
    return builder("Log", _reduce_again(builder, "ReduceSum", x, axes))


@decomposition("ReduceLogSumExp")
def reduce_log_sum_exp(builder: DecompositionBuilder, x: str, axes: str = "") -> str | None:
    # m + log Σ exp(x - m), as without the maximum m powers could overflow.
    if builder.dims(x) is None:
        return None
    noop = builder.attributes["noop_with_empty_axes"]
    most = builder("ReduceMax", x, axes, keepdims=True, noop_with_empty_axes=noop)
    summed = _reduce_again(builder, "ReduceSum", builder("Exp", builder("Sub", x, most)), axes)
    if not builder.attributes["keepdims"]:
        most = builder("ReduceMax", x, axes, keepdims=False, noop_with_empty_axes=noop)
    return builder("Add", builder("Log", summed), most)


@decomposition("Softmax")
def softmax(builder: DecompositionBuilder, x: str) -> str | None:
    parts = _shift(builder, x)
    if parts is None:
        return None
    power = builder("Exp", parts[0])
    return builder("Div", power, builder("ReduceSum", power, parts[1], keepdims=True))


@decomposition("LogSoftmax")
def log_softmax(builder: DecompositionBuilder, x: str) -> str | None:
    parts = _shift(builder, x)
    if parts is None:
        return None
    total = builder("ReduceSum", builder("Exp", parts[0]), parts[1], keepdims=True)
    return builder("Sub", parts[0], builder("Log", total))


def _shift(builder: DecompositionBuilder, x: str) -> tuple[str, list[int]] | None:
    """Subtract from `x` its maximum with `builder`; return it and the axes reduced, or None."""
    shape = builder.dims(x)
    if shape is None:
        return None
    axes = [normalize_axis(builder.attributes["axis"], len(shape))]
    return builder("Sub", x, builder("ReduceMax", x, axes, keepdims=True)), axes


def _count(builder: DecompositionBuilder, x: str, axes: str) -> int:
    """Return how many elements of `x` in `builder` each reduction over `axes` has; 0 if unknown."""
    shape, listed = builder.dims(x), builder.value(axes)
    if shape is None or (axes and listed is None):
        return 0
    given = None if listed is None else [int(axis) for axis in listed]
    reduced = list_reduced_axes(len(shape), given, builder.attributes["noop_with_empty_axes"])
    counts = [length for axis in reduced if isinstance(length := shape[axis], int)]
    return math.prod(counts) if len(counts) == len(reduced) else 0


def _reduce_again(builder: DecompositionBuilder, op: str, x: str, axes: str) -> str:
    return builder(op, x, axes, **builder.attributes)
