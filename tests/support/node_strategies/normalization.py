"""Nodes that shift and scale to mean 0 and variance 1, or to length 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import (
    FLOATS,
    Draw,
    NodeCase,
    Palette,
    Strategy,
    an_axis,
    broadcast_part,
    choose,
    few,
    flag,
    integer,
    ordinary,
    shape,
    size_of,
    some_axes,
    tensor,
)

SUMS: tuple[Palette, ...] = (few, ordinary)
EPSILONS = (1e-5, 1e-3, 0.5)


def normalized(
    x: AnyArray, variance: Any, epsilon: float, *scale_and_shift: AnyArray | None
) -> float:
    """Return the largest number that a shifted and scaled element may be made from."""
    least = float(np.min(variance, initial=np.inf)) if np.size(variance) else 1.0
    sizes = [size_of(array) for array in scale_and_shift] or [1.0]
    factor = max(sizes[0], 1.0)
    return size_of(x) / float(np.sqrt(max(least, 0) + epsilon)) * factor + max(sizes)


def variance_over(x: AnyArray, axes: Sequence[int]) -> Any:
    return x.astype(np.float64).var(tuple(axes)) if x.size else 1.0


def batch_normalization(draw: Draw) -> NodeCase:
    training = flag(draw)
    of = shape(draw, 1, least=1 if training else 0)
    dtypes = [choose(draw, FLOATS)] * 3
    if flag(draw):
        dtypes = [choose(draw, FLOATS) for _ in range(3)]
    channels = (of[1] if len(of) > 1 else 1,)
    x = tensor(draw, dtypes[0], of, SUMS)
    scale, bias = (tensor(draw, dtypes[1], channels, SUMS) for _ in range(2))
    mean, variance = (tensor(draw, dtypes[2], channels, SUMS) for _ in range(2))
    variance, epsilon = np.abs(variance), choose(draw, EPSILONS)
    attributes = {"training_mode": training, "epsilon": epsilon}
    attributes["momentum"] = choose(draw, (0.0, 0.5, 0.9, 1.0))
    axes = [axis for axis in range(x.ndim) if axis != 1]
    spread = variance_over(x, axes) if training else variance
    terms = normalized(x, spread, epsilon, scale, bias, mean)
    terms += size_of(mean) / float(np.sqrt(epsilon)) * max(size_of(scale), 1.0)
    terms += size_of(x) ** 2 if training else 0.0
    count = integer(draw, 1, 3) if training else 1
    return NodeCase([x, scale, bias, mean, variance], attributes, count, ulps=16, terms=terms)


def per_channel(grouped: bool) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        dtype, of = choose(draw, FLOATS), [integer(draw, 0, 2), *shape(draw, 1, 3, least=1)]
        groups = integer(draw, 1, 2) if grouped else 1
        of[1] *= groups
        x = tensor(draw, dtype, of, SUMS)
        scale, bias = (tensor(draw, dtype, (of[1],), SUMS) for _ in range(2))
        epsilon = choose(draw, EPSILONS)
        attributes: dict[str, Any] = {"epsilon": epsilon}
        if grouped:
            attributes["num_groups"] = groups
        count = groups if grouped else of[1]
        lines = x.reshape(of[0], count, x[:1].size // count if x.size else 0)
        variance = variance_over(lines, [2])
        terms = normalized(x, variance, epsilon, scale, bias)
        return NodeCase([x, scale, bias], attributes, ulps=16, terms=terms)

    return strategy


def layer_normalization(draw: Draw) -> NodeCase:
    dtype, of = choose(draw, FLOATS), shape(draw, 1, least=1)
    axis, epsilon = an_axis(draw, len(of)), choose(draw, EPSILONS)
    x = tensor(draw, dtype, of, SUMS)
    scale = tensor(draw, dtype, broadcast_part(draw, of[axis:]), SUMS)
    bias = tensor(draw, dtype, broadcast_part(draw, of[axis:]), SUMS) if flag(draw) else None
    variance = variance_over(x, range(axis % len(of), len(of)))
    terms = normalized(x, variance, epsilon, scale, bias)
    attributes = {"axis": axis, "epsilon": epsilon}
    return NodeCase([x, scale, bias], attributes, integer(draw, 1, 3), ulps=16, terms=terms)


def rms_normalization(draw: Draw) -> NodeCase:
    of = shape(draw, 1, least=1)
    axis = an_axis(draw, len(of))
    x = tensor(draw, choose(draw, FLOATS), of, SUMS)
    scale = tensor(draw, choose(draw, FLOATS), broadcast_part(draw, of[axis:]), SUMS)
    return NodeCase([x, scale], {"axis": axis, "epsilon": choose(draw, EPSILONS)}, ulps=8)


def lp_normalization(draw: Draw) -> NodeCase:
    x = tensor(draw, choose(draw, FLOATS), shape(draw, 1), SUMS)
    return NodeCase([x], {"axis": an_axis(draw, x.ndim), "p": integer(draw, 1, 2)}, ulps=8)


def mean_variance_normalization(draw: Draw) -> NodeCase:
    of = shape(draw, 1, least=1)
    axes = some_axes(draw, len(of), least=1)
    if len(of) == 4 and flag(draw):
        axes = [0, 2, 3]
    x = tensor(draw, choose(draw, FLOATS), of, (ordinary,))
    variance = variance_over(x, [axis % len(of) for axis in axes])
    terms = normalized(x, variance, 1e-9) + size_of(x)
    return NodeCase([x], {"axes": axes}, ulps=16, terms=terms)


def local_response(draw: Draw) -> NodeCase:
    x = tensor(draw, choose(draw, FLOATS), shape(draw, 2), SUMS)
    attributes = {"size": integer(draw, 1, 6), "alpha": choose(draw, (1e-4, 0.5, 0.0))}
    attributes |= {"beta": choose(draw, (0.75, 0.5, 1.0, 2.0)), "bias": choose(draw, (1.0, 2.0))}
    return NodeCase([x], attributes, ulps=16)


STRATEGIES: dict[str, Strategy] = {
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": per_channel(grouped=False),
    "GroupNormalization": per_channel(grouped=True),
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "LRN": local_response,
}
