"""Gradients of attention: weights are recomputed, and states are traversed backward.

With weights W, their gradients are those of the softmax, W·(dW - Σ dW·W), and dV = Wᵀ·dY. Source:
Dao, Fu, Ermon, Rudra and Ré, *FlashAttention* (2022), appendix B.2; here all weights of a head are
in memory at a time. Heads of queries that share a head of keys are rows of one matrix.
LinearAttention is a Scan over its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ..operators.attention import (
    BETA,
    CAPPED,
    DECAY,
    MASK,
    MASKED,
    PAST,
    PAST_KEY,
    PAST_VALUE,
    PRESENT_KEY,
    PRESENT_VALUE,
    RAW,
    SCORES,
    USED,
    WEIGHTS,
    get_heads,
    get_scale,
    get_window,
)
from .elementwise import Gradients
from .formula import Formula, Term
from .linear_algebra import multiply
from .movement import make_range
from .registry import Adjoint, gradient
from .sampling import widen
from .stepping import Sliced, scan
from .via_decomposition import Inputs, differentiate_through

_LENGTH = 2
"""The axis of the sequence in (batch, heads, length, elements)."""


class _Heads(NamedTuple):
    """The number of heads of queries, and of keys and values."""

    queries: int
    shared: int

    def folded(self, x: Term) -> Term:
        if self.queries == self.shared:
            return x
        formula = x.formula
        # Heads that share keys are neighbours: concatenated they are one matrix, without a copy.
        rows = formula.shape_of(x, 2, 3) * (self.queries // self.shared)
        head = formula.joined(formula.shape_of(x, 0, 1), formula.constant([self.shared]))
        return x.reshaped(formula.joined(head, rows, formula.shape_of(x, 3)))

    def unfolded(self, x: Term, length: Term) -> Term:
        """Return the matrices `x`, with `length` rows, in the shape (batch, heads, length, n)."""
        if self.queries == self.shared:
            return x
        formula = x.formula
        head = formula.joined(formula.shape_of(x, 0, 1), formula.constant([self.queries]))
        return x.reshaped(formula.joined(head, length, formula.shape_of(x, 3)))


@gradient("Attention")
def attention(at: Adjoint) -> Gradients:
    heads = _count_heads(at)
    q, key, value = _prepare_operands(at, heads)
    depth = (q.spec.shape or ("?",))[-1]
    if at["scale"] is None and not isinstance(depth, int):
        raise at.refused_error("the depth of its heads is not known", "give it a scale")
    scale = get_scale(at.node.attributes, depth if isinstance(depth, int) else 1)
    # In the dtype of the computation: sums of 16-bit numbers over all keys would lose too many
    # digits.
    rows, dy = at.formula.shape_of(q, 2, 3), _split_heads(at.dy, heads.queries).cast(q.dtype)
    folded = heads.folded(q)
    raw = heads.unfolded(multiply(folded, key, flip_b=True), rows) * scale
    capped, slope = _cap(at, raw)
    weights = _compute_weights(at, capped, rows)
    through = heads.unfolded(multiply(heads.folded(dy), value, flip_b=True), rows)
    g = _add_scores(at, WEIGHTS, through)
    # Scores are an output of one of four stages: their gradient is added at that stage.
    g = weights * (g - (g * weights).sum([-1]))
    g = _add_scores(at, MASKED, g)
    if at.wants(MASK):
        yield MASK, _differentiate_mask(at, g)
    g = _add_scores(at, CAPPED, g)
    g = _add_scores(at, RAW, g if slope is None else g * slope) * scale
    # The following products sum over heads that share keys, as rows of one matrix.
    across = heads.folded(g)
    if at.wants(0):
        made = heads.unfolded(across.op("MatMul", key), rows)
        yield 0, _to_layout_of(made, at.input(0))
    if at.wants(1) or at.wants(PAST_KEY):
        made = multiply(across, folded, flip_a=True)
        yield from _split(at, made, PRESENT_KEY, 1, PAST_KEY)
    if at.wants(2) or at.wants(PAST_VALUE):
        made = multiply(heads.folded(weights), heads.folded(dy), flip_a=True)
        yield from _split(at, made, PRESENT_VALUE, 2, PAST_VALUE)


def _count_heads(at: Adjoint) -> _Heads:
    found = []
    for index, attribute in ((0, "q_num_heads"), (1, "kv_num_heads")):
        x = at.input(index)
        shape = x.spec.shape or ("?",) * 4
        count = shape[1] if len(shape) == 4 else at[attribute]
        if not isinstance(count, int):
            raise at.refused_error("its number of heads is not known", "declare it as a number")
        found.append(count)
    return _Heads(*found)


def _split_heads(x: Term, count: int) -> Term:
    if x.rank == 4:
        return x
    formula = x.formula
    last = formula.shape_of(x, 2) / formula.constant([count])
    shape = formula.joined(formula.shape_of(x, 0, 2), formula.constant([count]), last)
    return x.reshaped(shape).transposed([0, 2, 1, 3])


def _to_layout_of(x: Term, like: Term) -> Term:
    """Return `x`, (batch, heads, length, elements), in the layout of the input `like`."""
    if like.rank == 4:
        return x
    return x.transposed([0, 2, 1, 3]).reshaped(x.formula.shape_of(like))


def _prepare_operands(at: Adjoint, heads: _Heads) -> tuple[Term, Term, Term]:
    """Return queries, keys and values, after those of the past, widened, split by `heads`."""
    q = at.input(0)
    wide = q.dtype if q.dtype == np.float64 else np.dtype(np.float32)
    joined = []
    for index, past in ((1, PAST_KEY), (2, PAST_VALUE)):
        new, old = _split_heads(at.input(index), heads.shared), at.optional(past)
        whole = new if old is None else old.op("Concat", new, axis=_LENGTH)
        joined.append(whole.cast(wide))
    return _split_heads(q, heads.queries).cast(wide), joined[0], joined[1]


def _cap(at: Adjoint, raw: Term) -> tuple[Term, Term | None]:
    """Return the scores `raw` after the soft cap of `at`, and its slope, None without a cap."""
    cap = at["softcap"]
    if not cap:
        return raw, None
    bent = (raw * (1 / cap)).op("Tanh")
    return bent * cap, 1 - bent * bent


def _compute_weights(at: Adjoint, scores: Term, rows: Term) -> Term:
    """Return the softmax of `scores` over the keys that `at` shows each of `rows` queries."""
    keys = at.formula.shape_of(scores, 3)
    mask, hidden = _mask(at, scores, keys)
    hidden += _hide_keys(at, rows, keys)
    if mask is not None:
        # Hidden scores are set below: differences of infinities would be nan.
        scores = scores + mask.where(mask.op("IsInf").op("Not"))
    if not hidden:
        return scores.op("Softmax")
    all_hidden = hidden[0]
    for more in hidden[1:]:
        all_hidden = all_hidden.op("Or", more)
    visible = all_hidden.op("Not")
    least = float(np.finfo(scores.dtype).min)
    # The least number rather than -inf, so that a query without visible keys produces no nan.
    return scores.where(visible, least).op("Softmax").where(visible)


def _mask(at: Adjoint, scores: Term, keys: Term) -> tuple[Term | None, list[Term]]:
    """Return the mask that `at` adds to `scores`, or None, and masks that hide some `keys`."""
    mask, formula = at.optional(MASK), at.formula
    if mask is None:
        return None, []
    is_bool = mask.dtype == np.bool_
    mask = mask.cast(scores.dtype)
    seen = formula.shape_of(mask, mask.rank - 1)
    known = seen.value is not None and keys.value is not None
    # Pad unless lengths are known to agree.
    if not (known and seen.value == keys.value):
        padding = formula.constant(0 if is_bool else -np.inf, mask.dtype)
        amounts = formula.joined(formula.constant([0]), keys - seen)
        mask = mask.op("Pad", amounts, padding, formula.constant([mask.rank - 1]))
    if is_bool:
        return None, [(mask > 0).op("Not")]
    return mask, [mask.op("IsInf", detect_positive=False)]


def _hide_keys(at: Adjoint, rows: Term, keys: Term) -> list[Term]:
    """Return masks of the keys that `at` hides: outside a query's window, or padding."""
    left, right = get_window(at.node.attributes)
    used, formula = at.optional(USED), at.formula
    if left is None and right is None and used is None:
        return []
    column, row = make_range(keys), make_range(rows).op("Unsqueeze", formula.constant([1]))
    found = []
    if used is not None:
        used = used.cast("int64").op("Unsqueeze", formula.constant([1, 2, 3]))
        # The last query is at the last used key, the others are before it.
        place = row + used - rows
        found.append((column < used).op("Not"))
    else:
        place = row + _measure_past(at, formula)
    if right is not None:
        found.append(column - place > right)
    if left is not None:
        found.append(place - column > left)
    return found


