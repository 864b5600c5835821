"""Attention in products and a Softmax.  Source: ONNX Attention."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ..operators.dot_attention import scale_of, window_of
from ..tensor import Array
from .rules import Draft, expands

Sizes: TypeAlias = tuple[int, int, int, int]

_BY_HEADS = 4


@expands("Attention")
def attention(
    draft: Draft,
    q: str,
    k: str,
    v: str,
    mask: str = "",
    past_key: str = "",
    past_value: str = "",
    used: str = "",
) -> tuple[str, ...] | None:
    """Softmax(scale · Q·Kᵀ + mask) · V, and 0 for queries that see nothing; all shapes known."""
    given = [name for name in (q, k, v, mask, past_key) if name]
    shapes = [draft.shape(name) for name in given]
    if used or any(shape is None or 0 in shape for shape in shapes):
        return None
    if draft.spec(q).dtype != draft.spec(v).dtype:
        return None
    query = _by_head(draft, q, draft.attributes["q_num_heads"])
    key, value = (
        _with_past(draft, past, _by_head(draft, new, draft.attributes["kv_num_heads"]))
        for new, past in ((k, past_key), (v, past_value))
    )
    sizes = _sizes(draft, query)
    shared = [_repeated(draft, each, sizes[1]) for each in (key, value)]
    turned = draft("Transpose", shared[0], perm=(0, 1, 3, 2))
    scale = scale_of(draft.attributes, sizes[3])
    stages = [draft("MatMul", draft("Mul", query, float(scale)), turned)]
    stages.append(_capped(draft, stages[0]))
    hidden = _hidden(draft, _sizes(draft, key)[2], sizes[2], past_key)
    stages.append(_masked(draft, stages[1], mask, hidden))
    stages.append(_weights(draft, stages[2], safely=bool(mask) or hidden is not None))
    y = draft("MatMul", stages[3], shared[1])
    if draft.spec(q).rank != _BY_HEADS:
        y = draft("Reshape", draft("Transpose", y, perm=(0, 2, 1, 3)), [0, 0, -1])
    found = y, key, value, stages[draft.attributes["qk_matmul_output_mode"]]
    return found[: draft.n_outputs]


def _sizes(draft: Draft, tensor: str) -> Sizes:
    """Return batch, heads, length and elements for each head."""
    shape = draft.shape(tensor)
    assert shape is not None
    batch, heads, length, elements = shape
    return batch, heads, length, elements


def _by_head(draft: Draft, x: str, heads: int | None) -> str:
    if heads is None or draft.spec(x).rank == _BY_HEADS:
        return x
    return draft("Transpose", draft("Reshape", x, [0, 0, heads, -1]), perm=(0, 2, 1, 3))


def _with_past(draft: Draft, past: str, new: str) -> str:
    return draft("Concat", past, new, axis=2) if past else new


def _repeated(draft: Draft, x: str, heads: int) -> str:
    """Return keys or values with a head for each head of queries."""
    batch, shared, length, elements = _sizes(draft, x)
    if heads == shared:
        return x
    apart = draft("Reshape", x, [batch, shared, 1, length, elements])
    filled = draft("Expand", apart, [batch, shared, heads // shared, length, elements])
    return draft("Reshape", filled, [batch, heads, length, elements])


def _capped(draft: Draft, scores: str) -> str:
    cap = float(draft.attributes["softcap"])
    return draft("Mul", draft("Tanh", draft("Div", scores, cap)), cap) if cap else scores


def _hidden(draft: Draft, keys: int, queries: int, past: str) -> Array | None:
    """Return where a key is outside of a query's window; None if there is none."""
    left, right = window_of(draft.attributes)
    if left is None and right is None:
        return None
    before = _sizes(draft, past)[2] if past else 0
    ahead = np.arange(keys) - np.arange(before, before + queries)[:, None]
    far = np.zeros(ahead.shape, bool)
    far |= ahead > (keys if right is None else right)
    far |= -ahead > (keys + queries + before if left is None else left)
    return far


def _masked(draft: Draft, scores: str, mask: str, hidden: Array | None) -> str:
    dtype = draft.spec(scores).dtype
    if hidden is not None:
        scores = draft("Add", scores, np.where(hidden, -np.inf, 0).astype(dtype))
    if not mask:
        return scores
    if draft.spec(mask).dtype == bool:
        bias = draft("Where", mask, np.zeros((), dtype), np.array(-np.inf, dtype))
    else:
        bias = draft.cast(mask, dtype)
    shape, keys = draft.shape(mask), _sizes(draft, scores)[3]
    assert shape is not None
    if shape[-1] < keys:
        unseen = np.full((*shape[:-1], keys - shape[-1]), -np.inf, dtype)
        bias = draft("Concat", bias, unseen, axis=-1)
    return draft("Add", scores, bias)


def _weights(draft: Draft, scores: str, *, safely: bool) -> str:
    """Return a distribution over the keys; `safely`, zeros where all scores are -∞."""
    if not safely:
        return draft("Softmax", scores)
    lowest = np.array(np.finfo(draft.spec(scores).dtype).min)
    greatest = draft("Max", draft("ReduceMax", scores, [-1]), lowest)
    powers = draft("Exp", draft("Sub", scores, greatest))
    total = draft("Max", draft("ReduceSum", powers, [-1]), 1.0)
    return draft("Div", powers, total)
