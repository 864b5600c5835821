"""Definitions of Softmax and its kin, and of division by a norm: one line of values at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph.values.tensor import Array
from .ieee import divide, exp, log, rank, sqrt, sum_exactly
from .registry import at, definition, indices


def _apply_along(x: Array, axis: int, function: Callable[[list[float]], Sequence[float]]) -> Array:
    axis %= x.ndim
    y = np.empty(x.shape, dtype=object)
    for before in indices(x.shape[:axis]):
        for after in indices(x.shape[axis + 1 :]):
            line = [at(x, *before, i, *after) for i in range(x.shape[axis])]
            for i, value in enumerate(function(line) if line else ()):
                y[(*before, i, *after)] = value
    return y


@definition("Softmax")
def softmax(x: Array, *, axis: int) -> Array:
    return _apply_along(x, axis, _normalize)


def _normalize(line: list[float]) -> list[float]:
    # The greatest is taken off both sides of the fraction: exp would overflow.
    powers = [exp(value - max(line)) for value in line]
    return [power / sum_exactly(powers) for power in powers]


@definition("LogSoftmax")
def log_softmax(x: Array, *, axis: int) -> Array:
    return _apply_along(x, axis, _log_distribution)


def _log_distribution(line: list[float]) -> list[float]:
    differences = [value - max(line) for value in line]
    scale = log(sum_exactly(exp(difference) for difference in differences))
    return [difference - scale for difference in differences]


@definition("Hardmax")
def hardmax(x: Array, *, axis: int) -> Array:
    def pick(line: list[float]) -> list[float]:
        greatest = max(range(len(line)), key=lambda i: rank(line[i]))
        return [float(i == greatest) for i in range(len(line))]

    return _apply_along(x, axis, pick)


@definition("LpNormalization")
def lp_normalization(x: Array, *, axis: int, p: int) -> Array:
    def normalize(line: list[float]) -> list[float]:
        norm = (
            sum_exactly(map(abs, line))
            if p == 1
            else sqrt(sum_exactly(value * value for value in line))
        )
        return [0.0 if norm == 0 else divide(value, norm) for value in line]

    return _apply_along(x, axis, normalize)