def _measure_past(at: Adjoint, formula: Formula) -> Term:
    past = at.optional(PAST_KEY)
    return formula.constant([0]) if past is None else formula.shape_of(past, 2, 3)


def _add_scores(at: Adjoint, stage: int, g: Term) -> Term:
    given: Sequence[Term | None] = (*at.gradients, *[None] * 4)
    own = given[SCORES]
    if own is None or at["qk_matmul_output_mode"] != stage:
        return g
    return g + own.cast(g.dtype)


def _differentiate_mask(at: Adjoint, g: Term) -> Term:
    mask = at.input(MASK)
    formula, shape = at.formula, (g.spec.shape or ())[:-1]
    seen = formula.shape_of(mask, mask.rank - 1)
    # Keys after the end of the mask were hidden, and have no part in its gradient.
    cut = g.op("Slice", formula.constant([0]), seen, formula.constant([3]))
    return at.summed(cut, mask, (*shape, (mask.spec.shape or ("?",))[-1]))


def _split(at: Adjoint, g: Term, present: int, new: int, past: int) -> Gradients:
    """Yield the gradient `g` plus that of output `present` for inputs `past`, if any, and `new`."""
    given = (*at.gradients, None, None, None)[present]
    if given is not None:
        g = g + given.cast(g.dtype)
    old = at.optional(past)
    if old is None:
        yield new, _to_layout_of(g, at.input(new))
        return
    formula = at.formula
    before = formula.shape_of(old, _LENGTH, 3)
    lengths = formula.joined(before, formula.shape_of(g, _LENGTH, 3) - before)
    first, second = formula.split("Split", g, lengths, outputs=2, axis=_LENGTH)
    yield past, first
    yield new, _to_layout_of(second, at.input(new))


