"""Comparison of a library's attention with our own kernel's, on numbers made up for it.

A choice by time alone would take a library that is wrong: on hardware or in a version with which
nobody has seen its results, or for masks that it reads in another way. So its results are looked at
once for each shape, before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...graph.operators.attention import MASK
from ...graph.tensor import Array
from ..memory import View
from .attention import StaticAttention
from .libraries import RefusedError
from .parts import Part
from .trials import TrialRun

ROUNDED = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-11}
"""By how much a number changes at most, relatively, when it is rounded to the dtype, or to what
tensor cores make of float32."""
ROUNDINGS = 16
"""That many may add up: of scores, which are powers then, weights and results, in either way."""
SPREAD = 4.0
"""Standard deviation of scores: few keys have nearly all of the weight. So results are as large as
values, and those by other keys or another scale differ by as much."""
PERIOD = 65_521
"""Numbers that are drawn; they repeat. A prime: no two rows or heads begin at the same one."""
QUERY, MOST = 0, 1000.0
"""The input whose numbers decide how large scores are; and how large these may be on average."""
KINDS_OF_ROWS = 4
"""Of masks: all keys are seen, those in front are hidden, those behind, or all."""


def check_agreement(
    trial: TrialRun, attention: StaticAttention, ours: Sequence[Part], theirs: Sequence[Part]
) -> None:
    """Compare two ways of computing an attention, the only node of the graph that is tried.

    Raises
    ------
    RefusedError
        If their results differ by more than roundings, or a library does not take its part.
    """
    (node,) = trial.graph.nodes
    (y,) = node.outputs
    for turn in range(1 if attention.mask is None else KINDS_OF_ROWS):
        for index, name in enumerate(node.inputs):
            if name in trial.views:  # constants are what they are
                trial.write(name, _made_up(attention, index, trial.views[name], turn))
        results = []
        for parts in (ours, theirs):
            trial.write(y, np.full_like(trial.read(y), np.nan))
            trial.run(parts)
            results.append(trial.read(y).astype(np.float32))
        expected, found = results
        near = ROUNDINGS * ROUNDED[attention.dtype] * np.abs(expected).max()
        if not (np.abs(expected - found) <= near).all():  # as where one is no number
            raise RefusedError(f"results of {attention} are not those of the generated kernel")


def _made_up(attention: StaticAttention, index: int, view: View, turn: int) -> Array:
    """Return an input; in four turns, each row of a mask hides each kind of keys."""
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
