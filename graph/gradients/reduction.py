"""Gradients of reductions over axes, softmax among them, and of scans along one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..operators.reduction import list_reduced_axes
from ..values.dims import UNKNOWN
from ..values.tensor import Dim
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient

Reduction = Callable[[Adjoint, Term, Term, Term], Term]


def _align_output(at: Adjoint, term: Term) -> Term:
    """Return `term`, shaped like the output of `at`, in a shape that broadcasts with the input."""
    axes = at.optional(1)
    if at["keepdims"] or axes is None or (axes.value is not None and axes.value.size == 0):
        return term
    return term.op("Unsqueeze", axes)


def _reduce_again(at: Adjoint, how: str, term: Term) -> Term:
    axes, noop = at.optional(1), at["noop_with_empty_axes"]
    return term.op(how, axes, keepdims=True, noop_with_empty_axes=noop)


def _list_reduced(at: Adjoint) -> Sequence[Dim]:
    axes, shape = at.optional(1), at.input(0).spec.shape
    if shape is None or (axes is not None and axes.value is None):
        return (UNKNOWN,)
    listed = None if axes is None or axes.value is None else axes.value.reshape(-1).tolist()
    over = list_reduced_axes(len(shape), listed, at["noop_with_empty_axes"])
    return [shape[axis] for axis in over]


def _expand_output(at: Adjoint, term: Term) -> Term:
    return _align_output(at, term).expanded(at.formula.shape_of(at.input(0)))


def _share_extremum(at: Adjoint, dy: Term, x: Term, y: Term) -> Term:
    chosen = x.equals(y).cast(x.dtype)
    return dy / _reduce_again(at, "ReduceSum", chosen) * chosen


def _differentiate_norm(at: Adjoint, dy: Term, x: Term, y: Term) -> Term:
    # The slope is 0 for zeros alone.
    return dy / y.where(y > 0, 1) * x


_RULES: dict[str, Reduction] = {
    "ReduceL1": lambda at, dy, x, y: dy * x.op("Sign"),
    "ReduceL2": _differentiate_norm,
    "ReduceSumSquare": lambda at, dy, x, y: dy * 2 * x,
    "ReduceLogSumExp": lambda at, dy, x, y: dy * (x - y).op("Exp"),
    "ReduceMax": _share_extremum,
    "ReduceMin": _share_extremum,
}
"""From the gradient of y, x and y to the gradient of x; dy and y broadcast with x."""


def _apply_rule(rule: Reduction, at: Adjoint) -> Gradients:
    yield 0, rule(at, _align_output(at, at.dy), at.input(0), _align_output(at, at.output()))


for _op, _rule in _RULES.items():
    gradient(_op)(partial(_apply_rule, _rule))


@gradient("ReduceSum")
def reduce_sum(at: Adjoint) -> Gradients:
    yield 0, _expand_output(at, at.dy)


@gradient("ReduceMean")
def reduce_mean(at: Adjoint) -> Gradients:
    yield 0, _expand_output(at, at.shared(at.dy, _list_reduced(at), at.input(0), at.output()))


@gradient("ReduceLogSum")
def reduce_log_sum(at: Adjoint) -> Gradients:
    yield 0, _expand_output(at, at.dy / at.output().op("Exp"))


@gradient("ReduceProd")
def reduce_product(at: Adjoint) -> Gradients:
    # The product of all other elements, multiplied from both ends: x may be 0.
    x, axes = at.input(0), at.optional(1)
    given = None if axes is None or axes.value is None else axes.value.reshape(-1).tolist()
    if axes is not None and axes.value is None:
        yield 0, _align_output(at, at.dy * at.output()) / x
        return
    over = list_reduced_axes(x.rank, given, at["noop_with_empty_axes"])
    order = [*(axis for axis in range(x.rank) if axis not in over), *over]
    moved = x.transposed(order)
    kept = at.formula.shape_of(moved, 0, x.rank - len(over))
    length = at.formula.size_of(moved, x.rank - len(over))
    lines = moved.reshaped(at.formula.joined(kept, length))
    last = at.formula.constant(lines.rank - 1)
    before = lines.op("CumProd", last, exclusive=True)
    after = lines.op("CumProd", last, exclusive=True, reverse=True)
    others = (before * after).reshaped(at.formula.shape_of(moved))
    back = [int(place) for place in np.argsort(order)]
    yield 0, _align_output(at, at.dy) * others.transposed(back)


def _scan_back(at: Adjoint, term: Term) -> Term:
    return term.op("CumSum", at.input(1), exclusive=at["exclusive"], reverse=not at["reverse"])


@gradient("CumSum")
def cumulative_sum(at: Adjoint) -> Gradients:
    yield 0, _scan_back(at, at.dy)


@gradient("CumProd")
def cumulative_product(at: Adjoint) -> Gradients:
    # dx = the sums of dy·y from the other end, over x, which must not be 0.
    yield 0, _scan_back(at, at.dy * at.output()) / at.input(0)


@gradient("Softmax")
def softmax(at: Adjoint) -> Gradients:
    # dx = y·(dy - Σ dy·y).
    y = at.output()
    weighted = at.dy * y
    yield 0, weighted - y * weighted.sum([at["axis"]])


@gradient("LogSoftmax")
def log_softmax(at: Adjoint) -> Gradients:
    # dx = dy - exp(y)·Σ dy.
    yield 0, at.dy - at.output().op("Exp") * at.dy.sum([at["axis"]])
