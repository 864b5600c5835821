"""The definition of LinearAttention."""

from __future__ import annotations

import math

import numpy as np

from ...graph.tensor import Array
from .ieee import exact_sum, exp
from .indices import at, indices, table
from .registry import definition


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
    """Y = scale · qᵀ·S, where step by step S ← exp(decay)·S + beta·k ⊗ (v - Sᵀ·k).

    Sᵀ·k is of the state decayed, and only there where there is a beta. Heads of queries share those
    of keys. Source: ONNX LinearAttention.
    """
    batch, steps, _ = query.shape
    depth, width = key.shape[2] // kv_num_heads, value.shape[2] // kv_num_heads
    factor, shared = scale or 1 / math.sqrt(depth), q_num_heads // kv_num_heads
    shape = (batch, kv_num_heads, depth, width)
    state = table(shape, lambda *i: 0.0 if past_state is None else at(past_state, *i))
    y = np.empty((batch, steps, q_num_heads * width), object)
    for n, t, head in indices((batch, steps, kv_num_heads)):
        k = [at(key, n, t, head * depth + i) for i in range(depth)]
        v = [at(value, n, t, head * width + j) for j in range(width)]
        _decay(state[n, head], decay, (n, t, head), kv_num_heads)
        _write(state[n, head], k, v, _gate(beta, (n, t, head), kv_num_heads, 0))
        for group, j in indices((shared, width)):
            q = head * shared + group
            terms = (at(query, n, t, q * depth + i) * state[n, head, i, j] for i in range(depth))
            y[n, t, q * width + j] = factor * exact_sum(terms)
    return y, state


def _decay(state: Array, decay: Array | None, index: tuple[int, int, int], heads: int) -> None:
    """S ← exp(decay) · S, which is one number for a head, or one for each row of its state."""
    for i, j in indices(state.shape):
        gate = _gate(decay, index, heads, i)
        state[i, j] *= 1.0 if gate is None else exp(gate)


def _write(state: Array, k: list[float], v: list[float], beta: float | None) -> None:
    """S ← S + k ⊗ v, or S + beta · k ⊗ (v - Sᵀ·k)."""
    if beta is not None:
        columns = ([state[i, j] * k[i] for i in range(len(k))] for j in range(len(v)))
        found = map(exact_sum, columns)
        v = [beta * (wanted - had) for wanted, had in zip(v, found, strict=True)]
    for i, j in indices(state.shape):
        state[i, j] += k[i] * v[j]


def _gate(gate: Array | None, index: tuple[int, int, int], heads: int, i: int) -> float | None:
    """Return a head's number for row i: one for all heads, one per head, or one per row."""
    if gate is None:
        return None
    n, t, head = index
    per_head = gate.shape[2] // heads
    place = head * per_head + i % per_head if per_head else 0
    return float(at(gate, n, t, place))
