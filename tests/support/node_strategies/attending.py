"""Attention in all its forms: heads that share keys, masks, windows, caches."""

from __future__ import annotations

from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import (
    FLOATS,
    Draw,
    NodeCase,
    Strategy,
    broadcast_part,
    choose,
    few,
    flag,
    integer,
    masked,
    ordinary,
    size_of,
    tensor,
)


def attention(draw: Draw) -> NodeCase:
    dtype, by_heads = choose(draw, FLOATS), flag(draw)
    batch, queries, keys = integer(draw, 0, 2), integer(draw, 0, 4), integer(draw, 0, 5)
    shared, group, depth, width = (integer(draw, 1, 3) for _ in range(4))
    heads = shared * group

    def drawn(count: int, length: int, elements: int, is_input: bool = True) -> AnyArray:
        form = (batch, count, length, elements)
        if is_input and not by_heads:
            form = (batch, length, count * elements)  # type: ignore[assignment]
        return np.asarray(tensor(draw, dtype, form, (few, ordinary)) / 4).astype(dtype)

    inputs: list[Any] = [drawn(heads, queries, depth)]
    inputs += [drawn(shared, keys, elements) for elements in (depth, width)]
    cache, past = choose(draw, ("none", "past", "used")), 0
    state: list[Any] = [None, None, None]
    if cache == "past":
        past = integer(draw, 0, 3)
        state[:2] = [drawn(shared, past, elements, False) for elements in (depth, width)]
    elif cache == "used":
        state[2] = np.array([integer(draw, 0, keys) for _ in range(batch)], np.int64)
    mask = _mask(draw, dtype, (batch, heads, queries), keys + past) if flag(draw) else None
    n_outputs = choose(draw, (1, 1, 3, 4))
    return NodeCase(
        [*inputs, mask, *state],
        _attributes(draw, {} if by_heads else {"q_num_heads": heads, "kv_num_heads": shared}),
        n_outputs=n_outputs,
        ulps=4 if dtype == "float16" else 64,  # halves are rounded once, at the end
        terms=1 + size_of(inputs[2], state[1]),
    )


def _mask(draw: Draw, dtype: str, scores: tuple[int, ...], keys: int) -> AnyArray:
    of = (*broadcast_part(draw, scores), keys if flag(draw) else integer(draw, 0, keys))
    return tensor(draw, choose(draw, ("bool", dtype)), of, (few, masked))


def _attributes(draw: Draw, heads: dict[str, Any]) -> dict[str, Any]:
    return heads | {
        "is_causal": flag(draw),
        "left_window_size": choose(draw, (-1, -1, 0, 2)),
        "right_window_size": choose(draw, (-1, -1, 0, 2)),
        "qk_matmul_output_mode": integer(draw, 0, 3),
        "scale": choose(draw, (None, 0.5)),
        "softcap": choose(draw, (0.0, 2.0)),
        "softmax_precision": choose(draw, (None, "float32", "float64")),
    }


STRATEGIES: dict[str, Strategy] = {"Attention": attention}
