"""Convolutions of quantized tensors: ``(xp, inputs, outputs, attributes, scratch) -> Step``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .convolution import choose, make_geometry
from .exactness import (
    Factors,
    center,
    declare_multiplier,
    find_exact_dtype,
    is_constant,
    requantize,
    to_int32,
)
from .geometry import Operands, add_bias
from .packed import pack_weights
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order


def _align(shape: Sequence[int], rank: int) -> Sequence[int]:
    return () if math.prod(shape) == 1 else (*shape, *(1,) * (rank - 1))


def _make_factors(call: Call, right: int, right_zero: int) -> Factors:
    rank = len(call.spec(right).static_shape)
    axes = tuple(range(1, rank))
    return Factors(0, right, 2, right_zero, axes, lambda shape: _align(shape, rank))


def _declare_scratch(call: Call, output: TensorSpec, on: Factors) -> list[TensorSpec]:
    """Return the scratch of `call`: sums like `output`, floats of x, and the method's buffers.

    `on` says which inputs are the factors; computed weights are converted, too.
    """
    x, w, dtype = call.spec(on.left), call.spec(on.right), find_exact_dtype(call, on)
    conv = make_geometry(
        x.static_shape, w.static_shape, output.static_shape, call.attributes, dtype
    )
    method = choose(conv, exact=True)
    buffers = [TensorSpec(dtype, output.shape), TensorSpec(dtype, x.shape), *method.scratch]
    if not is_constant(call, on):
        buffers.append(TensorSpec(dtype, w.shape))
        buffers += [method.packing.spec] if method.packing is not None else []
    return buffers


def _compute_sums(
    xp: ArrayModule,
    factors: Arrays,
    zeros: Sequence[Array | None],
    attributes: Attributes,
    scratch: Arrays,
) -> list[Step]:
    """Return the steps in `xp` that convolve `factors` less `zeros` into the first of `scratch`.

    The window has the `attributes`. Weights without a buffer are constant: they become floats here,
    once.
    """
    (x, w), (total, wide_x, *buffers) = factors, scratch
    if not total.size or not x.size:
        return [partial(total.fill, 0)]
    conv = make_geometry(x.shape, w.shape, total.shape, attributes, total.dtype)
    method = choose(conv, exact=True)
    used = len(method.scratch)
    wide_w, *packed = buffers[used:] or [xp.empty(w.shape, total.dtype)]
    steps = [center(xp, w, zeros[1], lambda shape: _align(shape, w.ndim), wide_w)]
    if len(buffers) == used:
        run_in_order(steps)()
        steps = []
    if method.packing is not None:
        wide_w, pack = pack_weights(xp, method.packing, wide_w, packed)
        steps += pack
    steps.append(center(xp, x, zeros[0], lambda _: (), wide_x))
    return [*steps, *method.bind(xp, Operands(wide_x, wide_w, None, total, buffers[:used]))]


def _declare_integer_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return _declare_scratch(call, outputs[0], _make_factors(call, 1, 3))


@kernel("ConvInteger", scratch=_declare_integer_scratch, binds=True)
def conv_integer(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    zeros = (get_optional(inputs, 2), get_optional(inputs, 3))
    steps = _compute_sums(xp, inputs[:2], zeros, attributes, scratch)
    return run_in_order([*steps, *to_int32(xp, scratch[0], outputs[0], inputs[1][0].size)])


def _declare_linear_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the scratch for `call` and `outputs`: multiplier, float bias, float32 sums, others."""
    y, rank = outputs[0], len(outputs[0].static_shape) - 1
    multiplier = declare_multiplier([_align(call.spec(i).static_shape, rank) for i in (1, 4, 6)])
    sums = _declare_scratch(call, y, _make_factors(call, 3, 5)._replace(bias=8))
    bias = [TensorSpec(sums[0].dtype, call.spec(8).shape)] if call.has(8) else []
    wide = [TensorSpec(np.float32, y.shape)] if sums[0].dtype != np.float32 else []
    return [multiplier, *bias, *wide, *sums]


@kernel("QLinearConv", scratch=_declare_linear_scratch, binds=True)
def qlinear_conv(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs[:8]
    (y,), bias, (multiplier, *buffers) = outputs, get_optional(inputs, 8), scratch
    wide_bias = None if bias is None else buffers.pop(0)
    copies = [buffers.pop(0)] if buffers[0].dtype != buffers[1].dtype else []
    steps = _compute_sums(xp, (x, w), (x_zero, w_zero), attributes, buffers)
    if bias is not None:
        steps.append(partial(xp.copyto, wide_bias, bias, casting="unsafe"))
    steps += add_bias(xp, buffers[0], wide_bias)
    aligned = [
        array.reshape(_align(array.shape, y.ndim - 1))
        for array in (x_scale, w_scale, y_scale, y_zero)
    ]
    again = requantize(xp, buffers[0], aligned[:3], aligned[3], y, [multiplier, *copies])
    return run_in_order([*steps, *again])
