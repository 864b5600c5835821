"""Reductions, scans over lines, and softmaxes in others."""

from __future__ import annotations

import math

from ..dims import normalise_axis
from ..operators.reduction import reduced_axes
from .rules import Draft, expands


@expands("ReduceMean")
def reduce_mean(draft: Draft, x: str, axes: str = "") -> str | None:
    """ReduceSum(x) / count, where the count is known."""
    count = _count(draft, x, axes)
    if draft.spec(x).dtype.kind != "f" or not count:
        return None
    return draft("Div", _again(draft, "ReduceSum", x, axes), float(count))


@expands("ReduceL1")
def reduce_l1(draft: Draft, x: str, axes: str = "") -> str:
    """The sum of |x|."""
    return _again(draft, "ReduceSum", draft("Abs", x), axes)


@expands("ReduceL2")
def reduce_l2(draft: Draft, x: str, axes: str = "") -> str | None:
    """The root of the sum of squares."""
    if draft.spec(x).dtype.kind != "f":
        return None
    return draft("Sqrt", _again(draft, "ReduceSumSquare", x, axes))


@expands("ReduceSumSquare")
def reduce_sum_square(draft: Draft, x: str, axes: str = "") -> str:
    """The sum of x · x."""
    return _again(draft, "ReduceSum", draft("Mul", x, x), axes)


@expands("ReduceLogSum")
def reduce_log_sum(draft: Draft, x: str, axes: str = "") -> str:
    """The logarithm of the sum."""
    return draft("Log", _again(draft, "ReduceSum", x, axes))


@expands("ReduceLogSumExp")
def reduce_log_sum_exp(draft: Draft, x: str, axes: str = "") -> str | None:
    """M + log Σ exp(x - m), m the maximum, lest exponentials overflow."""
    if draft.dims(x) is None:
        return None
    noop = draft.attributes["noop_with_empty_axes"]
    most = draft("ReduceMax", x, axes, keepdims=True, noop_with_empty_axes=noop)
    summed = _again(draft, "ReduceSum", draft("Exp", draft("Sub", x, most)), axes)
    if not draft.attributes["keepdims"]:
        most = draft("ReduceMax", x, axes, keepdims=False, noop_with_empty_axes=noop)
    return draft("Add", draft("Log", summed), most)


@expands("Softmax")
def softmax(draft: Draft, x: str) -> str | None:
    """exp(x - max) / Σ exp(x - max)."""
    parts = _shifted(draft, x)
    if parts is None:
        return None
    power = draft("Exp", parts[0])
    return draft("Div", power, draft("ReduceSum", power, parts[1], keepdims=True))


@expands("LogSoftmax")
def log_softmax(draft: Draft, x: str) -> str | None:
    """X - max - log Σ exp(x - max)."""
    parts = _shifted(draft, x)
    if parts is None:
        return None
    total = draft("ReduceSum", draft("Exp", parts[0]), parts[1], keepdims=True)
    return draft("Sub", parts[0], draft("Log", total))


def _shifted(draft: Draft, x: str) -> tuple[str, list[int]] | None:
    """Return x with 0 as its maximum along the axis, and the axis; None where it is empty."""
    shape = draft.dims(x)
    if shape is None:
        return None
    axes = [normalise_axis(draft.attributes["axis"], len(shape))]
    return draft("Sub", x, draft("ReduceMax", x, axes, keepdims=True)), axes


def _count(draft: Draft, x: str, axes: str) -> int:
    """Return how many elements become one; 0 where that is not known, too."""
    shape, listed = draft.dims(x), draft.value(axes)
    if shape is None or (axes and listed is None):
        return 0
    given = None if listed is None else [int(axis) for axis in listed]
    reduced = reduced_axes(len(shape), given, draft.attributes["noop_with_empty_axes"])
    counts = [length for axis in reduced if isinstance(length := shape[axis], int)]
    return math.prod(counts) if len(counts) == len(reduced) else 0


def _again(draft: Draft, op: str, x: str, axes: str) -> str:
    return draft(op, x, axes, **draft.attributes)
