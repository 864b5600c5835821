"""Attention as products and a Softmax. Source: ONNX Attention."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ..operators.attention import get_scale, get_window
from ..values.tensor import Array
from .rules import DecompositionBuilder, decomposition

Sizes: TypeAlias = tuple[int, int, int, int]

_BY_HEADS = 4


@decomposition("Attention")
def attention(
    builder: DecompositionBuilder,
    q: str,
    k: str,
    v: str,
    mask: str = "",
    past_key: str = "",
    past_value: str = "",
    used: str = "",
) -> tuple[str, ...] | None:
    given = [name for name in (q, k, v, mask, past_key) if name]
    shapes = [builder.shape(name) for name in given]
    if used or any(shape is None or 0 in shape for shape in shapes):
        return None
    if builder.spec(q).dtype != builder.spec(v).dtype:
        return None
    query = _split_heads(builder, q, builder.attributes["q_num_heads"])
    key, value = (
        _prepend_past(builder, past, _split_heads(builder, new, builder.attributes["kv_num_heads"]))
        for new, past in ((k, past_key), (v, past_value))
    )
    sizes = _get_sizes(builder, query)
    shared = [_repeat_heads(builder, each, sizes[1]) for each in (key, value)]
    turned = builder("Transpose", shared[0], perm=(0, 1, 3, 2))
    scale = get_scale(builder.attributes, sizes[3])
    stages = [builder("MatMul", builder("Mul", query, float(scale)), turned)]
    stages.append(_cap(builder, stages[0]))
    hidden = _find_hidden(builder, _get_sizes(builder, key)[2], sizes[2], past_key)
    stages.append(_mask(builder, stages[1], mask, hidden))
    stages.append(_compute_weights(builder, stages[2], safely=bool(mask) or hidden is not None))
    y = builder("MatMul", stages[3], shared[1])
    if builder.spec(q).rank != _BY_HEADS:
        y = builder("Reshape", builder("Transpose", y, perm=(0, 2, 1, 3)), [0, 0, -1])
    found = y, key, value, stages[builder.attributes["qk_matmul_output_mode"]]
    return found[: builder.n_outputs]


def _get_sizes(builder: DecompositionBuilder, tensor: str) -> Sizes:
    shape = builder.shape(tensor)
    assert shape is not None
    batch, heads, length, elements = shape
    return batch, heads, length, elements


def _split_heads(builder: DecompositionBuilder, x: str, heads: int | None) -> str:
    if heads is None or builder.spec(x).rank == _BY_HEADS:
        return x
    return builder("Transpose", builder("Reshape", x, [0, 0, heads, -1]), perm=(0, 2, 1, 3))


def _prepend_past(builder: DecompositionBuilder, past: str, new: str) -> str:
    return builder("Concat", past, new, axis=2) if past else new


def _repeat_heads(builder: DecompositionBuilder, x: str, heads: int) -> str:
    """Repeat keys or values `x` with `builder`, so that they have as many `heads` as queries."""
    batch, shared, length, elements = _get_sizes(builder, x)
    if heads == shared:
        return x
    apart = builder("Reshape", x, [batch, shared, 1, length, elements])
    filled = builder("Expand", apart, [batch, shared, heads // shared, length, elements])
    return builder("Reshape", filled, [batch, heads, length, elements])


def _cap(builder: DecompositionBuilder, scores: str) -> str:
    cap = float(builder.attributes["softcap"])
    return builder("Mul", builder("Tanh", builder("Div", scores, cap)), cap) if cap else scores


def _find_hidden(builder: DecompositionBuilder, keys: int, queries: int, past: str) -> Array | None:
    """Return a mask of keys that the window hides from queries after the `past`, or None."""
    left, right = get_window(builder.attributes)
    if left is None and right is None:
        return None
    before = _get_sizes(builder, past)[2] if past else 0
    ahead = np.arange(keys) - np.arange(before, before + queries)[:, None]
    far = np.zeros(ahead.shape, bool)
    far |= ahead > (keys if right is None else right)
    far |= -ahead > (keys + queries + before if left is None else left)
    return far


def _mask(builder: DecompositionBuilder, scores: str, mask: str, hidden: Array | None) -> str:
    dtype = builder.spec(scores).dtype
    if hidden is not None:
        scores = builder("Add", scores, np.where(hidden, -np.inf, 0).astype(dtype))
    if not mask:
        return scores
    if builder.spec(mask).dtype == bool:
        bias = builder("Where", mask, np.zeros((), dtype), np.array(-np.inf, dtype))
    else:
        bias = builder.cast(mask, dtype)
    shape, keys = builder.shape(mask), _get_sizes(builder, scores)[3]
    assert shape is not None
    if shape[-1] < keys:
        unseen = np.full((*shape[:-1], keys - shape[-1]), -np.inf, dtype)
        bias = builder("Concat", bias, unseen, axis=-1)
    return builder("Add", scores, bias)


def _compute_weights(builder: DecompositionBuilder, scores: str, *, safely: bool) -> str:
    """Write the softmax of `scores` with `builder`; `safely` makes it 0 if all scores are -∞."""
    if not safely:
        return builder("Softmax", scores)
    lowest = np.array(np.finfo(builder.spec(scores).dtype).min)
    greatest = builder("Max", builder("ReduceMax", scores, [-1]), lowest)
    powers = builder("Exp", builder("Sub", scores, greatest))
    total = builder("Max", builder("ReduceSum", powers, [-1]), 1.0)
    return builder("Div", powers, total)