_STEPS = 1
"""The axis of the sequence."""


@gradient("LinearAttention")
def linear_attention(at: Adjoint) -> Gradients:
    # From the last step to the first, with each step's initial state.
    yield from differentiate_through(at, partial(_scan, at))


def _scan(at: Adjoint, inputs: Inputs) -> list[Term]:
    formula, heads = at.formula, get_heads(at.node.attributes)
    wide = [None if x is None else widen(x) for x in (*inputs, *[None] * 3)]
    dtype = np.result_type(*(x.dtype for x in wide if x is not None))
    query, key, value = (x.cast(dtype) for x in wide[:3] if x is not None)
    past, decay, beta = (None if x is None else x.cast(dtype) for x in wide[PAST : BETA + 1])
    shared = (heads.keys, heads.queries // heads.keys)
    slices = [
        _split_steps(query, *shared),
        _split_steps(key, heads.keys),
        _split_steps(value, heads.keys),
    ]
    depth, width = (formula.shape_of(x, 3, 4) for x in slices[1:])
    batch, keys = formula.shape_of(query, 0, 1), formula.constant([heads.keys])
    if past is None:
        past = formula.filled(formula.joined(batch, keys, depth, width), 0, dtype)
    if decay is not None:
        slices.append(_split_steps(decay.op("Exp"), heads.keys))
    if beta is not None:
        slices.append(beta.op("Unsqueeze", formula.constant([3])))
    step = partial(_step, at.optional(DECAY) is not None, at.optional(BETA) is not None)
    state, rows = scan(formula, step, [past], [Sliced(x, _STEPS) for x in slices])
    shape = formula.joined(formula.shape_of(query, 0, 2), width * heads.queries)
    y = rows.transposed((1, 0, 2, 3, 4)).reshaped(shape)
    y = y * at["scale"] if at["scale"] else y / depth.cast(dtype).op("Sqrt")
    return [y.cast(at.output().dtype), state.cast(at.output(1).dtype)]


def _split_steps(x: Term, *heads: int) -> Term:
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
    """Return the new `states` after a step over `slices`, and the output for its queries.

    With `decays` gates scale the state, with `corrects` corrections; nothing is `captured`.
    """
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
