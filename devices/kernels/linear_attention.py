"""LinearAttention: a matrix per head, updated and read in each step of the sequence.

Source: ONNX LinearAttention. Computed in float32 or wider, for all samples and heads at once. The
state is kept apart from the outputs, unless present_state is as wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.operators.attention import BETA, DECAY, PAST, Heads, get_heads
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .precision import compute_dtype, declare_wide_copies, widen
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the scratch for `call` and `outputs`: wide copies, state, update, values, decays."""
    dtype = np.result_type(compute_dtype(call.spec(0).dtype), outputs[1].dtype)
    batch, heads, depth, width = outputs[1].static_shape
    activations = [spec for i, spec in enumerate(call.inputs) if i != PAST]
    decay = [TensorSpec(dtype, call.spec(DECAY).shape)] if call.has(DECAY) else []
    return [
        *declare_wide_copies((*activations, outputs[0])),
        *[TensorSpec(dtype, (batch, heads, depth, width))] * 2,
        TensorSpec(dtype, (batch, heads, 1, width)),
        *decay,
    ]


@dataclass(frozen=True, slots=True)
class _State:
    """The state of all heads, (batch, heads, depth, width), and buffers like it and its rows."""

    xp: ArrayModule
    matrix: Array
    update: Array
    row: Array

    def decay(self, factor: Array) -> Step:
        """Return the step that multiplies rows by `factor`, (batch, heads, depth or 1)."""
        return partial(self.xp.multiply, self.matrix, factor[..., None], out=self.matrix)

    def write(self, key: Array, value: Array, beta: Array | None) -> Iterator[Step]:
        xp, value = self.xp, value[:, :, None]
        if beta is not None:
            yield partial(xp.matmul, key[:, :, None], self.matrix, out=self.row)
            yield partial(xp.subtract, value, self.row, out=self.row)
            yield partial(xp.multiply, self.row, beta[..., None, None], out=self.row)
            value = self.row
        yield partial(xp.multiply, key[..., None], value, out=self.update)
        yield partial(xp.add, self.matrix, self.update, out=self.matrix)

    def read(self, query: Array, y: Array) -> Step:
        """Return the step that writes each `query` times its head's matrix to `y`."""
        return partial(self.xp.matmul, query, self.matrix, out=y)


@kernel("LinearAttention", scratch=_declare_scratch, binds=True)
def linear_attention(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    past, present = get_optional(inputs, PAST), outputs[1]
    activations = [x for index, x in enumerate(inputs) if index != PAST]
    wide = widen(xp, activations, outputs[:1], scratch)
    matrix, update, row, *decays = wide.scratch
    state = _State(xp, matrix, update, row)
    steps: list[Step] = [partial(xp.copyto, matrix, 0 if past is None else past)]
    if wide.outputs[0].size:
        steps += _walk(state, wide.inputs, wide.outputs[0], attributes, decays)
    steps.append(partial(xp.copyto, present, matrix, casting="same_kind"))
    return wide.around(steps) if present.size else run_in_order(())


def _walk(
    state: _State, activations: Arrays, y: Array, attributes: Attributes, decays: Arrays
) -> Iterator[Step]:
    """Yield the steps of `state` through time, which read `activations` and write `y`.

    `attributes` are those of the node; `decays` has a buffer for exp(decay), if there is one.
    """
    xp, heads = state.xp, get_heads(attributes)
    counts = (heads.queries, heads.keys, heads.keys)
    query, key, value = map(_split_heads, activations[:3], counts)
    # Without the past state, the other inputs are one place further ahead.
    decay, beta = (get_optional(activations, index - 1) for index in (DECAY, BETA))
    if decay is not None:
        yield partial(xp.exp, decay, out=decays[0])
    query, found = _split_groups(query, heads), _split_groups(_split_heads(y, heads.queries), heads)
    for t in range(y.shape[1]):
        if decay is not None:
            yield state.decay(_split_heads(decays[0], heads.keys)[:, t])
        yield from state.write(key[:, t], value[:, t], None if beta is None else beta[:, t])
        yield state.read(query[:, t], found[:, t])
    scale = attributes["scale"] or 1 / math.sqrt(query.shape[-1])
    yield partial(xp.multiply, y, y.dtype.type(scale), out=y)


def _split_heads(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:2], heads, -1)


def _split_groups(x: Array, heads: Heads) -> Array:
    return x.reshape(*x.shape[:2], heads.keys, heads.queries // heads.keys, x.shape[-1])
