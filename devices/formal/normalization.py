"""Definitions of the normalizations: to mean 0 and variance 1 over a batch, layer or group.

y = scale·(x - mean) / √(variance + epsilon) + bias; they differ in the elements that are normalized
together, and in the places of scale and bias. The variance is that of the population.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ...graph.values.tensor import Array
from .ieee import divide, power, sqrt, sum_exactly
from .registry import at, broadcast_at, definition, indices, table

Index: TypeAlias = tuple[int, ...]


def _compute_mean(values: Iterable[float]) -> float:
    listed = list(values)
    return divide(float(sum_exactly(listed)), len(listed))


class _Statistics(NamedTuple):
    mean: float
    variance: float


def _measure(x: Array, group: Callable[[Index], Hashable]) -> dict[Hashable, _Statistics]:
    members: dict[Hashable, list[float]] = {}
    for index in indices(x.shape):
        members.setdefault(group(index), []).append(at(x, *index))
    measured = {}
    for name, values in members.items():
        middle = _compute_mean(values)
        squares = ((value - middle) * (value - middle) for value in values)
        measured[name] = _Statistics(middle, _compute_mean(squares))
    return measured


def _standardize(value: float, of: _Statistics, epsilon: float) -> float:
    return divide(value - of.mean, sqrt(of.variance + epsilon))


def _get_channel(index: Index) -> int:
    return index[1] if len(index) > 1 else 0


@definition("BatchNormalization")
def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
    momentum: float,
    training_mode: bool,
) -> tuple[Array, Array, Array]:
    # Each channel, by the statistics given; in training by those of the batch, and the running ones
    # become running·momentum + measured·(1 - momentum).
    given: dict[Hashable, _Statistics]
    given = {c: _Statistics(at(mean, c), at(variance, c)) for c in range(mean.size)}
    used = given | _measure(x, _get_channel) if training_mode else given

    def element(*index: int) -> float:
        c = _get_channel(index)
        return float(at(scale, c) * _standardize(at(x, *index), used[c], epsilon) + at(bias, c))

    def moved(field: int) -> Array:
        return table(
            mean.shape, lambda c: given[c][field] * momentum + used[c][field] * (1 - momentum)
        )

    return table(x.shape, element), moved(0), moved(1)


@definition("InstanceNormalization")
def instance_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float) -> Array:
    return _normalize_groups(x, scale, bias, x.shape[1], epsilon)


@definition("GroupNormalization")
def group_normalization(
    x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int, stash_type: int
) -> Array:
    return _normalize_groups(x, scale, bias, num_groups, epsilon)


def _normalize_groups(x: Array, scale: Array, bias: Array, n_groups: int, epsilon: float) -> Array:
    def group(index: Index) -> Index:
        return index[0], index[1] * n_groups // x.shape[1]

    measured = _measure(x, group)

    def element(*index: int) -> float:
        standard = _standardize(at(x, *index), measured[group(index)], epsilon)
        return float(at(scale, index[1]) * standard + at(bias, index[1]))

    return table(x.shape, element)


@definition("LayerNormalization")
def layer_normalization(
    x: Array, scale: Array, bias: Array | None = None, *, axis: int, epsilon: float, stash_type: int
) -> tuple[Array, Array, Array]:
    axis %= x.ndim
    measured = _measure(x, lambda index: index[:axis])

    def element(*index: int) -> float:
        standard = _standardize(at(x, *index), measured[index[:axis]], epsilon)
        shift = 0.0 if bias is None else broadcast_at(bias, index)
        return float(broadcast_at(scale, index) * standard + shift)

    def inverse_deviation(*index: int) -> float:
        return divide(1.0, sqrt(measured[index[:axis]].variance + epsilon))

    lines = (*x.shape[:axis], *(1 for _ in x.shape[axis:]))
    means = table(lines, lambda *index: measured[index[:axis]].mean)
    return table(x.shape, element), means, table(lines, inverse_deviation)


@definition("RMSNormalization")
def rms_normalization(
    x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: int
) -> Array:
    axis %= x.ndim

    def element(*index: int) -> float:
        inside = (at(x, *index[:axis], *rest) for rest in indices(x.shape[axis:]))
        energy = _compute_mean(value * value for value in inside)
        return float(broadcast_at(scale, index) * divide(at(x, *index), sqrt(energy + epsilon)))

    return table(x.shape, element)


_LEAST_DEVIATION = 1e-9
"""Added by ONNX to the deviation in MeanVarianceNormalization."""


@definition("MeanVarianceNormalization")
def mean_variance_normalization(x: Array, *, axes: Sequence[int]) -> Array:
    # Source: ONNX's function of that name, with its constant.
    over = {axis % x.ndim for axis in axes}

    def group(index: Index) -> Index:
        return tuple(i for axis, i in enumerate(index) if axis not in over)

    measured = _measure(x, group)

    def element(*index: int) -> float:
        of = measured[group(index)]
        return divide(at(x, *index) - of.mean, sqrt(of.variance) + _LEAST_DEVIATION)

    return table(x.shape, element)


@definition("LRN")
def local_response_normalization(
    x: Array, *, alpha: float, beta: float, bias: float, size: int
) -> Array:
    def element(n: int, channel: int, *place: int) -> float:
        first, last = channel - (size - 1) // 2, channel + size // 2
        around = range(max(first, 0), min(last, x.shape[1] - 1) + 1)
        energy = sum_exactly(at(x, n, c, *place) * at(x, n, c, *place) for c in around)
        return divide(at(x, n, channel, *place), power(bias + alpha / size * energy, beta))

    return table(x.shape, element)
