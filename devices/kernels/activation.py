"""Activation kernels.

y may have x's bytes: each formula reads x for the last time before it writes y, or in the same
pass. It is recorded when a plan is opened (`Recording`): all its results go to an ``out=``.
Formulas take ``(xp, x, y, attributes, *temporaries)``.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.values.tensor import Array
from .blocks import register_blockwise
from .erf import TEMPORARIES, write_erf
from .precision import clamp, find_limits
from .registry import ArrayModule, Arrays, Step, kernel
from .special_values import is_finite


@register_blockwise("Sigmoid")
def sigmoid(xp: ArrayModule, x: Array, y: Array, attributes: Attributes) -> None:
    # y = 1 / (1 + exp(-x)). Where exp overflows y is 0, which is right. The form with tanh is
    # faster by half, but has no correct digit left at x = -17 in float32.
    xp.negative(x, out=y)
    _logistic_of_negative(xp, y)


def _logistic_of_negative(xp: ArrayModule, y: Array) -> None:
    xp.exp(y, out=y)
    xp.add(y, 1, out=y)
    xp.reciprocal(y, out=y)


@register_blockwise("Swish", temporaries=1)
def swish(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, gate: Array) -> None:
    # y = x / (1 + exp(-alpha·x)).
    xp.multiply(x, -attributes["alpha"], out=gate)
    _logistic_of_negative(xp, gate)
    xp.multiply(x, gate, out=y)


@register_blockwise("LeakyRelu", temporaries=1)
def leaky_relu(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    # y = x where x ≥ 0, else alpha·x.
    alpha = attributes["alpha"]
    if alpha == 0:  # 0·∞ is not 0
        xp.minimum(x, 0, out=t)
        xp.multiply(t, alpha, out=t)
    else:
        xp.multiply(x, alpha, out=t)
    # Of x and alpha · x the larger one is right for alpha below 1, the smaller one above.
    (xp.maximum if alpha <= 1 else xp.minimum)(x, t, out=y)


@register_blockwise("ThresholdedRelu", temporaries=1)
def thresholded_relu(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    # y = x where x > alpha, else 0.
    # The temporary has more bytes than truth values take.
    below = t.view(np.bool_)[: t.size]
    xp.less_equal(x, attributes["alpha"], out=below)
    xp.copyto(y, x)
    xp.copyto(y, 0, where=below)


@register_blockwise("HardSigmoid")
def hard_sigmoid(xp: ArrayModule, x: Array, y: Array, attributes: Attributes) -> None:
    # y = min(max(alpha·x + beta, 0), 1).
    xp.multiply(x, attributes["alpha"], out=y)
    xp.add(y, attributes["beta"], out=y)
    xp.clip(y, 0, 1, out=y)


@register_blockwise("HardSwish", temporaries=1)
def hard_swish(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, gate: Array) -> None:
    # y = x · min(max(x/6 + 1/2, 0), 1).
    xp.multiply(x, 1 / 6, out=gate)
    xp.add(gate, 0.5, out=gate)
    xp.clip(gate, 0, 1, out=gate)
    xp.multiply(x, gate, out=y)


@register_blockwise("Elu", temporaries=1)
def elu(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    # y = x where x ≥ 0, else alpha·(exp(x) - 1).
    # Positive numbers, which are not used, would overflow.
    xp.clip(x, -np.inf, 0, out=t)
    xp.expm1(t, out=t)
    xp.multiply(t, attributes["alpha"], out=t)
    xp.clip(x, 0, np.inf, out=y)
    xp.add(y, t, out=y)


@register_blockwise("Selu", temporaries=1)
def selu(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    # y = gamma · elu(x).
    elu(xp, x, y, attributes, t)
    xp.multiply(y, attributes["gamma"], out=y)


@register_blockwise("Celu", temporaries=1)
def celu(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    # y = max(x, 0) + min(alpha·(exp(x/alpha) - 1), 0).
    xp.divide(x, attributes["alpha"], out=t)
    xp.expm1(t, out=t)
    xp.multiply(t, attributes["alpha"], out=t)
    xp.clip(t, -np.inf, 0, out=t)
    xp.clip(x, 0, np.inf, out=y)
    xp.add(y, t, out=y)


@register_blockwise("Softplus", temporaries=1)
def softplus(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    # y = log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|)): nothing overflows.
    xp.absolute(x, out=t)
    xp.negative(t, out=t)
    xp.exp(t, out=t)
    xp.log1p(t, out=t)
    xp.clip(x, 0, np.inf, out=y)
    xp.add(y, t, out=y)


@register_blockwise("Softsign", temporaries=1)
def softsign(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array) -> None:
    xp.absolute(x, out=t)
    xp.add(t, 1, out=t)
    xp.divide(x, t, out=y)


@register_blockwise("Mish", temporaries=2)
def mish(
    xp: ArrayModule, x: Array, y: Array, attributes: Attributes, gate: Array, t: Array
) -> None:
    # y = x · tanh(softplus(x)).
    softplus(xp, x, gate, attributes, t)
    xp.tanh(gate, out=gate)
    xp.multiply(x, gate, out=y)


@register_blockwise("Gelu", temporaries=1 + TEMPORARIES)
def gelu(
    xp: ArrayModule, x: Array, y: Array, attributes: Attributes, t: Array, *more: Array
) -> None:
    # y = x/2 · (1 + erf(x/√2)), or with tanh x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))).
    if attributes["approximate"] == "tanh":
        xp.multiply(x, x, out=t)
        xp.multiply(t, 0.044715, out=t)
        xp.add(t, 1, out=t)
        xp.multiply(t, x, out=t)
        xp.multiply(t, math.sqrt(2 / math.pi), out=t)
        xp.tanh(t, out=t)
    else:
        xp.multiply(x, math.sqrt(0.5), out=t)
        write_erf(xp, t, t, *more)
    xp.add(t, 1, out=t)
    xp.multiply(t, x, out=t)
    xp.multiply(t, 0.5, out=y)


@register_blockwise("Erf", temporaries=TEMPORARIES)
def erf(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, *temporaries: Array) -> None:
    write_erf(xp, x, y, *temporaries)


@kernel("Shrink")
def shrink(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    # y = x + bias where x < -lambd, x - bias where x > lambd, else 0.
    (x,), bias, lambd = inputs, attributes["bias"], attributes["lambd"]
    shrunk = xp.where(x < -lambd, x + bias, xp.where(x > lambd, x - bias, 0))
    xp.copyto(outputs[0], shrunk, casting="unsafe")


@kernel("PRelu", scratch=lambda call, outputs: outputs, binds=True)
def prelu(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = x where x ≥ 0, else slope·x.
    (x, slope), (y,), (t,) = inputs, outputs, scratch
    return partial(_prelu, xp, x, slope, y, t)


def _prelu(xp: ArrayModule, x: Array, slope: Array, y: Array, t: Array) -> None:
    if xp is np and not is_finite(slope):  # the sum below would add 0 · inf
        xp.copyto(y, xp.where(x < 0, x * slope, x))
        return
    lowest, highest = find_limits(x.dtype)
    # The two halves of x, of which one is 0, are put together again by a sum.
    clamp(xp, x, lowest, 0, t)
    xp.multiply(t, slope, out=t)
    clamp(xp, x, 0, highest, y)
    xp.add(y, t, out=y)
