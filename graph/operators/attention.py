"""Attention that keeps a state in place of keys and values: linear in the sequence's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..attribute import Attribute, Attributes, Kind
from ..dims import floordiv, mul
from ..errors import ShapeError
from ..operator import Call, Specs, define
from ..tensor import Dim, TensorSpec
from ..traits import ARRAY_KERNEL, IN_SUMS, PRIMITIVE
from .inputs import FLOATS, check_dtype, check_form, common_dtype, may_equal

PAST, DECAY, BETA = 3, 4, 5
"""Inputs, beside query, key and value."""

_USES: dict[str, tuple[int, ...]] = {
    "linear": (),
    "gated": (DECAY,),
    "delta": (BETA,),
    "gated_delta": (DECAY, BETA),
}


class Heads(NamedTuple):
    """How many heads there are of queries, and of keys and values."""

    queries: int
    keys: int


def heads_of(attributes: Attributes) -> Heads:
    """Return the numbers of heads.

    Raises
    ------
    ShapeError
        If those of queries are no multiple of the others.
    """
    heads = Heads(attributes["q_num_heads"], attributes["kv_num_heads"])
    if heads.queries % heads.keys:
        raise ShapeError(
            f"{heads.queries} heads of queries cannot share {heads.keys} of keys",
            fix="make q_num_heads a multiple of kv_num_heads",
        )
    return heads


def _cost(call: Call, outputs: Specs) -> int:
    """Cost: per step, a product with the state for each query, and two passes to update it."""
    batch, steps, _ = call.spec(0).static_shape
    heads = heads_of(call.attributes)
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
    cost=_cost,
    float16=IN_SUMS,
    lacks=PRIMITIVE | ARRAY_KERNEL,
)
def infer_linear_attention(call: Call) -> Sequence[TensorSpec]:
    """Infer: (batch, steps, heads · depth) → (batch, steps, heads · width), and the state."""
    heads = heads_of(call.attributes)
    _check_uses(call)
    activations = [s for i, s in enumerate(call.inputs) if s is not None and i != PAST]
    dtype = common_dtype(activations, FLOATS)
    state_dtype = call.spec(PAST if call.has(PAST) else 0).dtype
    query, value = call.spec(0).shape, call.spec(2).shape
    for index, formal in enumerate(("query", "key", "value")):
        check_form(call.spec(index), (None, None, None), formal)
    if query is None or value is None:
        return TensorSpec(dtype, None), TensorSpec(state_dtype, None)
    batch, steps = query[:2]
    depth = _per_head(query[2], heads.queries, "query")
    width = _per_head(value[2], heads.keys, "value")
    check_form(call.spec(1), (batch, steps, mul(heads.keys, depth)), "key")
    check_form(call.spec(2), (batch, steps, None), "value")
    state = (batch, heads.keys, depth, width)
    _check_past(call, state)
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


def _per_head(length: Dim, heads: int, what: str) -> Dim:
    if isinstance(length, int) and (length % heads or not length):
        raise ShapeError(
            f"{length} elements of {what} do not divide into {heads} heads",
            fix="make the last axis a multiple of the number of heads",
        )
    return floordiv(length, heads)


def _check_past(call: Call, state: Sequence[Dim]) -> None:
    if call.has(PAST):
        check_dtype(call.spec(PAST), FLOATS, "past_state")
        check_form(call.spec(PAST), state, "past_state")


def _check_gate(
    call: Call, index: int, outer: Sequence[Dim], lengths: Sequence[Dim], what: str
) -> None:
    """Raise ShapeError unless an absent or given gate can have one of the lengths."""
    if not call.has(index):
        return
    check_form(call.spec(index), (*outer, None), what)
    shape = call.spec(index).shape
    if shape is not None and not any(may_equal(shape[-1], length) for length in lengths):
        listed = " or ".join(map(str, lengths))
        raise ShapeError(
            f"{what} has {shape[-1]} numbers in each step, not {listed}", fix="give one per head"
        )
