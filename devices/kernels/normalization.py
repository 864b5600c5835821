"""Normalization kernels: statistics in the working dtype, then a scale and a shift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order, widen, work_scratch, working_dtype


def _standardise(
    xp: ArrayModule, source: Array, work: Array, mean: Array, inverse: Array, epsilon: float
) -> list[Step]:
    """Return steps: work = source - mean, and inverse = 1/√(variance + epsilon), for each row.

    In two passes: E[x²] - E[x]² would cancel where the mean is large.
    """
    ones = xp.ones(source.shape[1], source.dtype)
    return [
        partial(xp.matmul, source, ones, out=mean),
        partial(xp.divide, mean, source.shape[1], out=mean),
        partial(xp.subtract, source, mean[:, None], out=work),
        *_inverse_root_mean_square(xp, work, inverse, epsilon),
    ]


def _inverse_root_mean_square(
    xp: ArrayModule, rows: Array, inverse: Array, epsilon: float
) -> list[Step]:
    return [
        partial(xp.vecdot, rows, rows, out=inverse),
        partial(xp.divide, inverse, rows.shape[1], out=inverse),
        partial(xp.add, inverse, epsilon, out=inverse),
        partial(xp.sqrt, inverse, out=inverse),
        partial(xp.reciprocal, inverse, out=inverse),
    ]


def _row_scratch(x: TensorSpec, axis: int, count: int = 2) -> tuple[TensorSpec, ...]:
    """Scratch: numbers for each row, where the axes from `axis` on make up a row."""
    rows = math.prod(x.static_shape[: axis % len(x.static_shape)])
    return (TensorSpec(working_dtype(x.dtype), (rows,)),) * count


def _layer_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (*_row_scratch(x, call.attributes["axis"]), *work_scratch(x, outputs[0]))


@kernel("LayerNormalization", scratch=_layer_scratch, binds=True)
def layer_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / √(variance + ε) · scale + bias, each row x[i, ...] on its own.

    Source: ONNX LayerNormalization-17.
    """
    x, y = inputs[0], outputs[0]
    mean, inverse, *wide = scratch
    source, work, steps = widen(xp, x, y, wide)
    rows = (len(mean), math.prod(x.shape[attributes["axis"] % x.ndim :]))
    flat = work.reshape(rows)
    bias = inputs[2] if len(inputs) > 2 else None
    steps += _standardise(xp, source.reshape(rows), flat, mean, inverse, attributes["epsilon"])
    steps.append(partial(xp.multiply, flat, inverse[:, None], out=flat))
    steps.append(partial(xp.multiply, work, inputs[1], out=y if bias is None else work))
    if bias is not None:
        steps.append(partial(xp.add, work, bias, out=y))
    for output, statistic in zip(outputs[1:], (mean, inverse), strict=False):
        if output is not None:
            steps.append(partial(xp.copyto, output.reshape(-1), statistic))
    return in_order(steps)


def _rms_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (*_row_scratch(x, call.attributes["axis"], 1), *work_scratch(x, outputs[0]))


@kernel("RMSNormalization", scratch=_rms_scratch, binds=True)
def rms_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x / √(mean x² + ε) · scale, each row x[i, ...] on its own.

    Source: ONNX RMSNormalization-23.
    """
    x, y = inputs[0], outputs[0]
    inverse, *wide = scratch
    source, work, steps = widen(xp, x, y, wide)
    rows = (len(inverse), math.prod(x.shape[attributes["axis"] % x.ndim :]))
    flat = source.reshape(rows)
    steps += _inverse_root_mean_square(xp, flat, inverse, attributes["epsilon"])
    steps.append(partial(xp.multiply, flat, inverse[:, None], out=work.reshape(rows)))
    steps.append(partial(xp.multiply, work, inputs[1], out=y))
    return in_order(steps)


def _group_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    batch, channels, *_ = x.static_shape
    groups = call.attributes.get("num_groups", channels)
    rows = TensorSpec(working_dtype(x.dtype), (batch * groups,))
    factor = TensorSpec(rows.dtype, (batch, channels))
    return (rows, rows, factor, *work_scratch(x, outputs[0]))


@kernel("InstanceNormalization", scratch=_group_scratch, binds=True)
@kernel("GroupNormalization", scratch=_group_scratch, binds=True)
def group_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / √(variance + ε) · scale + bias, each group of channels on its own.

    A group is one channel for InstanceNormalization.
    Sources: ONNX GroupNormalization-21, InstanceNormalization-22.
    """
    x, y = inputs[0], outputs[0]
    mean, inverse, factor, *wide = scratch
    source, work, steps = widen(xp, x, y, wide)
    batch, channels, *spatial = x.shape
    groups = attributes.get("num_groups", channels)
    rows = (batch * groups, math.prod(x.shape[1:]) // groups)
    grouped, planes = (batch, groups, channels // groups), (batch, channels, math.prod(spatial))
    scaled = work.reshape(planes)
    return in_order(
        (
            *steps,
            *_standardise(
                xp, source.reshape(rows), work.reshape(rows), mean, inverse, attributes["epsilon"]
            ),
            partial(
                xp.multiply,
                inverse.reshape(batch, groups, 1),
                inputs[1].reshape(grouped[1:]),
                out=factor.reshape(grouped),
            ),
            partial(xp.multiply, scaled, factor[:, :, None], out=scaled),
            partial(xp.add, scaled, inputs[2][:, None], out=y.reshape(planes)),
        )
    )
