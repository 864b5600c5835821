"""Gradients of pooling over windows and over whole planes.

Of equal maxima in a window the first one gets the gradient; in a whole plane they share it.
"""

from __future__ import annotations

from ..operators.pooling import infer_unpooled_shape
from .convolution import find_steps, transpose_windows
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient

_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def flatten(x: Term) -> Term:
    return x.reshaped(x.formula.size_of(x))


@gradient("MaxPool")
def max_pool(at: Adjoint) -> Gradients:
    x, dy = at.input(0), at.dy
    rank = len(at["kernel_shape"])
    window = {name: at[name] for name in _WINDOW}
    if at["storage_order"]:
        indices = at.formula.split("MaxPool", x, outputs=2, **window)[1]
    else:
        indices = at.output(1)
    if max(at["pads"] or (0,)) >= min(at["kernel_shape"]) or max(find_steps(at, rank)[1]) > 1:
        dy = dy.where(at.output().op("IsInf", detect_positive=False).op("Not"))
    yield 0, dy.op("MaxPoolGradient", indices, at.formula.shape_of(x), **window)


@gradient("MaxPoolGradient")
def max_pool_gradient(at: Adjoint) -> Gradients:
    yield 0, _read_at(at.dy, at.input(1))


def _read_at(x: Term, indices: Term) -> Term:
    found = flatten(x).op("GatherElements", flatten(indices))
    return found.reshaped(x.formula.shape_of(indices))


@gradient("AveragePool")
def average_pool(at: Adjoint) -> Gradients:
    yield 0, _sum_over_windows(at, at.dy * _compute_shares(at))


def _compute_shares(at: Adjoint) -> Term:
    """Return the share of each cell in the windows of `at`, found by pooling an image of ones."""
    window = {name: at[name] for name in _WINDOW}
    ones = _make_ones(at)
    mean = ones.op("AveragePool", count_include_pad=at["count_include_pad"], **window)
    total = ones.op("LpPool", p=1, **window)
    return mean / total.op("Max", at.formula.constant(1, total.dtype))


def _make_ones(at: Adjoint) -> Term:
    """Return an image of ones, as large as the input of `at`, with one channel and one sample."""
    x, formula = at.input(0), at.formula
    shape = formula.joined(formula.constant([1, 1]), formula.shape_of(x, 2))
    return formula.filled(shape, 1, x.dtype)


def _sum_over_windows(at: Adjoint, dy: Term) -> Term:
    x, kernel, formula = at.input(0), at["kernel_shape"], at.formula
    channels = (x.spec.shape or ("?", "?"))[1]
    ceil = at["ceil_mode"]
    if isinstance(channels, int):
        taps = formula.filled(formula.constant([channels, 1, *kernel]), 1, x.dtype)
        return transpose_windows(at, dy, taps, kernel, channels, ceil=ceil)
    one, outputs = formula.constant([1]), formula.shape_of(dy, 2)
    planes = dy.reshaped(formula.joined(formula.size_of(dy, 0, 2), one, outputs))
    taps = formula.filled(formula.constant([1, 1, *kernel]), 1, x.dtype)
    return transpose_windows(at, planes, taps, kernel, 1, ceil=ceil).reshaped(formula.shape_of(x))


@gradient("LpPool")
def lp_pool(at: Adjoint) -> Gradients:
    # dx = sign(x)·|x|^(p-1) · the sum of dy / y^(p-1) over its windows.
    dy, y, p = at.dy, at.output(), at["p"]
    weighted = dy if p == 1 else dy / _raise(y.where(y > 0, 1), p - 1)
    yield 0, _sum_over_windows(at, weighted) * _compute_slope(at.input(0), p)


def _raise(x: Term, p: int) -> Term:
    return x if p == 1 else x**p


def _compute_slope(x: Term, p: int) -> Term:
    """Return sign(`x`)·|x|^(`p`-1), the slope of |x|^p / p."""
    if p == 2:
        return x
    return x.op("Sign") if p == 1 else x.op("Sign") * _raise(x.op("Abs"), p - 1)


@gradient("GlobalAveragePool")
def global_average_pool(at: Adjoint) -> Gradients:
    x = at.input(0)
    share = at.shared(at.dy, (x.spec.shape or ("?",) * 3)[2:], x, at.output())
    yield 0, share.expanded(at.formula.shape_of(x))


@gradient("GlobalMaxPool")
def global_max_pool(at: Adjoint) -> Gradients:
    x = at.input(0)
    chosen = x.equals(at.output()).cast(x.dtype)
    yield 0, at.dy / chosen.sum(range(2, x.rank)) * chosen


@gradient("GlobalLpPool")
def global_lp_pool(at: Adjoint) -> Gradients:
    # dx = sign(x)·|x|^(p-1) · dy / y^(p-1).
    x, y, p = at.input(0), at.output(), at["p"]
    weighted = at.dy if p == 1 else at.dy / _raise(y.where(y > 0, 1), p - 1)
    yield 0, weighted * _compute_slope(x, p)


@gradient("MaxUnpool")
def max_unpool(at: Adjoint) -> Gradients:
    x, indices, dy = at.input(0), at.input(1), at.dy
    if at.optional(2) is not None:
        dy = _crop_counted(at, x, dy)
    yield 0, _read_at(dy, indices)


def _crop_counted(at: Adjoint, x: Term, dy: Term) -> Term:
    """Return `dy` cropped to the shape in which the indices of `at` count, inferred from `x`."""
    formula = at.formula
    shape = infer_unpooled_shape(x.spec.shape or (), at.node.attributes)
    ends = [dim for dim in shape[2:] if isinstance(dim, int)]
    if len(ends) != x.rank - 2:
        raise at.refused_error("the lengths of its input are not known", "declare them as numbers")
    axes = range(2, x.rank)
    return dy.op("Slice", *map(formula.constant, ([0] * len(ends), ends, list(axes))))
