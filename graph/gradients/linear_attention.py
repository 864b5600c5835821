"""The gradient of LinearAttention: a Scan over its steps, which is gone back through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..operators.attention import BETA, DECAY, PAST, heads_of
from .adjoint import Adjoint
from .elementwise import Gradients
from .formula import Term
from .registry import gradient
from .sampling import widened
from .stepping import Sliced, scan
from .via_decomposition import Inputs, through

_STEPS = 1
"""The axis of the sequence."""


@gradient("LinearAttention")
def linear_attention(at: Adjoint) -> Gradients:
    """From the last step to the first, with the state that each began with."""
    yield from through(at, partial(_scanned, at))


def _scanned(at: Adjoint, inputs: Inputs) -> list[Term]:
    """Return y and the last state."""
    formula, heads = at.formula, heads_of(at.node.attributes)
    wide = [None if x is None else widened(x) for x in (*inputs, *[None] * 3)]
    dtype = np.result_type(*(x.dtype for x in wide if x is not None))
    query, key, value = (x.cast(dtype) for x in wide[:3] if x is not None)
    past, decay, beta = (None if x is None else x.cast(dtype) for x in wide[PAST : BETA + 1])
    shared = (heads.keys, heads.queries // heads.keys)
    slices = [_by_head(query, *shared), _by_head(key, heads.keys), _by_head(value, heads.keys)]
    depth, width = (formula.shape_of(x, 3, 4) for x in slices[1:])
    batch, keys = formula.shape_of(query, 0, 1), formula.constant([heads.keys])
    if past is None:
        past = formula.filled(formula.joined(batch, keys, depth, width), 0, dtype)
    if decay is not None:
        slices.append(_by_head(decay.op("Exp"), heads.keys))
    if beta is not None:
        slices.append(beta.op("Unsqueeze", formula.constant([3])))
    step = partial(_step, at.optional(DECAY) is not None, at.optional(BETA) is not None)
    state, rows = scan(formula, step, [past], [Sliced(x, _STEPS) for x in slices])
    shape = formula.joined(formula.shape_of(query, 0, 2), width * heads.queries)
    y = rows.transposed((1, 0, 2, 3, 4)).reshaped(shape)
    y = y * at["scale"] if at["scale"] else y / depth.cast(dtype).op("Sqrt")
    return [y.cast(at.output().dtype), state.cast(at.output(1).dtype)]


def _by_head(x: Term, *heads: int) -> Term:
    """Return (batch, steps, *heads, elements) of (batch, steps, all elements)."""
    formula, count = x.formula, x.formula.constant(heads)
    each = formula.shape_of(x, 2, 3) / formula.constant([int(np.prod(heads))])
    return x.reshaped(formula.joined(formula.shape_of(x, 0, 2), count, each))


def _step(
    decays: bool,
    corrects: bool,
    states: Sequence[Term],
    slices: Sequence[Term],
    captured: Sequence[Term],
) -> tuple[list[Term], list[Term]]:
    """Return the state after one step, and what the queries find in it."""
    (state,), (query, key, value, *gates) = states, slices
    column, row = query.formula.constant([-1]), query.formula.constant([-2])
    value = value.op("Unsqueeze", row)
    if decays:
        state = state * gates[0].op("Unsqueeze", column)
    if corrects:
        found = key.op("Unsqueeze", row).op("MatMul", state)
        value = (value - found) * gates[-1].op("Unsqueeze", column)
    state = state + key.op("Unsqueeze", column) * value
    return [state], [query.op("MatMul", state)]
