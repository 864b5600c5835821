"""Attention: over keys and values, or through a state in their place.

In Attention, each query averages values, weighted by the match of their keys. LinearAttention reads
and updates a matrix per head, and is linear in the sequence's length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..core.attribute import Attribute, Attributes, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import ARRAY_KERNEL, IN_SUMS, PRIMITIVE
from ..values.dims import UNKNOWN, add, floordiv, mul
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .inputs import FLOATS, INTEGERS, REALS, check_dtype, check_form, find_common_dtype, may_equal
from .rules import TRANSCENDENTAL

MASK, PAST_KEY, PAST_VALUE, USED = 3, 4, 5, 6
"""Inputs after query, key and value; `USED` is the number of keys of each sample without
padding."""

PRESENT_KEY, PRESENT_VALUE, SCORES = 1, 2, 3
"""Outputs after y."""

RAW, CAPPED, MASKED, WEIGHTS = range(4)
"""Stages of the scores that `SCORES` may hold: `qk_matmul_output_mode`."""

_BY_HEADS = 4
"""The rank of inputs that have an axis of heads."""


class AttentionWindow(NamedTuple):
    """The keys that a query sees: `left` places before its own to `right` after it; None is all."""

    left: int | None
    right: int | None


def get_window(attributes: Attributes) -> AttentionWindow:
    left, right = attributes["left_window_size"], attributes["right_window_size"]
    if attributes["is_causal"]:
        right = 0
    return AttentionWindow(None if left < 0 else left, None if right < 0 else right)


def get_scale(attributes: Attributes, depth: int) -> float:
    scale: float | None = attributes["scale"]
    return 1 / math.sqrt(max(depth, 1)) if scale is None else scale


def _estimate_cost(call: Call, outputs: Specs) -> int:
    """Estimate `call` with `outputs`: two products, and a distribution over keys for each query."""
    batch, heads, queries, depth = _split_heads(call, 0, "q_num_heads")
    _, _, keys, width = _split_heads(call, 2, "kv_num_heads")
    if call.has(PAST_KEY):
        keys = add(keys, call.spec(PAST_KEY).static_shape[2])
    sizes = (batch, heads, queries, depth, keys, width)
    n, h, q, d, k, w = (int(size) for size in sizes)
    return n * h * q * k * (2 * (d + w) + TRANSCENDENTAL + 4)


@define(
    "Attention",
    inputs="q k v attn_mask? past_key? past_value? nonpad_kv_seqlen?",
    outputs="y present_key? present_value? qk_matmul_output?",
    attributes={
        "is_causal": Attribute(Kind.BOOL, False),
        "kv_num_heads": Attribute(Kind.INT, None, minimum=1),
        "left_window_size": Attribute(Kind.INT, -1, minimum=-1),
        "q_num_heads": Attribute(Kind.INT, None, minimum=1),
        "qk_matmul_output_mode": Attribute(Kind.INT, 0, choices=(RAW, CAPPED, MASKED, WEIGHTS)),
        "right_window_size": Attribute(Kind.INT, -1, minimum=-1),
        "scale": Attribute(Kind.FLOAT, None),
        "softcap": Attribute(Kind.FLOAT, 0.0, minimum=0),
        "softmax_precision": Attribute(Kind.DTYPE, None),
    },
    cost=_estimate_cost,
    float16=IN_SUMS,
)
def infer_attention(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, heads, queries, depth) → (batch, heads, queries, width), or three axes."""
    dtype = find_common_dtype(_list_given(call, 0, 1, PAST_KEY), FLOATS)
    width_dtype = find_common_dtype(_list_given(call, 2, PAST_VALUE), FLOATS)
    _check_state(call)
    if any(call.spec(index).shape is None for index in (0, 1, 2)):
        unknown = TensorSpec(dtype, None)
        return unknown, unknown, TensorSpec(width_dtype, None), unknown
    _check_ranks(call)
    batch, heads, queries, depth = _split_heads(call, 0, "q_num_heads")
    # Groups of query heads may share a head of keys: their number is kv_num_heads.
    _, shared, keys, width = _split_heads(call, 2, "kv_num_heads")
    _check_heads(heads, shared)
    _check_key(call, (batch, shared, keys, depth))
    _check_past(call, (batch, shared, depth, width))
    # Cached keys come first, as their positions did; masks cover both.
    past = _get_past_length(call)
    total = UNKNOWN if past == UNKNOWN else add(keys, past)
    _check_mask(call, (batch, heads, queries, total))
    if call.has(USED):
        check_form(call.spec(USED), (batch,), "nonpad_kv_seqlen")
    y: tuple[Dim, ...] = (batch, heads, queries, width)
    # With three axes the heads lie side by side in the last one, and y is as q was.
    if call.spec(0).rank != _BY_HEADS:
        y = (batch, queries, mul(heads, width))
    return (
        TensorSpec(dtype, y),
        TensorSpec(dtype, (batch, shared, total, depth)),
        TensorSpec(width_dtype, (batch, shared, total, width)),
        TensorSpec(dtype, (batch, heads, queries, total)),
    )


