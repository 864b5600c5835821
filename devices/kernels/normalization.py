"""Normalization kernels: statistics in float32 or wider, then a scale and a shift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ...graph.attribute import Attributes
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .arguments import optional
from .axes import as_lines, line_scratch
from .precision import compute_dtype, work_in, work_scratch
from .registry import ArrayModule, Arrays, kernel
from .steps import Step, in_order
from .sums import sum_over


def _standardize(
    xp: ArrayModule, source: Array, work: Array, mean: Array, inverse: Array, epsilon: float
) -> list[Step]:
    """Return steps: work = source - mean, and inverse = 1/√(variance + epsilon), for each line.

    In two passes: E[x²] - E[x]² would cancel where the mean is large.
    """
    return [
        sum_over(xp, source, (1,), mean),
        partial(xp.divide, mean, source.shape[1], out=mean),
        partial(xp.subtract, source, mean, out=work),
        *_inverse_root_mean_square(xp, work, inverse, epsilon),
    ]


def _inverse_root_mean_square(
    xp: ArrayModule, lines: Array, inverse: Array, epsilon: float
) -> list[Step]:
    rows = lines[:, :, 0]
    return [
        partial(xp.vecdot, rows, rows, out=inverse[:, 0, 0]),
        partial(xp.divide, inverse, rows.shape[1], out=inverse),
        partial(xp.add, inverse, epsilon, out=inverse),
        partial(xp.sqrt, inverse, out=inverse),
        partial(xp.reciprocal, inverse, out=inverse),
    ]


def _layer_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    line = line_scratch(x, call.attributes["axis"], x.rank)
    return (line, line, *work_scratch(x, outputs[0]))


@kernel("LayerNormalization", scratch=_layer_scratch, binds=True)
def layer_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / √(variance + ε) · scale + bias, all axes from `axis` on together.

    Source: ONNX LayerNormalization.
    """
    x, y, bias = inputs[0], outputs[0], optional(inputs, 2)
    mean, inverse, *wide = scratch
    source, work, steps = work_in(xp, x, y, wide)
    lines = as_lines(source, attributes["axis"], x.ndim), as_lines(work, attributes["axis"], x.ndim)
    steps += _standardize(xp, *lines, mean, inverse, attributes["epsilon"])
    steps.append(partial(xp.multiply, lines[1], inverse, out=lines[1]))
    steps.append(partial(xp.multiply, work, inputs[1], out=y if bias is None else work))
    if bias is not None:
        steps.append(partial(xp.add, work, bias, out=y))
    for output, statistic in zip(outputs[1:], (mean, inverse), strict=False):
        if output is not None:
            steps.append(partial(xp.copyto, output.reshape(-1), statistic.reshape(-1)))
    return in_order(steps)


def _rms_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (line_scratch(x, call.attributes["axis"], x.rank), *work_scratch(x, outputs[0]))


@kernel("RMSNormalization", scratch=_rms_scratch, binds=True)
def rms_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = x / √(mean x² + ε) · scale, all axes from `axis` on together.

    Source: ONNX RMSNormalization.
    """
    x, y = inputs[0], outputs[0]
    inverse, *wide = scratch
    source, work, steps = work_in(xp, x, y, wide)
    lines = as_lines(source, attributes["axis"], x.ndim), as_lines(work, attributes["axis"], x.ndim)
    steps += _inverse_root_mean_square(xp, lines[0], inverse, attributes["epsilon"])
    steps.append(partial(xp.multiply, lines[0], inverse, out=lines[1]))
    steps.append(partial(xp.multiply, work, inputs[1], out=y))
    return in_order(steps)


def _group_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    batch, channels, *_ = x.static_shape
    groups = call.attributes.get("num_groups", channels)
    line = TensorSpec(compute_dtype(x.dtype), (batch * groups, 1, 1))
    factor = TensorSpec(line.dtype, (batch, channels, 1))
    return (line, line, factor, *work_scratch(x, outputs[0]))


@kernel("InstanceNormalization", scratch=_group_scratch, binds=True)
@kernel("GroupNormalization", scratch=_group_scratch, binds=True)
def group_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / √(variance + ε) · scale + bias, each group of channels on its own.

    A group is one channel for InstanceNormalization.
    Sources: ONNX GroupNormalization, InstanceNormalization.
    """
    (x, scale, bias), y = inputs, outputs[0]
    mean, inverse, factor, *wide = scratch
    source, work, steps = work_in(xp, x, y, wide)
    batch, channels, *_ = x.shape
    groups = attributes.get("num_groups", channels)
    lines = (batch * groups, math.prod(x.shape[1:]) // groups, 1)
    by_group = (batch, groups, channels // groups)
    planes = work.reshape(batch, channels, math.prod(x.shape[2:]))
    return in_order(
        (
            *steps,
            *_standardize(
                xp, source.reshape(lines), work.reshape(lines), mean, inverse, attributes["epsilon"]
            ),
            partial(
                xp.multiply,
                inverse.reshape(batch, groups, 1),
                scale.reshape(by_group[1:]),
                out=factor.reshape(by_group),
            ),
            partial(xp.multiply, planes, factor, out=planes),
            partial(xp.add, planes, bias[:, None], out=y.reshape(planes.shape)),
        )
    )


def _variance_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    axes = {axis % len(x.static_shape) for axis in call.attributes["axes"]}
    kept = (1 if axis in axes else length for axis, length in enumerate(x.static_shape))
    wide = compute_dtype(x.dtype)
    statistic = TensorSpec(wide, tuple(kept))
    return (statistic, TensorSpec(wide, x.shape), *work_scratch(x, outputs[0]))


@kernel("MeanVarianceNormalization", scratch=_variance_scratch, binds=True)
def mean_variance_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    """Y = (x - mean) / (√variance + 10⁻⁹), over the axes together.

    Source: ONNX MeanVarianceNormalization (its function body has the constant).
    """
    x, y = inputs[0], outputs[0]
    statistic, squares, *wide = scratch
    source, work, steps = work_in(xp, x, y, wide)
    axes = tuple(axis % x.ndim for axis in attributes["axes"])
    mean = partial(xp.divide, statistic, math.prod(x.shape[axis] for axis in axes), out=statistic)
    return in_order(
        (
            *steps,
            sum_over(xp, source, axes, statistic),
            mean,
            partial(xp.subtract, source, statistic, out=work),
            partial(xp.multiply, work, work, out=squares),
            sum_over(xp, squares, axes, statistic),
            mean,
            partial(xp.sqrt, statistic, out=statistic),
            partial(xp.add, statistic, 1e-9, out=statistic),
            partial(xp.divide, work, statistic, out=y),
        )
    )
