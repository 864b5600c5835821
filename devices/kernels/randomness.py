"""Philox, by numpy's own generator, and the normal numbers of its words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.operators.normal_quantile import (
    CENTRAL,
    FAR,
    FARTHEST,
    HALF,
    HALF_SQUARED,
    LOG_2,
    LOG_TERMS,
    NEAR,
    NEAR_FROM,
    ROOT_HALF,
    Ratio,
)
from ...graph.operators.randomness import INTEGER, PHILOX, UNIFORM
from ...graph.values.tensor import Array
from .registry import ArrayModule, Arrays, kernel

_WORDS = 1 << 12
"""Words drawn at a time, so that values computed from them stay in a cache."""


@kernel(PHILOX, host="its numbers are drawn by numpy")
def philox(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # Element i from word i of the blocks of the key, the sequence and block numbers from 1 on.
    # Source: `plait.graph.operators.randomness`.
    y = outputs[0].reshape(-1)
    seed, item = inputs[0].tolist()
    key = [0 if attributes["seeded"] else seed, attributes["sequence"]]
    generator = np.random.Philox(  # which steps on before it makes a block
        key=np.array(key, np.uint64), counter=np.array([0, item, 0, 0], np.uint64)
    )
    fill = {INTEGER: _copy, UNIFORM: _fill_uniform}.get(attributes["distribution"], _fill_normal)
    per_word = 8 // y.itemsize
    for start in range(0, y.size, _WORDS * per_word):
        part = y[start : start + _WORDS * per_word]
        words = generator.random_raw(-(-part.size // per_word)).astype("<u8", copy=False)
        fill(words.view(f"<u{y.itemsize}")[: part.size], part)


def _copy(words: Array, y: Array) -> None:
    y[...] = words


def _fill_uniform(words: Array, y: Array) -> None:
    digits = np.finfo(y.dtype).nmant + 1
    bits = 8 * words.itemsize
    np.multiply(words >> words.dtype.type(bits - digits), y.dtype.type(0.5**digits), out=y)


def _fill_normal(words: Array, y: Array) -> None:
    digits = min(8 * words.itemsize, 52)
    p = (words >> words.dtype.type(8 * words.itemsize - digits)).astype(np.float64)
    p += 0.5
    p *= 0.5**digits
    y[...] = compute_normal_quantiles(p)


def compute_normal_quantiles(p: Array) -> Array:
    """Return `normal_quantile` of each element of `p`: the same operations in the same order."""
    q = p - 0.5
    # Values for the tails are meaningless here, and replaced below.
    z = q * _evaluate_ratio(CENTRAL, HALF_SQUARED - q * q)
    (tails,) = np.nonzero(np.abs(q) > HALF)
    if tails.size:
        side = q[tails]
        r = np.sqrt(-_log(np.where(side < 0, p[tails], 1.0 - p[tails])))
        far = r > FARTHEST
        found = _evaluate_ratio(NEAR, r - NEAR_FROM)
        found[far] = _evaluate_ratio(FAR, r[far] - FARTHEST)
        z[tails] = np.where(side < 0, -found, found)
    return z


def _evaluate_ratio(ratio: Ratio, x: Array) -> Array:
    made: Array = _evaluate_polynomial(ratio.above, x) / _evaluate_polynomial(ratio.below, x)
    return made


def _evaluate_polynomial(coefficients: Sequence[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for one in coefficients[1:]:
        total *= x
        total += one
    return total


def _log(x: Array) -> Array:
    m, exponent = np.frexp(x)
    low = m < ROOT_HALF
    m = np.where(low, m * 2, m)
    s = (m - 1.0) / (m + 1.0)
    made: Array = (exponent - low) * LOG_2 + 2.0 * s * _evaluate_polynomial(LOG_TERMS, s * s)
    return made
