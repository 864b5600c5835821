"""Attention by scaled products. Source: ONNX Attention.

The scores of all queries and keys are never in memory at once, unless they are requested. Functions
take the array module `xp`, and `inputs`, `outputs` and `attributes` of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.attention import (
    MASK,
    PAST_KEY,
    PRESENT_KEY,
    PRESENT_VALUE,
    SCORES,
    USED,
    get_scale,
    get_window,
    infer_attention,
)
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .attention_blocks import Attention, Buffers, choose_block, declare_buffers
from .blocks import iterate_blocks
from .precision import compute_dtype
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order

_N_BUFFERS = len(Buffers._fields)
_BY_HEADS = 4


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the scratch for `call` and `outputs`: a block's buffers, and keys and values."""
    _, key, value, scores = infer_attention(call)
    dtype = _choose_dtype([call.spec(0).dtype, call.spec(2).dtype], call.attributes)
    (_, shared, keys, depth), width = key.static_shape, value.static_shape[-1]
    batch, heads, queries, _ = scores.static_shape
    lengths = (batch, shared, heads // max(shared, 1), queries)
    has_present = call.n_outputs > PRESENT_VALUE and len(outputs) == call.n_outputs
    in_place = dtype == key.dtype == value.dtype and (has_present or not call.has(PAST_KEY))
    wide = [] if in_place else [TensorSpec(dtype, spec.shape) for spec in (key, value)]
    compares = call.has(USED) or any(side is not None for side in get_window(call.attributes))
    compares |= call.has(MASK) and call.spec(MASK).dtype == np.bool_
    return [*declare_buffers(lengths, keys, depth, width, dtype, compares=compares), *wide]


def _choose_dtype(dtypes: Sequence[np.dtype[Any]], attributes: Attributes) -> np.dtype[Any]:
    asked = attributes["softmax_precision"]
    least = [np.dtype(asked)] if asked else []
    return np.result_type(*map(compute_dtype, (*dtypes, *least)))


@kernel("Attention", scratch=_declare_scratch, binds=True)
def attention(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (key, value), steps = _prepare_keys_and_values(
        xp, inputs, outputs, attributes, scratch[_N_BUFFERS:]
    )
    shared, past = key.shape[1], get_optional(inputs, PAST_KEY)
    query, y = (
        _split_groups(_split_heads(x, attributes["q_num_heads"]), shared)
        for x in (inputs[0], outputs[0])
    )
    found = get_optional(outputs, SCORES)
    whole = Attention(
        xp,
        query,
        key,
        value,
        y,
        mask=_view_mask(xp, get_optional(inputs, MASK), query),
        used=get_optional(inputs, USED),
        found=None if found is None else _split_groups(found, shared),
        wanted=attributes["qk_matmul_output_mode"],
        past=0 if past is None else past.shape[2],
        window=get_window(attributes),
        scale=get_scale(attributes, query.shape[-1]),
        softcap=attributes["softcap"],
        buffers=Buffers(*scratch[:_N_BUFFERS]),
    )
    lengths = query.shape[:-1]
    for part in product(*map(iterate_blocks, lengths, choose_block(lengths, key.shape[3]))):
        steps += whole.steps(part)
    return run_in_order(steps)


def _prepare_keys_and_values(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, wide: Arrays
) -> tuple[list[Array], list[Step]]:
    made: list[Array] = []
    steps: list[Step] = []
    for i in (0, 1):
        new = _split_heads(inputs[1 + i], attributes["kv_num_heads"])
        past, present = get_optional(inputs, PAST_KEY + i), get_optional(outputs, PRESENT_KEY + i)
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


def _split_heads(x: Array, heads: int | None) -> Array:
    """Return a view of `x` as (batch, `heads`, length, elements); None means it is one already."""
    if heads is None or x.ndim == _BY_HEADS:
        return x
    batch, length, elements = x.shape
    return x.reshape(batch, length, heads, elements // heads).swapaxes(1, 2)


def _split_groups(x: Array, shared: int) -> Array:
    """Return a view of `x` with an axis of `shared` heads of keys before the heads for each."""
    batch, heads, length, elements = x.shape
    return x.reshape(batch, shared, heads // max(shared, 1), length, elements)


def _view_mask(xp: ArrayModule, mask: Array | None, query: Array) -> Array | None:
    """Return a view in `xp` of `mask`, unless None, in the shape of scores of `query`.

    It has as many keys as the mask.
    """
    if mask is None:
        return None
    batch, heads, queries, keys = (1,) * (_BY_HEADS - mask.ndim) + mask.shape
    shared, sharing = query.shape[1:3]
    groups = (1, 1) if heads == 1 else (shared, sharing)
    mask = mask.reshape(batch, *groups, queries, keys)
    return xp.broadcast_to(mask, (*query.shape[:-1], keys))
