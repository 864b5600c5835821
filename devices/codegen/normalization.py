"""Normalizations: each line, plane or group of channels has its own shift and scale.

The variance is computed in a second sweep: E[x²] - E[x]² would cancel for a large mean.
BatchNormalization has it as an input or, in training mode, computes that of the batch. Each
generator takes a `call` and the specs of its `outputs`, and returns the `Code`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import TensorSpec
from .folds import make_sum
from .indexing import broadcast_strides, declare_coordinates, make_strides, merge_axes, write_offset
from .reduction import declare_input, declare_output, write_power, write_root
from .registry import Code, Parameter, generates
from .sweeps import LineFold, Lines, fold_lines
from .types import load, store, to_computed_type, write_literal


def make_moments(dtype: np.dtype[Any], length: int, then: str) -> tuple[LineFold, LineFold]:
    c = to_computed_type(dtype)
    count = write_literal(length, c)

    def square(at: str) -> str:
        # In a second pass: mean x² - (mean x)² would leave few digits where the mean is large.
        deviation = f"({load(dtype, 'x', at)} - mean)"
        return f"{deviation} * {deviation}"

    return (
        LineFold(
            "total",
            make_sum(c),
            lambda at: load(dtype, "x", at),
            (f"const {c} mean = total / {count};",),
        ),
        LineFold(
            "squares", make_sum(c), square, (f"const {c} variance = squares / {count};", then)
        ),
    )


def _declare_inverse(c: str, of: str, epsilon: float) -> str:
    return f"const {c} inverse = {write_literal(1, c)} / sqrt({of} + {write_literal(epsilon, c)});"


def _load_broadcast(
    spec: TensorSpec, name: str, shape: Sequence[int], at: str, c: str
) -> tuple[list[str], str]:
    """Return declarations, and the expression that reads tensor `name` as if it had `shape`.

    `spec` describes the tensor, `at` is the index of an element, in C type `c`.
    """
    # Axes that are repeated alike become one, so that most parameters take no division.
    lengths, _, strides = merge_axes(
        shape, make_strides(shape), broadcast_strides(spec.static_shape, shape)
    )
    statements = declare_coordinates(at, lengths, f"{name}_", c)
    return statements, load(spec.dtype, name, write_offset(strides, f"{name}_"))


@generates("LayerNormalization")
def layer_normalization(call: Call, outputs: Specs) -> Code:
    x, scale, y = call.spec(0), call.spec(1), outputs[0]
    shape, c = x.static_shape, to_computed_type(x.dtype)
    lines = Lines(shape, tuple(range(call.attributes["axis"] % len(shape), len(shape))))
    parameters = [declare_input(x), declare_input(scale, "scale", 1), declare_output(y)]
    if call.has(2):
        parameters.append(declare_input(call.spec(2), "bias", 2))
    once = []
    # Statistics are written once for a line, if they are outputs.
    for index, (spec, statistic) in enumerate(zip(outputs[1:], ("mean", "inverse"), strict=False)):
        parameters.append(declare_output(spec, f"y{index + 1}", index + 1))
        once.append(store(spec.dtype, f"y{index + 1}", "line", statistic))

    def write(at: str) -> list[str]:
        statements, factor = _load_broadcast(scale, "scale", shape, at, lines.index)
        value = f"({load(x.dtype, 'x', at)} - mean) * inverse * {factor}"
        if call.has(2):
            more, shift = _load_broadcast(call.spec(2), "bias", shape, at, lines.index)
            statements, value = statements + more, f"{value} + {shift}"
        return [*statements, store(y.dtype, "y", at, value)]

    inverse = _declare_inverse(c, "variance", call.attributes["epsilon"])
    folds = make_moments(x.dtype, lines.length, inverse)
    return fold_lines("layer_norm", lines, parameters, folds, each=write, once=once)


@generates("RMSNormalization")
def rms_normalization(call: Call, outputs: Specs) -> Code:
    x, scale, y = call.spec(0), call.spec(1), outputs[0]
    shape, c = x.static_shape, to_computed_type(x.dtype)
    lines = Lines(shape, tuple(range(call.attributes["axis"] % len(shape), len(shape))))

    def square(at: str) -> str:
        return f"{load(x.dtype, 'x', at)} * {load(x.dtype, 'x', at)}"

    def write(at: str) -> list[str]:
        statements, factor = _load_broadcast(scale, "scale", shape, at, lines.index)
        value = f"{load(x.dtype, 'x', at)} * inverse * {factor}"
        return [*statements, store(y.dtype, "y", at, value)]

    mean = f"(squares / {write_literal(lines.length, c)})"
    inverse = _declare_inverse(c, mean, call.attributes["epsilon"])
    parameters = (declare_input(x), declare_input(scale, "scale", 1), declare_output(y))
    squares = LineFold("squares", make_sum(c), square, (inverse,))
    return fold_lines("rms_norm", lines, parameters, (squares,), each=write)


@generates("InstanceNormalization", "GroupNormalization")
def group_normalization(call: Call, outputs: Specs) -> Code:
    x, scale, bias, y = call.spec(0), call.spec(1), call.spec(2), outputs[0]
    batch, channels, *spatial = x.static_shape
    groups, cells = call.attributes.get("num_groups", channels), math.prod(spatial)
    lines = Lines((batch * groups, channels // max(groups, 1) * cells), (1,))

    factor, shift = load(scale.dtype, "scale", "c"), load(bias.dtype, "bias", "c")

    def write(at: str) -> list[str]:
        value = f"({load(x.dtype, 'x', at)} - mean) * (inverse * {factor}) + {shift}"
        # A group's line has several channels, each with a scale of its own.
        channel = f"{at} / {max(cells, 1)} % {max(channels, 1)}"
        return [f"const {lines.index} c = {channel};", store(y.dtype, "y", at, value)]

    inverse = _declare_inverse(to_computed_type(x.dtype), "variance", call.attributes["epsilon"])
    parameters = (
        declare_input(x),
        declare_input(scale, "scale", 1),
        declare_input(bias, "bias", 2),
        declare_output(y),
    )
    folds = make_moments(x.dtype, lines.length, inverse)
    return fold_lines("group_norm", lines, parameters, folds, each=write)


@generates("LpNormalization")
def lp_normalization(call: Call, outputs: Specs) -> Code:
    """Return code for `call` and `outputs`: x / ‖x‖ₚ along the axis, 0 where the norm is 0."""
    x, y, p = call.spec(0), outputs[0], call.attributes["p"]
    shape, c = x.static_shape, to_computed_type(x.dtype)
    norm = f"const {c} norm = {write_root('total', p, c)};"

    def write(at: str) -> list[str]:
        value = f"norm == 0 ? {write_literal(0, c)} : {load(x.dtype, 'x', at)} / norm"
        return [store(y.dtype, "y", at, f"({value})")]

    total = LineFold(
        "total", make_sum(c), lambda at: write_power(load(x.dtype, "x", at), p, c), (norm,)
    )
    lines = Lines(shape, (call.attributes["axis"] % len(shape),))
    return fold_lines("lp_norm", lines, (declare_input(x), declare_output(y)), (total,), each=write)


_LEAST_DEVIATION = 1e-9
"""ONNX adds this to the deviation in MeanVarianceNormalization."""


@generates("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, outputs: Specs) -> Code:
    x, y = call.spec(0), outputs[0]
    shape, c = x.static_shape, to_computed_type(x.dtype)
    axes = {axis % len(shape) for axis in call.attributes["axes"]}
    deviation = f"const {c} deviation = sqrt(variance) + {write_literal(_LEAST_DEVIATION, c)};"

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"({load(x.dtype, 'x', at)} - mean) / deviation")]

    lines = Lines(shape, tuple(sorted(axes)))
    folds = make_moments(x.dtype, lines.length, deviation)
    return fold_lines("mv_norm", lines, (declare_input(x), declare_output(y)), folds, each=write)


@generates("LRN")
def local_response_normalization(call: Call, outputs: Specs) -> Code:
    x, y, attributes = call.spec(0), outputs[0], call.attributes
    c, (batch, channels, *spatial) = to_computed_type(x.dtype), x.static_shape
    # A line for each channel of a sample; neighbours are read where they lie.
    lines = Lines((batch, channels, math.prod(spatial)), (2,))
    size, (_, _, cells) = attributes["size"], lines.shape
    before, behind = (size - 1) // 2, size // 2
    scale, bias, beta = (
        write_literal(number, c)
        for number in (attributes["alpha"] / size, attributes["bias"], attributes["beta"])
    )

    def write(at: str) -> list[str]:
        value = load(x.dtype, "x", f"{at} + (n - c) * {cells}")
        return [
            f"{c} energy = 0;",
            "for (i32 n = first; n <= last; n++) {",
            f"const {c} value = {value};",
            "energy = energy + value * value;",
            "}",
            store(
                y.dtype,
                "y",
                at,
                f"{load(x.dtype, 'x', at)} / pow(energy * {scale} + {bias}, {beta})",
            ),
        ]

    prepare = (
        f"const i32 c = line % {max(channels, 1)};",
        f"const i32 first = c > {before} ? c - {before} : 0;",
        f"const i32 last = c + {behind} < {channels} ? c + {behind} : {channels - 1};",
    )
    return fold_lines(
        "lrn", lines, (declare_input(x), declare_output(y)), prepare=prepare, each=write
    )


_PER_CHANNEL = ("scale", "bias", "given_mean", "given_variance")


@generates("BatchNormalization")
def batch_normalization(call: Call, outputs: Specs) -> Code:
    if call.attributes["training_mode"]:
        return _train(call, outputs)
    x, y = call.spec(0), outputs[0]
    c, (batch, channels, cells) = to_computed_type(x.dtype), _to_planes(x.static_shape)
    scale, bias, mean, variance = _load_channel(call, f"line % {max(channels, 1)}")
    prepare = (
        f"const {c} factor = {scale} / sqrt({variance} + {_write_epsilon(call, c)});",
        f"const {c} shift = {bias} - {mean} * factor;",
    )

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"{load(x.dtype, 'x', at)} * factor + shift")]

    lines = Lines((batch, channels, cells), (2,))
    parameters = (*_declare_inputs(call), declare_output(y))
    return fold_lines("batch_norm", lines, parameters, prepare=prepare, each=write)


def _train(call: Call, outputs: Specs) -> Code:
    x, y = call.spec(0), outputs[0]
    c, lines = to_computed_type(x.dtype), Lines(_to_planes(x.static_shape), (0, 2))
    scale, bias, mean, variance = _load_channel(call, "line")
    factor = f"const {c} factor = {scale} / sqrt(variance + {_write_epsilon(call, c)});"
    momentum = call.attributes["momentum"]
    keep, move = write_literal(momentum, c), write_literal(1 - momentum, c)
    parameters, once = [*_declare_inputs(call), declare_output(y)], []
    running = ((mean, "mean"), (variance, "variance"))
    for index, ((old, new), spec) in enumerate(zip(running, outputs[1:], strict=False), 1):
        parameters.append(declare_output(spec, f"y{index}", index))
        once.append(store(spec.dtype, f"y{index}", "line", f"{old} * {keep} + {new} * {move}"))

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"({load(x.dtype, 'x', at)} - mean) * factor + {bias}")]

    folds = make_moments(x.dtype, lines.length, factor)
    return fold_lines("batch_norm", lines, parameters, folds, each=write, once=once)


def _declare_inputs(call: Call) -> list[Parameter]:
    names = enumerate(("x", *_PER_CHANNEL))
    return [declare_input(call.spec(index), name, index) for index, name in names]


def _load_channel(call: Call, channel: str) -> list[str]:
    names = enumerate(_PER_CHANNEL, 1)
    return [load(call.spec(index).dtype, name, channel) for index, name in names]


def _write_epsilon(call: Call, c: str) -> str:
    return write_literal(call.attributes["epsilon"], c)


def _to_planes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return `shape` as (batch, channels, rest); a lone batch axis has one channel."""
    return shape[0], shape[1] if len(shape) > 1 else 1, math.prod(shape[2:])
