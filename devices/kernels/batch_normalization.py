"""The kernel of BatchNormalization: in inference, one scale and one shift per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .precision import compute_dtype, work_in, work_scratch
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order
from .sums import sum_over


def _scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Scratch: to work in; then scale and shift, unless they are constant; then sums."""
    x = call.spec(0)
    work = work_scratch(x, outputs[0])
    per_channel = TensorSpec(compute_dtype(x.dtype), call.spec(1).shape)
    if call.attributes["training_mode"]:
        batch, channels, _ = _planes(x.static_shape)
        sums = TensorSpec(per_channel.dtype, (batch, channels))
        return (*work, per_channel, per_channel, per_channel, sums)
    if all(call.value(index) is not None for index in range(1, 5)):
        return work
    return (*work, per_channel, per_channel)


@kernel("BatchNormalization", scratch=_scratch, binds=True)
def batch_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / √(variance + ε) · scale + bias, for each channel.

    Source: ONNX BatchNormalization.
    """
    if attributes["training_mode"]:
        return _train(xp, inputs, outputs, attributes, scratch)
    x, scale, bias, mean, variance = inputs
    y, wide = outputs[0], compute_dtype(x.dtype)
    narrow = y.dtype != wide
    if len(scratch) < 2:  # all four are constants: fold them now
        factor, shift = xp.empty(scale.shape, wide), xp.empty(scale.shape, wide)
    else:
        factor, shift = scratch[-2:]
    fold = in_order(_fold(xp, scale, bias, mean, variance, attributes["epsilon"], factor, shift))
    planes = _planes(x.shape)
    work = (scratch[0] if narrow else y).reshape(planes)
    steps = (
        partial(xp.multiply, x.reshape(planes), factor[:, None], out=work),
        partial(xp.add, work, shift[:, None], out=y.reshape(planes)),
    )
    if len(scratch) >= 2:
        return in_order((fold, *steps))
    with np.errstate(all="ignore"):
        fold()
    return in_order(steps)


def _fold(
    xp: ArrayModule,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    epsilon: float,
    factor: Array,
    shift: Array,
) -> list[Step]:
    """Return steps: factor = scale / √(variance + ε), shift = bias - mean · factor."""
    return [
        partial(xp.add, variance, epsilon, out=factor, dtype=factor.dtype),
        partial(xp.sqrt, factor, out=factor),
        partial(xp.divide, scale, factor, out=factor),
        partial(xp.multiply, mean, factor, out=shift),
        partial(xp.subtract, bias, shift, out=shift),
    ]


def _train(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Normalize by the batch's own statistics, and move the running ones towards them."""
    x, scale, bias, running_mean, running_variance = inputs
    y = outputs[0]
    *wide, mean, variance, factor, sums = scratch
    source, work, steps = work_in(xp, x, y, wide)
    planes = _planes(x.shape)
    source, work = source.reshape(planes), work.reshape(planes)
    count = planes[0] * planes[2]
    steps += [
        sum_over(xp, source, (2,), sums[:, :, None]),
        partial(xp.sum, sums, axis=0, out=mean),
        partial(xp.divide, mean, count, out=mean),
        partial(xp.subtract, source, mean[:, None], out=work),
        partial(xp.vecdot, work, work, out=sums),
        partial(xp.sum, sums, axis=0, out=variance),
        partial(xp.divide, variance, count, out=variance),
        partial(xp.add, variance, attributes["epsilon"], out=factor),
        partial(xp.sqrt, factor, out=factor),
        partial(xp.divide, scale, factor, out=factor),
        partial(xp.multiply, work, factor[:, None], out=work),
        partial(xp.add, work, bias[:, None], out=y.reshape(planes)),
    ]
    running = (running_mean, running_variance)
    for old, new, output in zip(running, (mean, variance), outputs[1:], strict=False):
        if output is not None:
            steps += _move(xp, old, new, attributes["momentum"], output)
    return in_order(steps)


def _move(xp: ArrayModule, old: Array, new: Array, momentum: float, out: Array) -> list[Step]:
    """Return steps: out = old · momentum + new · (1 - momentum); `new` is overwritten."""
    return [
        partial(xp.multiply, old, momentum, out=out),
        partial(xp.multiply, new, 1 - momentum, out=new),
        partial(xp.add, out, new, out=out),
    ]


def _planes(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return a shape as (batch, channels, rest); a lone batch axis has one channel."""
    channels = shape[1] if len(shape) > 1 else 1
    return shape[0], channels, math.prod(shape[2:])
