"""BatchNormalization: by given statistics, or in training mode by those of the batch."""

from __future__ import annotations

import math

from ...graph.operator import Call, Specs
from .kernel import Code, Parameter
from .lines import Lines
from .norms import moments
from .reduction import input_of, output_of
from .registry import generates
from .sweeps import line_code
from .types import computed_type, literal, load, store

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
