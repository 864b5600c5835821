"""Activation functions as arithmetic. Sources: ONNX's operators of these names."""

from __future__ import annotations

import math

from .rules import DecompositionBuilder, decomposition


@decomposition("Relu", wide=False)
def relu(builder: DecompositionBuilder, x: str) -> str:
    return builder("Max", x, builder.zero(x))


@decomposition("LeakyRelu")
def leaky_relu(builder: DecompositionBuilder, x: str) -> str:
    return _select_negative(builder, x, builder("Mul", x, _get_number(builder, "alpha")))


@decomposition("PRelu")
def prelu(builder: DecompositionBuilder, x: str, slope: str) -> str:
    return _select_negative(builder, x, builder("Mul", x, slope))


@decomposition("ThresholdedRelu")
def thresholded_relu(builder: DecompositionBuilder, x: str) -> str:
    below = builder("LessOrEqual", x, _get_number(builder, "alpha"))
    return builder("Where", below, builder.zero(x), x)


@decomposition("HardSigmoid")
def hard_sigmoid(builder: DecompositionBuilder, x: str) -> str:
    line = builder(
        "Add", builder("Mul", x, _get_number(builder, "alpha")), _get_number(builder, "beta")
    )
    return builder("Min", builder("Max", line, 0.0), 1.0)


@decomposition("HardSwish")
def hard_swish(builder: DecompositionBuilder, x: str) -> str:
    return builder("Mul", x, builder("HardSigmoid", x, alpha=1 / 6, beta=0.5))


@decomposition("Softsign")
def softsign(builder: DecompositionBuilder, x: str) -> str:
    return builder("Div", x, builder("Add", builder("Abs", x), 1.0))


@decomposition("Sigmoid")
def sigmoid(builder: DecompositionBuilder, x: str) -> str:
    return builder("Reciprocal", builder("Add", builder("Exp", builder("Neg", x)), 1.0))


@decomposition("Swish")
def swish(builder: DecompositionBuilder, x: str) -> str:
    alpha = _get_number(builder, "alpha")
    scaled = x if alpha == 1 else builder("Mul", x, alpha)
    return builder("Mul", x, builder("Sigmoid", scaled))


@decomposition("Elu")
def elu(builder: DecompositionBuilder, x: str) -> str:
    return _select_negative(
        builder, x, builder("Mul", _compute_expm1(builder, x), _get_number(builder, "alpha"))
    )


@decomposition("Celu")
def celu(builder: DecompositionBuilder, x: str) -> str:
    # max(x, 0) + min(alpha · (exp(x / alpha) - 1), 0), kept from overflow.
    alpha = _get_number(builder, "alpha")
    curve = _compute_expm1(builder, builder("Min", builder("Div", x, alpha), 0.0))
    if alpha < 0:  # the other branch is the one below 0
        curve = _compute_expm1(builder, builder("Div", x, alpha))
    below = builder("Min", builder("Mul", curve, alpha), 0.0)
    return builder("Add", builder("Max", x, 0.0), below)


@decomposition("Selu")
def selu(builder: DecompositionBuilder, x: str) -> str:
    gamma = _get_number(builder, "gamma")
    return builder("Mul", builder("Elu", x, alpha=_get_number(builder, "alpha")), gamma)


@decomposition("Softplus")
def softplus(builder: DecompositionBuilder, x: str) -> str:
    # log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|)).
    small = builder("Log", builder("Add", builder("Exp", builder("Neg", builder("Abs", x))), 1.0))
    return builder("Add", builder("Max", x, 0.0), small)


@decomposition("Mish")
def mish(builder: DecompositionBuilder, x: str) -> str:
    return builder("Mul", x, builder("Tanh", builder("Softplus", x)))


@decomposition("Gelu")
def gelu(builder: DecompositionBuilder, x: str) -> str:
    # x / 2 · (1 + erf(x / √2)), or tanh(√(2/π) · (x + 0.044715 · x³)) in place of erf.
    if builder.attributes["approximate"] == "tanh":
        cube = builder("Mul", builder("Mul", x, x), x)
        inner = builder("Add", x, builder("Mul", cube, 0.044715))
        curve = builder("Tanh", builder("Mul", inner, math.sqrt(2 / math.pi)))
    else:
        curve = builder("Erf", builder("Mul", x, math.sqrt(0.5)))
    return builder("Mul", builder("Mul", x, 0.5), builder("Add", curve, 1.0))


@decomposition("Tanh")
def tanh(builder: DecompositionBuilder, x: str) -> str:
    # 2 · sigmoid(2 · x) - 1: near 0 with the absolute error of numbers near 1.
    twice = builder("Sigmoid", builder("Add", x, x))
    return builder("Sub", builder("Add", twice, twice), 1.0)


@decomposition("Shrink")
def shrink(builder: DecompositionBuilder, x: str) -> str | None:
    if builder.spec(x).dtype.kind != "f":
        return None
    bias, lambd = _get_number(builder, "bias"), _get_number(builder, "lambd")
    above = builder("Where", builder("Greater", x, lambd), builder("Sub", x, bias), builder.zero(x))
    return builder("Where", builder("Less", x, -lambd), builder("Add", x, bias), above)


def _select_negative(builder: DecompositionBuilder, x: str, otherwise: str) -> str:
    return builder("Where", builder("Less", x, builder.zero(x)), otherwise, x)


def _compute_expm1(builder: DecompositionBuilder, x: str) -> str:
    return builder("Sub", builder("Exp", x), 1.0)


def _get_number(builder: DecompositionBuilder, name: str) -> float:
    return float(builder.attributes[name])
