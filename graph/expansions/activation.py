"""Activation functions in arithmetic.  Sources: ONNX's operators of these names."""

from __future__ import annotations

import math

from .rules import Draft, expands


@expands("Relu", wide=False)
def relu(draft: Draft, x: str) -> str:
    """Max(x, 0)."""
    return draft("Max", x, draft.zero(x))


@expands("LeakyRelu")
def leaky_relu(draft: Draft, x: str) -> str:
    """X where it is not below 0, else alpha · x."""
    return _where_negative(draft, x, draft("Mul", x, _number(draft, "alpha")))


@expands("PRelu")
def prelu(draft: Draft, x: str, slope: str) -> str:
    """X where it is not below 0, else slope · x."""
    return _where_negative(draft, x, draft("Mul", x, slope))


@expands("ThresholdedRelu")
def thresholded_relu(draft: Draft, x: str) -> str:
    """0 where x is not above alpha, else x."""
    below = draft("LessOrEqual", x, _number(draft, "alpha"))
    return draft("Where", below, draft.zero(x), x)


@expands("HardSigmoid")
def hard_sigmoid(draft: Draft, x: str) -> str:
    """Alpha · x + beta, between 0 and 1."""
    line = draft("Add", draft("Mul", x, _number(draft, "alpha")), _number(draft, "beta"))
    return draft("Min", draft("Max", line, 0.0), 1.0)


@expands("HardSwish")
def hard_swish(draft: Draft, x: str) -> str:
    """X · HardSigmoid(x)."""
    return draft("Mul", x, draft("HardSigmoid", x, alpha=1 / 6, beta=0.5))


@expands("Softsign")
def softsign(draft: Draft, x: str) -> str:
    """X / (1 + |x|)."""
    return draft("Div", x, draft("Add", draft("Abs", x), 1.0))


@expands("Sigmoid")
def sigmoid(draft: Draft, x: str) -> str:
    """1 / (1 + exp(-x))."""
    return draft("Reciprocal", draft("Add", draft("Exp", draft("Neg", x)), 1.0))


@expands("Swish")
def swish(draft: Draft, x: str) -> str:
    """X · sigmoid(alpha · x)."""
    alpha = _number(draft, "alpha")
    scaled = x if alpha == 1 else draft("Mul", x, alpha)
    return draft("Mul", x, draft("Sigmoid", scaled))


@expands("Elu")
def elu(draft: Draft, x: str) -> str:
    """X where it is not below 0, else alpha · (exp(x) - 1)."""
    return _where_negative(draft, x, draft("Mul", _exp_less_1(draft, x), _number(draft, "alpha")))


@expands("Celu")
def celu(draft: Draft, x: str) -> str:
    """max(x, 0) + min(alpha · (exp(x / alpha) - 1), 0), the exponent kept from overflow."""
    alpha = _number(draft, "alpha")
    curve = _exp_less_1(draft, draft("Min", draft("Div", x, alpha), 0.0))
    if alpha < 0:  # the other branch is the one below 0
        curve = _exp_less_1(draft, draft("Div", x, alpha))
    below = draft("Min", draft("Mul", curve, alpha), 0.0)
    return draft("Add", draft("Max", x, 0.0), below)


@expands("Selu")
def selu(draft: Draft, x: str) -> str:
    """Gamma · Elu(x)."""
    gamma = _number(draft, "gamma")
    return draft("Mul", draft("Elu", x, alpha=_number(draft, "alpha")), gamma)


@expands("Softplus")
def softplus(draft: Draft, x: str) -> str:
    """log(1 + exp(x)), its larger part taken out: max(x, 0) + log(1 + exp(-|x|))."""
    small = draft("Log", draft("Add", draft("Exp", draft("Neg", draft("Abs", x))), 1.0))
    return draft("Add", draft("Max", x, 0.0), small)


@expands("Mish")
def mish(draft: Draft, x: str) -> str:
    """X · tanh(softplus(x))."""
    return draft("Mul", x, draft("Tanh", draft("Softplus", x)))


@expands("Gelu")
def gelu(draft: Draft, x: str) -> str:
    """X / 2 · (1 + erf(x / √2)), or tanh(√(2/π) · (x + 0.044715 · x³)) in place of erf."""
    if draft.attributes["approximate"] == "tanh":
        cube = draft("Mul", draft("Mul", x, x), x)
        inner = draft("Add", x, draft("Mul", cube, 0.044715))
        curve = draft("Tanh", draft("Mul", inner, math.sqrt(2 / math.pi)))
    else:
        curve = draft("Erf", draft("Mul", x, math.sqrt(0.5)))
    return draft("Mul", draft("Mul", x, 0.5), draft("Add", curve, 1.0))


@expands("Tanh")
def tanh(draft: Draft, x: str) -> str:
    """2 · sigmoid(2 · x) - 1: near 0 with the absolute error of numbers near 1."""
    twice = draft("Sigmoid", draft("Add", x, x))
    return draft("Sub", draft("Add", twice, twice), 1.0)


@expands("Shrink")
def shrink(draft: Draft, x: str) -> str | None:
    """X + bias below -lambd, x - bias above lambd, 0 between."""
    if draft.spec(x).dtype.kind != "f":
        return None
    bias, lambd = _number(draft, "bias"), _number(draft, "lambd")
    above = draft("Where", draft("Greater", x, lambd), draft("Sub", x, bias), draft.zero(x))
    return draft("Where", draft("Less", x, -lambd), draft("Add", x, bias), above)


def _where_negative(draft: Draft, x: str, otherwise: str) -> str:
    return draft("Where", draft("Less", x, draft.zero(x)), otherwise, x)


def _exp_less_1(draft: Draft, x: str) -> str:
    return draft("Sub", draft("Exp", x), 1.0)


def _number(draft: Draft, name: str) -> float:
    return float(draft.attributes[name])
