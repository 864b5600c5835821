"""Normalization and norms, by ``kernel(xp, inputs, outputs, attributes, scratch) -> Step``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from .arguments import declare_line_scratch, get_optional, to_lines
from .precision import compute_dtype, declare_wide_work, declare_work, prepare_work
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .sliding import AxisWindow, slide
from .sums import sum_over


def _standardize(
    xp: ArrayModule, source: Array, work: Array, mean: Array, inverse: Array, epsilon: float
) -> list[Step]:
    # In two passes: E[x²] - E[x]² would cancel where the mean is large.
    return [
        sum_over(xp, source, (1,), mean),
        partial(xp.divide, mean, source.shape[1], out=mean),
        partial(xp.subtract, source, mean, out=work),
        *_compute_inverse_rms(xp, work, inverse, epsilon),
    ]


def _compute_inverse_rms(
    xp: ArrayModule, lines: Array, inverse: Array, epsilon: float
) -> list[Step]:
    # A dot product of each line with itself needs no memory for squares.
    rows = lines[:, :, 0]
    return [
        partial(xp.vecdot, rows, rows, out=inverse[:, 0, 0]),
        partial(xp.divide, inverse, rows.shape[1], out=inverse),
        partial(xp.add, inverse, epsilon, out=inverse),
        partial(xp.sqrt, inverse, out=inverse),
        partial(xp.reciprocal, inverse, out=inverse),
    ]


def _declare_layer_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    line = declare_line_scratch(x, call.attributes["axis"], x.rank)
    return (line, line, *declare_work(x, outputs[0]))


@kernel("LayerNormalization", scratch=_declare_layer_scratch, binds=True)
def layer_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y, bias = inputs[0], outputs[0], get_optional(inputs, 2)
    mean, inverse, *wide = scratch
    source, work, steps = prepare_work(xp, x, y, wide)
    lines = to_lines(source, attributes["axis"], x.ndim), to_lines(work, attributes["axis"], x.ndim)
    steps += _standardize(xp, *lines, mean, inverse, attributes["epsilon"])
    steps.append(partial(xp.multiply, lines[1], inverse, out=lines[1]))
    steps.append(partial(xp.multiply, work, inputs[1], out=y if bias is None else work))
    if bias is not None:
        steps.append(partial(xp.add, work, bias, out=y))
    for output, statistic in zip(outputs[1:], (mean, inverse), strict=False):
        if output is not None:
            steps.append(partial(xp.copyto, output.reshape(-1), statistic.reshape(-1)))
    return run_in_order(steps)


def _declare_rms_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    return (declare_line_scratch(x, call.attributes["axis"], x.rank), *declare_work(x, outputs[0]))


@kernel("RMSNormalization", scratch=_declare_rms_scratch, binds=True)
def rms_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = inputs[0], outputs[0]
    inverse, *wide = scratch
    source, work, steps = prepare_work(xp, x, y, wide)
    lines = to_lines(source, attributes["axis"], x.ndim), to_lines(work, attributes["axis"], x.ndim)
    steps += _compute_inverse_rms(xp, lines[0], inverse, attributes["epsilon"])
    steps.append(partial(xp.multiply, lines[0], inverse, out=lines[1]))
    steps.append(partial(xp.multiply, work, inputs[1], out=y))
    return run_in_order(steps)


def _group_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    batch, channels, *_ = x.static_shape
    groups = call.attributes.get("num_groups", channels)
    line = TensorSpec(compute_dtype(x.dtype), (batch * groups, 1, 1))
    factor = TensorSpec(line.dtype, (batch, channels, 1))
    return (line, line, factor, *declare_work(x, outputs[0]))


@kernel("InstanceNormalization", scratch=_group_scratch, binds=True)
@kernel("GroupNormalization", scratch=_group_scratch, binds=True)
def group_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = (x - mean) / √(variance + ε) · scale + bias, each group of channels on its own. A group is
    # one channel for InstanceNormalization.
    (x, scale, bias), y = inputs, outputs[0]
    mean, inverse, factor, *wide = scratch
    source, work, steps = prepare_work(xp, x, y, wide)
    batch, channels, *_ = x.shape
    groups = attributes.get("num_groups", channels)
    lines = (batch * groups, math.prod(x.shape[1:]) // groups, 1)
    by_group = (batch, groups, channels // groups)
    # Measured by group, but scaled by channel: two views of the same cells.
    planes = work.reshape(batch, channels, math.prod(x.shape[2:]))
    return run_in_order(
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


def _declare_variance_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    axes = {axis % len(x.static_shape) for axis in call.attributes["axes"]}
    kept = (1 if axis in axes else length for axis, length in enumerate(x.static_shape))
    wide = compute_dtype(x.dtype)
    statistic = TensorSpec(wide, tuple(kept))
    return (statistic, TensorSpec(wide, x.shape), *declare_work(x, outputs[0]))


@kernel("MeanVarianceNormalization", scratch=_declare_variance_scratch, binds=True)
def mean_variance_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = (x - mean) / (√variance + 10⁻⁹), over the axes together; ONNX's body has the constant.
    x, y = inputs[0], outputs[0]
    statistic, squares, *wide = scratch
    source, work, steps = prepare_work(xp, x, y, wide)
    axes = tuple(axis % x.ndim for axis in attributes["axes"])
    mean = partial(xp.divide, statistic, math.prod(x.shape[axis] for axis in axes), out=statistic)
    return run_in_order(
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


def _declare_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the scratch for `call` and `outputs`: work, any computed scale and shift, and sums."""
    x = call.spec(0)
    work = declare_work(x, outputs[0])
    per_channel = TensorSpec(compute_dtype(x.dtype), call.spec(1).shape)
    if call.attributes["training_mode"]:
        batch, channels, _ = _to_planes(x.static_shape)
        sums = TensorSpec(per_channel.dtype, (batch, channels))
        return (*work, per_channel, per_channel, per_channel, sums)
    if all(call.value(index) is not None for index in range(1, 5)):
        return work
    return (*work, per_channel, per_channel)


