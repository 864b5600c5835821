"""Attention by scaled products.  Source: ONNX Attention.

The scores of all queries and keys are never in memory at once, unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.operators.attention import (
    MASK,
    PAST_KEY,
    PRESENT_KEY,
    PRESENT_VALUE,
    SCORES,
    USED,
    infer_attention,
    scale_of,
    window_of,
)
from ...graph.tensor import Array, TensorSpec
from .arguments import optional
from .attention_blocks import Attention, Buffers, block_of, buffer_specs
from .blocks import blocks
from .precision import compute_dtype
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order

_N_BUFFERS = len(Buffers._fields)
_BY_HEADS = 4


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch: a block's buffers, then keys and values where they are not read in place."""
    _, key, value, scores = infer_attention(call)
    dtype = _dtype([call.spec(0).dtype, call.spec(2).dtype], call.attributes)
    (_, shared, keys, depth), width = key.static_shape, value.static_shape[-1]
    batch, heads, queries, _ = scores.static_shape
    lengths = (batch, shared, heads // max(shared, 1), queries)
    has_present = call.n_outputs > PRESENT_VALUE and len(outputs) == call.n_outputs
    in_place = dtype == key.dtype == value.dtype and (has_present or not call.has(PAST_KEY))
    wide = [] if in_place else [TensorSpec(dtype, spec.shape) for spec in (key, value)]
    compares = call.has(USED) or any(side is not None for side in window_of(call.attributes))
    compares |= call.has(MASK) and call.spec(MASK).dtype == np.bool_
    return [*buffer_specs(lengths, keys, depth, width, dtype, compares=compares), *wide]


def _dtype(dtypes: Sequence[np.dtype[Any]], attributes: Attributes) -> np.dtype[Any]:
    """Return the dtype to compute in: what is asked for is the least."""
    asked = attributes["softmax_precision"]
    least = [np.dtype(asked)] if asked else []
    return np.result_type(*map(compute_dtype, (*dtypes, *least)))


@kernel("Attention", scratch=_scratch, binds=True)
def attention(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = softmax(scale · Q·Kᵀ + mask) · V, and 0 for queries that see nothing."""
    (key, value), steps = _keys_and_values(xp, inputs, outputs, attributes, scratch[_N_BUFFERS:])
    shared, past = key.shape[1], optional(inputs, PAST_KEY)
    query, y = (
        _by_group(_by_head(x, attributes["q_num_heads"]), shared) for x in (inputs[0], outputs[0])
    )
    found = optional(outputs, SCORES)
    whole = Attention(
        xp,
        query,
        key,
        value,
        y,
        mask=_mask_of(xp, optional(inputs, MASK), query),
        used=optional(inputs, USED),
        found=None if found is None else _by_group(found, shared),
        wanted=attributes["qk_matmul_output_mode"],
        past=0 if past is None else past.shape[2],
        window=window_of(attributes),
        scale=scale_of(attributes, query.shape[-1]),
        softcap=attributes["softcap"],
        buffers=Buffers(*scratch[:_N_BUFFERS]),
    )
    lengths = query.shape[:-1]
    for part in product(*map(blocks, lengths, block_of(lengths, key.shape[3]))):
        steps += whole.steps(part)
    return in_order(steps)


def _keys_and_values(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, wide: Arrays
) -> tuple[list[Array], list[Step]]:
    """Return both as (batch, heads, 1, keys, elements), and the steps that put them there."""
    made: list[Array] = []
    steps: list[Step] = []
    for i in (0, 1):
        new = _by_head(inputs[1 + i], attributes["kv_num_heads"])
        past, present = optional(inputs, PAST_KEY + i), optional(outputs, PRESENT_KEY + i)
        whole = wide[i] if wide else present if past is not None else new
        targets = [each for each in (whole, present) if each is not None and each is not new]
        for target in {id(target): target for target in targets}.values():
            start = target.shape[2] - new.shape[2]
            if past is not None:
                steps.append(partial(xp.copyto, target[:, :, :start], past))
            steps.append(partial(xp.copyto, target[:, :, start:], new))
        assert whole is not None
        made.append(whole[:, :, None])
    return made, steps


def _by_head(x: Array, heads: int | None) -> Array:
    """Return a view as (batch, heads, length, elements)."""
    if heads is None or x.ndim == _BY_HEADS:
        return x
    batch, length, elements = x.shape
    return x.reshape(batch, length, heads, elements // heads).swapaxes(1, 2)


def _by_group(x: Array, shared: int) -> Array:
    """Return a view as (batch, heads of keys, heads that share one, length, elements)."""
    batch, heads, length, elements = x.shape
    return x.reshape(batch, shared, heads // max(shared, 1), length, elements)


def _mask_of(xp: ArrayModule, mask: Array | None, query: Array) -> Array | None:
    """Return a view of a mask as scores are, with as many keys as it has."""
    if mask is None:
        return None
    batch, heads, queries, keys = (1,) * (_BY_HEADS - mask.ndim) + mask.shape
    shared, sharing = query.shape[1:3]
    groups = (1, 1) if heads == 1 else (shared, sharing)
    mask = mask.reshape(batch, *groups, queries, keys)
    return xp.broadcast_to(mask, (*query.shape[:-1], keys))
