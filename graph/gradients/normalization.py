"""Gradients of normalization: by a batch's, a layer's, a group's statistics, or given ones.

Of n = (x - mean x) / √(mean (x - mean x)² + ε), the gradient is, for the gradient g of n,
(g - mean g - n · mean (g·n)) / √(...).  Source: Ioffe and Szegedy (2015), section 3, simplified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..values.dims import UNKNOWN, normalize_axis
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient


class Standard(NamedTuple):
    """A tensor with mean 0 and variance 1 over some axes, and its inverse deviation."""

    values: Term
    inverse: Term
    axes: Sequence[int]

    def back(self, g: Term) -> Term:
        rest = g - g.mean(self.axes) - self.values * (g * self.values).mean(self.axes)
        return rest * self.inverse


def _standardize(x: Term, axes: Sequence[int], epsilon: float) -> Standard:
    centred = x - x.mean(axes)
    inverse = 1 / ((centred * centred).mean(axes) + epsilon).op("Sqrt")
    return Standard(centred * inverse, inverse, axes)


def _widen(at: Adjoint, x: Term) -> Term:
    is_double = any(one is not None and one.dtype == np.float64 for one in at.inputs)
    return x.cast("float64" if is_double else "float32")


def _align_channels(vector: Term, rank: int) -> Term:
    ones = list(range(1, rank - 1))
    return vector.op("Unsqueeze", vector.formula.constant(ones)) if ones else vector


def _sum_per_channel(x: Term) -> Term:
    """Return the sum of `x` for each channel; without an axis of channels there is one."""
    if x.rank == 1:
        return x.sum([0])
    return x.sum([0, *range(2, x.rank)], keepdims=False)


@gradient("LayerNormalization")
def layer_normalization(at: Adjoint) -> Gradients:
    # Statistics that the node computed are used if they are as precise as x.
    x, scale, dy = _widen(at, at.input(0)), at.input(1), _widen(at, at.dy)
    axis = normalize_axis(at["axis"], x.rank)
    axes = range(axis, x.rank)
    # The node's own statistics are float32, whatever x is.
    if x.dtype == np.float64:
        normal = _standardize(x, axes, at["epsilon"])
    else:
        inverse = at.output(2)
        normal = Standard((x - at.output(1)) * inverse, inverse, axes)
    if at.wants(0):
        yield 0, _differentiate_layer(at, normal, dy, scale)
    if at.wants(1):
        yield 1, at.summed(dy * normal.values, scale)
    bias = at.optional(2)
    if bias is not None and at.wants(2):
        yield 2, at.summed(dy, bias)


def _differentiate_layer(at: Adjoint, normal: Standard, dy: Term, scale: Term) -> Term:
    """Return the gradient of x from `dy`, `scale` and statistics of `normal` that `at` outputs."""
    made = normal.back(dy * _widen(at, scale))
    mean, deviation = (*at.gradients, None, None)[1:3]
    x, shape = at.input(0), at.input(0).spec.shape or (UNKNOWN,)

    def shared(term: Term) -> Term:
        return at.shared(term.cast(made.dtype), shape[normal.axes[0] :], x, normal.inverse)

    if mean is not None:
        made = made + shared(mean)
    # The output is 1/√(variance + ε), with the slope of the negative third power.
    if deviation is not None:
        through = shared(deviation) * normal.inverse * normal.inverse
        made = made - through * normal.values
    return made


@gradient("RMSNormalization")
def rms_normalization(at: Adjoint) -> Gradients:
    x, scale, dy = _widen(at, at.input(0)), at.input(1), _widen(at, at.dy)
    axes = range(normalize_axis(at["axis"], x.rank), x.rank)
    inverse = 1 / ((x * x).mean(axes) + at["epsilon"]).op("Sqrt")
    normal = x * inverse
    if at.wants(0):
        g = dy * _widen(at, scale)
        yield 0, (g - normal * (g * normal).mean(axes)) * inverse
    if at.wants(1):
        yield 1, at.summed(dy * normal, scale)


@gradient("BatchNormalization")
def batch_normalization(at: Adjoint) -> Gradients:
    if at["training_mode"]:
        yield from _differentiate_batch(at)
        return
    x, dy = _widen(at, at.input(0)), _widen(at, at.dy)
    scale, mean, variance = (_widen(at, at.input(index)) for index in (1, 3, 4))
    inverse = 1 / (variance + at["epsilon"]).op("Sqrt")
    factor = scale * inverse
    if at.wants(0):
        yield 0, dy * _align_channels(factor, x.rank)
    if at.wants(1) or at.wants(4):
        centred = _sum_per_channel(dy * (x - _align_channels(mean, x.rank)))
        yield 1, centred * inverse
        # (v + ε)^-½ has the slope -½ (v + ε)^-3/2 in v.
        yield 4, centred * factor * inverse * inverse * -0.5
    if at.wants(2) or at.wants(3):
        total = _sum_per_channel(dy)
        yield 2, total
        yield 3, -total * factor


def _differentiate_batch(at: Adjoint) -> Gradients:
    # In training mode, where running statistics follow the batch's.
    x, dy, scale = _widen(at, at.input(0)), _widen(at, at.dy), _widen(at, at.input(1))
    axes = [0, *range(2, x.rank)]
    normal = _standardize(x, axes, at["epsilon"])
    if at.wants(0):
        made = normal.back(dy * _align_channels(scale, x.rank))
        yield 0, _add_running(at, made, normal)
    if at.wants(1):
        yield 1, _sum_per_channel(dy * normal.values)
    if at.wants(2):
        yield 2, _sum_per_channel(dy)
    for index in (1, 2):
        # Running statistics pass through, times the momentum.
        moved = (*at.gradients, None, None)[index]
        if moved is not None and at.wants(index + 2):
            yield index + 2, moved * at["momentum"]


def _add_running(at: Adjoint, made: Term, normal: Standard) -> Term:
    """Return `made`, the gradient of x, plus that through the running statistics of `at`."""
    mean, variance = (*at.gradients, None, None)[1:3]
    if mean is None and variance is None:
        return made
    x, share = at.input(0), 1 - at["momentum"]
    shape = x.spec.shape or (UNKNOWN,)
    dims = [shape[axis] for axis in normal.axes]

    def shared(term: Term, factor: float) -> Term:
        per_channel = at.shared(_widen(at, term) * factor, dims, x, at.input(3))
        return _align_channels(per_channel, x.rank)

    if mean is not None:
        made = made + shared(mean, share)
    # var x changes by 2 (x - mean) / n with each x, and x - mean is values / inverse.
    if variance is not None:
        made = made + shared(variance, 2 * share) * (normal.values / normal.inverse)
    return made


@gradient("InstanceNormalization")
def instance_normalization(at: Adjoint) -> Gradients:
    x = _widen(at, at.input(0))
    yield from _differentiate_by_channel(at, _standardize(x, range(2, x.rank), at["epsilon"]))


@gradient("GroupNormalization")
def group_normalization(at: Adjoint) -> Gradients:
    x, formula = _widen(at, at.input(0)), at.formula
    groups = formula.constant([at["num_groups"]])
    each = formula.size_of(x, 1) / groups
    shape = formula.joined(formula.shape_of(x, 0, 1), groups, each)
    normal = _standardize(x.reshaped(shape), [2], at["epsilon"])
    yield from _differentiate_by_channel(at, normal, shape)


def _differentiate_by_channel(
    at: Adjoint, normal: Standard, shape: Term | None = None
) -> Gradients:
    whole = at.formula.shape_of(at.input(0))
    dy, scale, rank = _widen(at, at.dy), _widen(at, at.input(1)), at.input(0).rank
    if at.wants(0):
        g = dy * _align_channels(scale, rank)
        made = normal.back(g if shape is None else g.reshaped(shape))
        yield 0, made if shape is None else made.reshaped(whole)
    if at.wants(1):
        values = normal.values if shape is None else normal.values.reshaped(whole)
        yield 1, _sum_per_channel(dy * values)
    if at.wants(2):
        yield 2, _sum_per_channel(dy)


@gradient("LpNormalization")
def lp_normalization(at: Adjoint) -> Gradients:
    # dx = (dy - y·|y|-weighted mean of dy) / ‖x‖, 0 where the norm is 0.
    x, y, dy, axes = at.input(0), at.output(), at.dy, [at["axis"]]
    root = at["p"] == 2
    norm = x.reduced("L2" if root else "L1", axes)
    along = (dy * y).sum(axes)
    # The slope of the norm: for p = 2 it is the normalized x itself.
    slope = y if root else x.op("Sign")
    yield 0, ((dy - slope * along) / norm.where(norm > 0, 1)).where(norm > 0)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(at: Adjoint) -> Gradients:
    # y = u / (σ + ε) with u = x - mean x and σ² = mean u².
    x, dy, axes = _widen(at, at.input(0)), _widen(at, at.dy), at["axes"]
    u = x - x.mean(axes)
    deviation = (u * u).mean(axes).op("Sqrt")
    inverse = 1 / (deviation + 1e-9)
    # ε is added after the root, so that the formula would divide by a deviation of 0.
    slope = (dy * u).mean(axes) * inverse / deviation.where(deviation > 0, 1)
    yield 0, (dy - dy.mean(axes) - u * slope) * inverse


@gradient("LRN")
def local_response_normalization(at: Adjoint) -> Gradients:
    # dx = dy·s^-β, minus x times the sums over neighbours of dy·x·s^(-β-1).
    x, dy = at.input(0), at.dy
    size, beta = at["size"], at["beta"]
    s = _average_neighbours(x * x, size) * at["alpha"] + at["bias"]
    scaled = dy * s**-beta
    around = _average_neighbours(scaled * x / s, size, transposed=True)
    yield 0, scaled - x * around * (2 * at["alpha"] * beta)


def _average_neighbours(x: Term, size: int, transposed: bool = False) -> Term:
    """Return means of `x` over `size` neighbouring channels; `transposed` reverses the window."""
    formula = x.formula
    before = (size - 1) // 2
    # A window of even size is asymmetric, and reaches to the other side from the neighbour's view.
    pads = [size - 1 - before, before] if transposed else [before, size - 1 - before]
    channels, rest = formula.shape_of(x, 1, 2), formula.size_of(x, 2)
    batch = formula.shape_of(x, 0, 1)
    image = x.reshaped(formula.joined(batch, formula.constant([1]), channels, rest))
    means = image.op(
        "AveragePool", kernel_shape=[size, 1], pads=[pads[0], 0, pads[1], 0], count_include_pad=True
    )
    return means.reshaped(formula.shape_of(x))
