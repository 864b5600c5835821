"""Comparison of a library's attention with the generated kernel's, on random inputs.

A choice by time alone would accept a wrong library: on untested hardware or versions, or with masks
that it reads differently. So its results are compared once for each shape, before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...graph.operators.attention import MASK
from ...graph.values.tensor import Array
from ..memory import View
from .attention import StaticAttention
from .libraries import RefusedError
from .parts import Part
from .trials import TrialRun

ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-11}
"""Greatest relative change by rounding to the dtype, or to tensor cores' float32."""
ROUNDINGS = 16
"""Roundings that may add up, of either sign: in scores, powers, weights and results."""
SPREAD = 4.0
"""Standard deviation of scores: few keys have most of the weight. So results are as large as
values, and results of other keys or another scale differ by as much."""
PERIOD = 65_521
"""Count of random numbers, which repeat. A prime: rows and heads begin at different ones."""
QUERY, MOST = 0, 1000.0
"""The input that scales scores, and the limit of its factor."""
KINDS_OF_ROWS = 4
"""Kinds of masks: all keys visible, the first hidden, the last hidden, or all hidden."""


def check_agreement(
    trial: TrialRun, attention: StaticAttention, ours: Sequence[Part], theirs: Sequence[Part]
) -> None:
    """Compare two ways to compute `attention`, the only node of `trial`: `ours` and `theirs`.

    Raises RefusedError if their results differ by more than rounding, or a library refuses its
    part.
    """
    (node,) = trial.graph.nodes
    (y,) = node.outputs
    for turn in range(1 if attention.mask is None else KINDS_OF_ROWS):
        for index, name in enumerate(node.inputs):
            if name in trial.views:  # constants keep their values
                trial.write(name, _generate_input(attention, index, trial.views[name], turn))
        results = []
        for parts in (ours, theirs):
            trial.write(y, np.full_like(trial.read(y), np.nan))
            trial.run(parts)
            results.append(trial.read(y).astype(np.float32))
        expected, found = results
        near = ROUNDINGS * ROUNDED[attention.dtype] * np.abs(expected).max()
        if not (np.abs(expected - found) <= near).all():  # False for NaN
            raise RefusedError(f"results of {attention} are not those of the generated kernel")


def _generate_input(attention: StaticAttention, index: int, view: View, turn: int) -> Array:
    """Return random numbers, like `view`, for input `index` of `attention`.

    A mask hides other keys in each `turn`.
    """
    numbers = np.random.default_rng(index).standard_normal(PERIOD).astype(np.float32)
    if index == QUERY:
        strength = abs(attention.scale) * math.sqrt(attention.shape.depth)
        numbers *= min(SPREAD / max(strength, 1 / MOST), MOST)
    made = np.resize(numbers, view.spec.static_shape)
    if index == MASK:
        rows = made.reshape(-1, made.shape[-1])
        few, kinds = rows.shape[1] // 4, (np.arange(len(rows)) + turn) % KINDS_OF_ROWS
        rows[kinds == 1, :-few] = rows[kinds == 2, few:] = rows[kinds == 3] = -np.inf
    return made.astype(view.spec.dtype)