@kernel("BatchNormalization", scratch=_declare_scratch, binds=True)
def batch_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    if attributes["training_mode"]:
        return _train(xp, inputs, outputs, attributes, scratch)
    x, scale, bias, mean, variance = inputs
    y, wide = outputs[0], compute_dtype(x.dtype)
    narrow = y.dtype != wide
    if len(scratch) < 2:  # all four are constants: fold them now
        factor, shift = xp.empty(scale.shape, wide), xp.empty(scale.shape, wide)
    else:
        factor, shift = scratch[-2:]
    fold = run_in_order(
        _fold(xp, scale, bias, mean, variance, attributes["epsilon"], factor, shift)
    )
    planes = _to_planes(x.shape)
    work = (scratch[0] if narrow else y).reshape(planes)
    steps = (
        partial(xp.multiply, x.reshape(planes), factor[:, None], out=work),
        partial(xp.add, work, shift[:, None], out=y.reshape(planes)),
    )
    if len(scratch) >= 2:
        return run_in_order((fold, *steps))
    # As in a run: a variance below -epsilon comes from the model, and yields NaN.
    with np.errstate(all="ignore"):
        fold()
    return run_in_order(steps)


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
    x, scale, bias, running_mean, running_variance = inputs
    y = outputs[0]
    *wide, mean, variance, factor, sums = scratch
    source, work, steps = prepare_work(xp, x, y, wide)
    planes = _to_planes(x.shape)
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
    return run_in_order(steps)


def _move(xp: ArrayModule, old: Array, new: Array, momentum: float, out: Array) -> list[Step]:
    return [
        partial(xp.multiply, old, momentum, out=out),
        # Nothing reads the statistic after this.
        partial(xp.multiply, new, 1 - momentum, out=new),
        partial(xp.add, out, new, out=out),
    ]


def _to_planes(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return `shape` as (batch, channels, rest); a lone batch axis has one channel."""
    channels = shape[1] if len(shape) > 1 else 1
    return shape[0], channels, math.prod(shape[2:])


def raise_to(xp: ArrayModule, x: Array, powers: Array, p: int) -> list[Step]:
    if p == 2:
        return [partial(xp.multiply, x, x, out=powers, dtype=powers.dtype)]
    steps: list[Step] = [partial(xp.absolute, x, out=powers)]
    if p > 1:
        steps.append(partial(xp.power, powers, p, out=powers))
    return steps


def take_root(xp: ArrayModule, total: Array, y: Array, p: int) -> Step:
    if p == 1:
        return partial(xp.copyto, y, total, casting="same_kind")
    if p == 2:
        return partial(xp.sqrt, total, out=y)
    return partial(xp.power, total, 1 / p, out=y)


def _declare_norm_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x = call.spec(0)
    norm = declare_line_scratch(x, call.attributes["axis"])
    return (norm, TensorSpec("bool", norm.shape), *declare_work(x, outputs[0]))


@kernel("LpNormalization", scratch=_declare_norm_scratch, binds=True)
def lp_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = to_lines(inputs[0], attributes["axis"]), to_lines(outputs[0], attributes["axis"])
    norm, vanishes, *wide = scratch
    work = wide[0].reshape(y.shape) if wide else y
    p = attributes["p"]
    return run_in_order(
        (
            *raise_to(xp, x, work, p),
            sum_over(xp, work, (1,), norm),
            take_root(xp, norm, norm, p),
            partial(xp.equal, norm, 0, out=vanishes),
            partial(xp.copyto, norm, math.inf, where=vanishes),  # x / inf = 0
            partial(xp.divide, x, norm, out=y),
        )
    )


@kernel("LRN", scratch=declare_wide_work, binds=True)
def local_response_normalization(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    x, y = to_lines(inputs[0], 1), to_lines(outputs[0], 1)
    squares = scratch[0].reshape(x.shape)
    work = scratch[1].reshape(x.shape) if scratch[1:] else y
    size, channels = attributes["size"], x.shape[1]
    # Channels beyond the ends are as if 0: a window with padding, in steps of one.
    neighbours = AxisWindow(channels, channels, size, begin=(size - 1) // 2)
    return run_in_order(
        (
            partial(xp.multiply, x, x, out=squares, dtype=squares.dtype),
            *slide(xp, xp.add, squares, work, 1, neighbours, 0),
            partial(xp.multiply, work, attributes["alpha"] / size, out=work),
            partial(xp.add, work, attributes["bias"], out=work),
            partial(xp.power, work, attributes["beta"], out=work),
            partial(xp.divide, x, work, out=y),
        )
    )