def _list_given(call: Call, *indices: int) -> list[TensorSpec]:
    return [call.spec(index) for index in indices if call.has(index)]


def _check_state(call: Call) -> None:
    if call.has(PAST_KEY) != call.has(PAST_VALUE):
        raise ShapeError("past keys and values come together", fix="pass both, or none")
    if call.has(USED):
        check_dtype(call.spec(USED), INTEGERS, "nonpad_kv_seqlen")
        if call.has(PAST_KEY):
            raise ShapeError(
                "keys are either appended to past ones, or in place already",
                fix="pass past_key and past_value, or nonpad_kv_seqlen",
            )


def _check_ranks(call: Call) -> None:
    ranks = {call.spec(index).rank for index in (0, 1, 2)}
    if ranks not in ({3}, {_BY_HEADS}):
        raise ShapeError(
            "q, k and v must all have 3 axes, or all 4",
            fix="reshape them to [batch, heads, length, depth]",
        )


def _split_heads(call: Call, index: int, attribute: str) -> tuple[Dim, Dim, Dim, Dim]:
    """Return (batch, heads, length, depth); inputs of three axes have the heads of `attribute`."""
    shape = call.spec(index).shape
    assert shape is not None
    if len(shape) == _BY_HEADS:
        batch, heads, length, elements = shape
        return batch, heads, length, elements
    batch, length, elements = shape
    count: int | None = call.attributes[attribute]
    if count is None:
        raise ShapeError(
            "inputs of 3 axes do not tell how many heads they hold", fix=f"pass {attribute}"
        )
    if isinstance(elements, int) and elements % count:
        raise ShapeError(
            f"{elements} elements do not divide into {count} heads",
            fix=f"make the last axis a multiple of {attribute}",
        )
    return batch, count, length, floordiv(elements, count)


def _check_heads(heads: Dim, shared: Dim) -> None:
    if isinstance(heads, int) and isinstance(shared, int) and heads and heads % max(shared, 1):
        raise ShapeError(
            f"{heads} heads of queries cannot share {shared} of keys",
            fix="make their number a multiple",
        )


def _check_key(call: Call, form: tuple[Dim, Dim, Dim, Dim]) -> None:
    batch, shared, keys, depth = form
    if call.spec(1).rank == _BY_HEADS:
        check_form(call.spec(1), form, "k")
        check_form(call.spec(2), (batch, shared, keys, None), "v")
    else:
        check_form(call.spec(1), (batch, keys, mul(shared, depth)), "k")
        check_form(call.spec(2), (batch, keys, None), "v")


def _check_past(call: Call, form: tuple[Dim, Dim, Dim, Dim]) -> None:
    batch, shared, depth, width = form
    if call.has(PAST_KEY):
        check_form(call.spec(PAST_KEY), (batch, shared, None, depth), "past_key")
        length = None if call.spec(PAST_KEY).shape is None else _get_past_length(call)
        check_form(call.spec(PAST_VALUE), (batch, shared, length, width), "past_value")


def _get_past_length(call: Call) -> Dim:
    if not call.has(PAST_KEY):
        return 0
    shape = call.spec(PAST_KEY).shape
    return UNKNOWN if shape is None else shape[2]


def _check_mask(call: Call, scores: tuple[Dim, ...]) -> None:
    """Raise ShapeError unless the mask of `call` fits `scores`; keys after its last are hidden."""
    if not call.has(MASK):
        return
    mask = call.spec(MASK)
    check_dtype(mask, REALS, "attn_mask")
    if mask.shape is None:
        return
    if not mask.shape:
        raise ShapeError("attn_mask has no axis of keys", fix="pass a number for each key")
    # A mask for fewer keys is fine: those that it does not know of are padding.
    *outer, seen = mask.shape
    whole, keys = scores[-len(mask.shape) : -1], scores[-1]
    # Masks broadcast along all axes but that of the keys.
    form = [None if a == 1 else b for a, b in zip(outer, whole, strict=False)]
    check_form(mask, (*form, None), "attn_mask")
    if isinstance(seen, int) and isinstance(keys, int) and seen > keys:
        raise ShapeError(
            f"attn_mask is for {seen} keys, and there are {keys}", fix="cut it, or pass more keys"
        )


PAST, DECAY, BETA = 3, 4, 5
"""Inputs after query, key and value."""

