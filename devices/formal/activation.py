"""Activation functions of ``(*inputs, **attributes)``, as ONNX defines them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ...graph.values.tensor import Array
from .elementwise import truncate
from .ieee import Real, divide, exp, expm1, largest, smallest
from .registry import definition, per_element


def _sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def _softplus(x: float) -> Real:
    """Return log(1 + eˣ) for `x`, with a positive x taken out: eˣ overflows, and is lost in 1."""
    return largest([x, 0.0]) + math.log1p(exp(-abs(x)))


def _leaky_relu(x: float, *, alpha: float) -> float:
    return alpha * x if x < 0 else x


def _hard_sigmoid(x: float, *, alpha: float, beta: float) -> Real:
    return smallest([largest([alpha * x + beta, 0.0]), 1.0])


def _hard_swish(x: float) -> Real:
    return x * _hard_sigmoid(x, alpha=1 / 6, beta=0.5)


def _elu(x: float, *, alpha: float) -> float:
    return alpha * expm1(x) if x < 0 else x


def _celu(x: float, *, alpha: float) -> Real:
    return largest([x, 0.0]) + smallest([alpha * expm1(divide(x, alpha)), 0.0])


def _gelu(x: float, *, approximate: str) -> float:
    if approximate == "tanh":
        return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return x / 2 * math.erfc(-x / math.sqrt(2))  # 1 + erf(z), not cancelled where x is negative


def _shrink(x: Real, *, bias: float, lambd: float) -> Real:
    if x < -lambd:
        shrunk: float = x + bias
    elif x > lambd:
        shrunk = x - bias
    else:
        shrunk = 0
    return truncate(shrunk) if isinstance(x, int) else shrunk


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "Relu": lambda x: largest([x, 0]),
    "LeakyRelu": _leaky_relu,
    "ThresholdedRelu": lambda x, *, alpha: 0.0 if x <= alpha else x,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Softsign": lambda x: divide(x, 1 + abs(x)),
    "Swish": lambda x, *, alpha: x * _sigmoid(alpha * x),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": lambda x, *, alpha, gamma: gamma * _elu(x, alpha=alpha),
    "Mish": lambda x: x * math.tanh(_softplus(x)),
    "Gelu": _gelu,
    "Shrink": _shrink,
}
"""Each as a function of one element, and of the operator's attributes."""


def _apply(function: Callable[..., Any], x: Array, **attributes: Any) -> Array:
    return per_element(partial(function, **attributes), x)


for _op, _function in ACTIVATIONS.items():
    definition(_op)(partial(_apply, _function))


@definition("PRelu")
def prelu(x: Array, slope: Array) -> Array:
    return per_element(lambda value, factor: factor * value if value < 0 else value, x, slope)
