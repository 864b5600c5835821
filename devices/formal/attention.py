"""Definitions of Attention and LinearAttention: ``op(*inputs, **attributes)``."""

from __future__ import annotations

import math

import numpy as np

from ...graph.values.tensor import Array
from .ieee import exp, largest, sum_exactly
from .registry import at, definition, indices, table

_BY_HEADS = 4
_CAPPED, _MASKED, _WEIGHTS = 1, 2, 3


@definition("Attention")
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: bool,
    kv_num_heads: int | None,
    left_window_size: int,
    q_num_heads: int | None,
    qk_matmul_output_mode: int,
    right_window_size: int,
    scale: float | None,
    softcap: float,
    softmax_precision: str | None,
) -> tuple[Array, Array, Array, Array]:
    # Y[i] = Σⱼ softmaxⱼ(cap(scale · q[i]·k[j]) + mask[i, j]) · v[j], over the keys visible to i.
    # The result is 0 without visible keys. Query i is at place i after the past, or is one of the
    # last of the used keys. It sees keys in its window, up to itself if causal, that are used and
    # have a mask that is neither False nor -∞.
    query, key = _split_heads(q, q_num_heads), _join(past_key, _split_heads(k, kv_num_heads))
    value = _join(past_value, _split_heads(v, kv_num_heads))
    batch, heads, queries, depth = query.shape
    keys, group = key.shape[2], max(1, heads // max(1, key.shape[1]))
    factor = 1 / math.sqrt(max(depth, 1)) if scale is None else scale
    right = 0 if is_causal else right_window_size
    past = 0 if past_key is None else past_key.shape[2]

    def hidden(n: int, h: int, i: int, j: int) -> bool:
        used = keys if nonpad_kv_seqlen is None else at(nonpad_kv_seqlen.reshape(-1), n)
        place = i + (past if nonpad_kv_seqlen is None else used - queries)
        outside = 0 <= right < j - place or 0 <= left_window_size < place - j
        return outside or j >= used or _read_mask(attn_mask, n, h, i, j) == -math.inf

    y = np.full((batch, heads, queries, value.shape[3]), 0.0, object)
    scores = np.empty((batch, heads, queries, keys), object)
    for n, h, i in indices((batch, heads, queries)):
        own = [at(query, n, h, i, d) for d in range(depth)]
        stages = [_compute_scores(own, key[n, h // group], factor)]
        stages.append([_cap(score, softcap) for score in stages[0]])
        stages.append(
            [
                -math.inf if hidden(n, h, i, j) else score + _read_mask(attn_mask, n, h, i, j)
                for j, score in enumerate(stages[_CAPPED])
            ]
        )
        stages.append(_normalize(stages[_MASKED]))
        scores[n, h, i] = stages[qk_matmul_output_mode]
        for d in range(value.shape[3]):
            y[n, h, i, d] = sum_exactly(
                weight * at(value, n, h // group, j, d)
                for j, weight in enumerate(stages[_WEIGHTS])
                if weight
            )
    if q.ndim != _BY_HEADS:
        y = y.swapaxes(1, 2).reshape(batch, queries, heads * value.shape[3])
    return y, key, value, scores


def _split_heads(x: Array, heads: int | None) -> Array:
    if heads is None or x.ndim == _BY_HEADS:
        return x
    batch, length, elements = x.shape
    return x.reshape(batch, length, heads, elements // heads).swapaxes(1, 2)


def _join(past: Array | None, new: Array) -> Array:
    return new if past is None else np.concatenate([past, new], 2)


def _read_mask(mask: Array | None, n: int, h: int, i: int, j: int) -> float:
    """Return the number in `mask` to add to score (`n`, `h`, `i`, `j`).

    It is -∞ where the mask is False, and after its last key.
    """
    if mask is None:
        return 0.0
    if j >= mask.shape[-1]:
        return -math.inf
    own = zip(mask.shape[:-1], (n, h, i)[4 - mask.ndim :], strict=True)
    value = at(mask, *(0 if length == 1 else place for length, place in own), j)
    if mask.dtype == np.bool_:
        return 0.0 if value else -math.inf
    return float(value)


def _compute_scores(query: list[float], keys: Array, factor: float) -> list[float]:
    depth = range(len(query))
    return [
        factor * sum_exactly(query[d] * at(keys, j, d) for d in depth) for j in range(len(keys))
    ]


def _cap(score: float, cap: float) -> float:
    return cap * math.tanh(score / cap) if cap else score


def _normalize(scores: list[float]) -> list[float]:
    greatest = largest(scores) if scores else -math.inf
    if greatest == -math.inf:
        return [0.0] * len(scores)
    powers = [exp(score - greatest) for score in scores]
    total = sum_exactly(powers)
    return [power / total for power in powers]


@definition("LinearAttention")
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float,
    chunk_size: int,
    update_rule: str,
) -> tuple[Array, Array]:
    # Y = scale · qᵀ·S, where step by step S ← exp(decay)·S + beta·k ⊗ (v - Sᵀ·k).
    # Sᵀ·k uses the decayed state, and is 0 without beta. Heads of queries share those of keys.
    batch, steps, _ = query.shape
    depth, width = key.shape[2] // kv_num_heads, value.shape[2] // kv_num_heads
    factor, shared = scale or 1 / math.sqrt(depth), q_num_heads // kv_num_heads
    shape = (batch, kv_num_heads, depth, width)
    state = table(shape, lambda *i: 0.0 if past_state is None else at(past_state, *i))
    y = np.empty((batch, steps, q_num_heads * width), object)
    for n, t, head in indices((batch, steps, kv_num_heads)):
        k = [at(key, n, t, head * depth + i) for i in range(depth)]
        v = [at(value, n, t, head * width + j) for j in range(width)]
        _apply_decay(state[n, head], decay, (n, t, head), kv_num_heads)
        _write(state[n, head], k, v, _read_gate(beta, (n, t, head), kv_num_heads, 0))
        for group, j in indices((shared, width)):
            q = head * shared + group
            terms = (at(query, n, t, q * depth + i) * state[n, head, i, j] for i in range(depth))
            y[n, t, q * width + j] = factor * sum_exactly(terms)
    return y, state


def _apply_decay(
    state: Array, decay: Array | None, index: tuple[int, int, int], heads: int
) -> None:
    """Multiply the `state` of a head by exp(`decay`) at `index`: (batch, step, head).

    Each of the `heads` has one number for all rows, or one for each.
    """
    for i, j in indices(state.shape):
        gate = _read_gate(decay, index, heads, i)
        state[i, j] *= 1.0 if gate is None else exp(gate)


def _write(state: Array, k: list[float], v: list[float], beta: float | None) -> None:
    if beta is not None:
        columns = ([state[i, j] * k[i] for i in range(len(k))] for j in range(len(v)))
        found = map(sum_exactly, columns)
        v = [beta * (wanted - had) for wanted, had in zip(v, found, strict=True)]
    for i, j in indices(state.shape):
        state[i, j] += k[i] * v[j]


def _read_gate(gate: Array | None, index: tuple[int, int, int], heads: int, i: int) -> float | None:
    """Return the number of `gate` for row `i` of one of `heads`; None without gate.

    `index` is (batch, step, head).
    """
    if gate is None:
        return None
    n, t, head = index
    per_head = gate.shape[2] // heads
    place = head * per_head + i % per_head if per_head else 0
    return float(at(gate, n, t, place))