_USES: dict[str, tuple[int, ...]] = {
    "linear": (),
    "gated": (DECAY,),
    "delta": (BETA,),
    "gated_delta": (DECAY, BETA),
}


class Heads(NamedTuple):
    """The number of heads of queries, and of keys and values."""

    queries: int
    keys: int


def get_heads(attributes: Attributes) -> Heads:
    """Return the numbers of heads; that of queries has to be a multiple of the other."""
    heads = Heads(attributes["q_num_heads"], attributes["kv_num_heads"])
    if heads.queries % heads.keys:
        raise ShapeError(
            f"{heads.queries} heads of queries cannot share {heads.keys} of keys",
            fix="make q_num_heads a multiple of kv_num_heads",
        )
    return heads


def _estimate_linear_cost(call: Call, outputs: Specs) -> int:
    """Count, in each step of `call`, a product per query and two passes over the state."""
    batch, steps, _ = call.spec(0).static_shape
    heads = get_heads(call.attributes)
    _, _, depth, width = outputs[1].static_shape
    updates = 2 * (1 + len(_USES[call.attributes["update_rule"]])) * heads.keys
    return batch * steps * (2 * heads.queries + updates) * depth * width


@define(
    "LinearAttention",
    inputs="query key value past_state? decay? beta?",
    outputs="output present_state",
    attributes={
        "chunk_size": Attribute(Kind.INT, 64),
        "kv_num_heads": Attribute(Kind.INT, minimum=1),
        "q_num_heads": Attribute(Kind.INT, minimum=1),
        "scale": Attribute(Kind.FLOAT, 0.0),
        "update_rule": Attribute(Kind.STRING, "gated_delta", choices=tuple(_USES)),
    },
    cost=_estimate_linear_cost,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_linear_attention(call: Call) -> Sequence[TensorSpec]:
    """Infer (batch, steps, heads · depth) → (batch, steps, heads · width), and the state."""
    heads = get_heads(call.attributes)
    _check_uses(call)
    activations = [s for i, s in enumerate(call.inputs) if s is not None and i != PAST]
    dtype = find_common_dtype(activations, FLOATS)
    state_dtype = call.spec(PAST if call.has(PAST) else 0).dtype
    query, value = call.spec(0).shape, call.spec(2).shape
    for index, formal in enumerate(("query", "key", "value")):
        check_form(call.spec(index), (None, None, None), formal)
    if query is None or value is None:
        return TensorSpec(dtype, None), TensorSpec(state_dtype, None)
    batch, steps = query[:2]
    depth = _divide_by_heads(query[2], heads.queries, "query")
    width = _divide_by_heads(value[2], heads.keys, "value")
    check_form(call.spec(1), (batch, steps, mul(heads.keys, depth)), "key")
    check_form(call.spec(2), (batch, steps, None), "value")
    state = (batch, heads.keys, depth, width)
    _check_past_state(call, state)
    _check_gate(call, DECAY, (batch, steps), (heads.keys, mul(heads.keys, depth)), "decay")
    _check_gate(call, BETA, (batch, steps), (heads.keys, 1), "beta")
    output = (batch, steps, mul(heads.queries, width))
    return TensorSpec(dtype, output), TensorSpec(state_dtype, state)


def _check_uses(call: Call) -> None:
    rule = call.attributes["update_rule"]
    for index, formal in ((DECAY, "decay"), (BETA, "beta")):
        if call.has(index) != (index in _USES[rule]):
            verb = "takes no" if call.has(index) else "needs the"
            raise ShapeError(
                f"the update rule {rule!r} {verb} input {formal!r}",
                fix="leave it out, or use another update_rule"
                if call.has(index)
                else "pass it, or use another update_rule",
            )


def _divide_by_heads(length: Dim, heads: int, label: str) -> Dim:
    if isinstance(length, int) and (length % heads or not length):
        raise ShapeError(
            f"{length} elements of {label} do not divide into {heads} heads",
            fix="make the last axis a multiple of the number of heads",
        )
    return floordiv(length, heads)


def _check_past_state(call: Call, state: Sequence[Dim]) -> None:
    if call.has(PAST):
        check_dtype(call.spec(PAST), FLOATS, "past_state")
        check_form(call.spec(PAST), state, "past_state")


def _check_gate(
    call: Call, index: int, outer: Sequence[Dim], lengths: Sequence[Dim], label: str
) -> None:
    """Raise ShapeError unless the gate has the shape `outer`, then one of `lengths`."""
    if not call.has(index):
        return
    check_form(call.spec(index), (*outer, None), label)
    shape = call.spec(index).shape
    if shape is not None and not any(may_equal(shape[-1], length) for length in lengths):
        listed = " or ".join(map(str, lengths))
        raise ShapeError(
            f"{label} has {shape[-1]} numbers in each step, not {listed}", fix="give one per head"
        )
