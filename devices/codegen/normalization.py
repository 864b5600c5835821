"""Normalizations: what each line, plane or group of channels is shifted and scaled by is its own.

The variance is measured in a second sweep: E[x²] - E[x]² would cancel where the mean is large.
BatchNormalization is given it, or, in training mode, measures that of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .folds import sum_of
from .indexing import broadcast, contiguous, coordinates, merged, offset
from .kernel import Code, Parameter
from .lines import Lines
from .reduction import input_of, output_of, power, root
from .registry import generates
from .sweeps import LineFold, line_code
from .types import computed_type, literal, load, store


def moments(dtype: np.dtype[Any], length: int, then: str) -> tuple[LineFold, LineFold]:
    """Return the folds of `mean`, and of `variance` with a statement behind it."""
    c = computed_type(dtype)
    count = literal(length, c)

    def square(at: str) -> str:
        # In a second pass: mean x² - (mean x)² would leave few digits where the mean is large.
        deviation = f"({load(dtype, 'x', at)} - mean)"
        return f"{deviation} * {deviation}"

    return (
        LineFold(
            "total",
            sum_of(c),
            lambda at: load(dtype, "x", at),
            (f"const {c} mean = total / {count};",),
        ),
        LineFold(
            "squares",
            sum_of(c),
            square,
            (f"const {c} variance = squares / {count};", then),
        ),
    )


def _inverse(c: str, of: str, epsilon: float) -> str:
    """Return the statement that declares `inverse`."""
    return f"const {c} inverse = {literal(1, c)} / sqrt({of} + {literal(epsilon, c)});"


def _repeated(
    spec: TensorSpec, name: str, shape: Sequence[int], at: str, c: str
) -> tuple[list[str], str]:
    """Return statements, and the expression that reads a tensor repeated to fill a shape."""
    # Axes that are repeated alike become one, so that most parameters take no division.
    lengths, _, strides = merged(shape, contiguous(shape), broadcast(spec.static_shape, shape))
    statements = coordinates(at, lengths, f"{name}_", c)
    return statements, load(spec.dtype, name, offset(strides, f"{name}_"))


@generates("LayerNormalization")
def layer_normalization(call: Call, outputs: Specs) -> Code:
    """Y = (x - mean) / √(variance + ε) · scale + bias, all axes from `axis` on together."""
    x, scale, y = call.spec(0), call.spec(1), outputs[0]
    shape, c = x.static_shape, computed_type(x.dtype)
    lines = Lines(shape, tuple(range(call.attributes["axis"] % len(shape), len(shape))))
    parameters = [input_of(x), input_of(scale, "scale", 1), output_of(y)]
    if call.has(2):
        parameters.append(input_of(call.spec(2), "bias", 2))
    once = []
    # Statistics are written once for a line, if anybody asked for them.
    for index, (spec, statistic) in enumerate(zip(outputs[1:], ("mean", "inverse"), strict=False)):
        parameters.append(output_of(spec, f"y{index + 1}", index + 1))
        once.append(store(spec.dtype, f"y{index + 1}", "line", statistic))

    def write(at: str) -> list[str]:
        statements, factor = _repeated(scale, "scale", shape, at, lines.index)
        value = f"({load(x.dtype, 'x', at)} - mean) * inverse * {factor}"
        if call.has(2):
            more, shift = _repeated(call.spec(2), "bias", shape, at, lines.index)
            statements, value = statements + more, f"{value} + {shift}"
        return [*statements, store(y.dtype, "y", at, value)]

    inverse = _inverse(c, "variance", call.attributes["epsilon"])
    folds = moments(x.dtype, lines.length, inverse)
    return line_code("layer_norm", lines, parameters, folds, each=write, once=once)


@generates("RMSNormalization")
def rms_normalization(call: Call, outputs: Specs) -> Code:
    """Y = x / √(mean x² + ε) · scale, all axes from `axis` on together."""
    x, scale, y = call.spec(0), call.spec(1), outputs[0]
    shape, c = x.static_shape, computed_type(x.dtype)
    lines = Lines(shape, tuple(range(call.attributes["axis"] % len(shape), len(shape))))

    def square(at: str) -> str:
        return f"{load(x.dtype, 'x', at)} * {load(x.dtype, 'x', at)}"

    def write(at: str) -> list[str]:
        statements, factor = _repeated(scale, "scale", shape, at, lines.index)
        value = f"{load(x.dtype, 'x', at)} * inverse * {factor}"
        return [*statements, store(y.dtype, "y", at, value)]

    mean = f"(squares / {literal(lines.length, c)})"
    inverse = _inverse(c, mean, call.attributes["epsilon"])
    parameters = (input_of(x), input_of(scale, "scale", 1), output_of(y))
    squares = LineFold("squares", sum_of(c), square, (inverse,))
    return line_code("rms_norm", lines, parameters, (squares,), each=write)


@generates("InstanceNormalization", "GroupNormalization")
def group_normalization(call: Call, outputs: Specs) -> Code:
    """Y = (x - mean) / √(variance + ε) · scale + bias, each group of channels on its own.

    A group is one channel for InstanceNormalization.
    """
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

    inverse = _inverse(computed_type(x.dtype), "variance", call.attributes["epsilon"])
    parameters = (input_of(x), input_of(scale, "scale", 1), input_of(bias, "bias", 2), output_of(y))
    folds = moments(x.dtype, lines.length, inverse)
    return line_code("group_norm", lines, parameters, folds, each=write)


@generates("LpNormalization")
def lp_normalization(call: Call, outputs: Specs) -> Code:
    """Y = x / ‖x‖ₚ along the axis, 0 where the norm is 0."""
    x, y, p = call.spec(0), outputs[0], call.attributes["p"]
    shape, c = x.static_shape, computed_type(x.dtype)
    norm = f"const {c} norm = {root('total', p, c)};"

    def write(at: str) -> list[str]:
        value = f"norm == 0 ? {literal(0, c)} : {load(x.dtype, 'x', at)} / norm"
        return [store(y.dtype, "y", at, f"({value})")]

    total = LineFold("total", sum_of(c), lambda at: power(load(x.dtype, "x", at), p, c), (norm,))
    lines = Lines(shape, (call.attributes["axis"] % len(shape),))
    return line_code("lp_norm", lines, (input_of(x), output_of(y)), (total,), each=write)


_LEAST_DEVIATION = 1e-9
"""What ONNX adds to the deviation in MeanVarianceNormalization."""


@generates("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, outputs: Specs) -> Code:
    """Y = (x - mean) / (√variance + 10⁻⁹), over the axes together."""
    x, y = call.spec(0), outputs[0]
    shape, c = x.static_shape, computed_type(x.dtype)
    axes = {axis % len(shape) for axis in call.attributes["axes"]}
    deviation = f"const {c} deviation = sqrt(variance) + {literal(_LEAST_DEVIATION, c)};"

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"({load(x.dtype, 'x', at)} - mean) / deviation")]

    lines = Lines(shape, tuple(sorted(axes)))
    folds = moments(x.dtype, lines.length, deviation)
    return line_code("mv_norm", lines, (input_of(x), output_of(y)), folds, each=write)


@generates("LRN")
def local_response_normalization(call: Call, outputs: Specs) -> Code:
    """Y = x / (bias + alpha/size · Σ x²)^beta, summed over the neighbouring channels."""
    x, y, attributes = call.spec(0), outputs[0], call.attributes
    c, (batch, channels, *spatial) = computed_type(x.dtype), x.static_shape
    # A line for each channel of a sample; neighbours are read where they lie.
    lines = Lines((batch, channels, math.prod(spatial)), (2,))
    size, (_, _, cells) = attributes["size"], lines.shape
    before, behind = (size - 1) // 2, size // 2
    scale, bias, beta = (
        literal(number, c)
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
    return line_code("lrn", lines, (input_of(x), output_of(y)), prepare=prepare, each=write)


_PER_CHANNEL = ("scale", "bias", "given_mean", "given_variance")


@generates("BatchNormalization")
def batch_normalization(call: Call, outputs: Specs) -> Code:
    """Y = (x - mean) / √(variance + ε) · scale + bias, for each channel."""
    if call.attributes["training_mode"]:
        return _train(call, outputs)
    x, y = call.spec(0), outputs[0]
    c, (batch, channels, cells) = computed_type(x.dtype), _planes(x.static_shape)
    scale, bias, mean, variance = _read(call, f"line % {max(channels, 1)}")
    prepare = (
        f"const {c} factor = {scale} / sqrt({variance} + {_epsilon(call, c)});",
        f"const {c} shift = {bias} - {mean} * factor;",
    )

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"{load(x.dtype, 'x', at)} * factor + shift")]

    lines = Lines((batch, channels, cells), (2,))
    parameters = (*_inputs(call), output_of(y))
    return line_code("batch_norm", lines, parameters, prepare=prepare, each=write)


def _train(call: Call, outputs: Specs) -> Code:
    """Normalize by the batch's own statistics, and move the running ones towards them."""
    x, y = call.spec(0), outputs[0]
    c, lines = computed_type(x.dtype), Lines(_planes(x.static_shape), (0, 2))
    scale, bias, mean, variance = _read(call, "line")
    factor = f"const {c} factor = {scale} / sqrt(variance + {_epsilon(call, c)});"
    momentum = call.attributes["momentum"]
    keep, move = literal(momentum, c), literal(1 - momentum, c)
    parameters, once = [*_inputs(call), output_of(y)], []
    running = ((mean, "mean"), (variance, "variance"))
    for index, ((old, new), spec) in enumerate(zip(running, outputs[1:], strict=False), 1):
        parameters.append(output_of(spec, f"y{index}", index))
        once.append(store(spec.dtype, f"y{index}", "line", f"{old} * {keep} + {new} * {move}"))

    def write(at: str) -> list[str]:
        return [store(y.dtype, "y", at, f"({load(x.dtype, 'x', at)} - mean) * factor + {bias}")]

    folds = moments(x.dtype, lines.length, factor)
    return line_code("batch_norm", lines, parameters, folds, each=write, once=once)


def _inputs(call: Call) -> list[Parameter]:
    names = enumerate(("x", *_PER_CHANNEL))
    return [input_of(call.spec(index), name, index) for index, name in names]


def _read(call: Call, channel: str) -> list[str]:
    """Return the expressions of scale, bias, mean and variance of a channel."""
    names = enumerate(_PER_CHANNEL, 1)
    return [load(call.spec(index).dtype, name, channel) for index, name in names]


def _epsilon(call: Call, c: str) -> str:
    return literal(call.attributes["epsilon"], c)


def _planes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return a shape as (batch, channels, rest); a lone batch axis has one channel."""
    return shape[0], shape[1] if len(shape) > 1 else 1, math.prod(shape[2:])
