"""Gradients of activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient

Activation = Callable[[Adjoint, Term, Term, Term], Term]


def _differentiate_hard_swish(at: Adjoint, dy: Term, x: Term, y: Term) -> Term:
    # The slope of x·clip(x/6 + 1/2, 0, 1) is x/3 + 1/2 between its bounds, else 0 or 1.
    slope = x * (1 / 3) + 0.5
    one = at.formula.constant(1, x.dtype)
    inner = slope.where(x < 3, one)
    return dy * inner.where(x > -3)


def _differentiate_mish(at: Adjoint, dy: Term, x: Term, y: Term) -> Term:
    t = x.op("Softplus").op("Tanh")
    return dy * (t + x * (1 - t * t) * x.op("Sigmoid"))


def _differentiate_swish(at: Adjoint, dy: Term, x: Term, y: Term) -> Term:
    alpha: float = at["alpha"]
    s = (x * alpha).op("Sigmoid")
    return dy * (s + y * (1 - s) * alpha)


def _differentiate_gelu(at: Adjoint, dy: Term, x: Term, y: Term) -> Term:
    # The slope of x·Φ(x), or of its tanh form (Hendrycks, Gimpel 2016).
    if at["approximate"] == "tanh":
        outer, inner = math.sqrt(2 / math.pi), 0.044715
        square = x * x
        t = (x * (square * inner + 1) * outer).op("Tanh")
        slope = (square * (3 * inner) + 1) * outer
        return dy * ((t + 1) * 0.5 + x * (1 - t * t) * slope * 0.5)
    below = ((x * math.sqrt(0.5)).op("Erf") + 1) * 0.5
    density = (x * x * -0.5).op("Exp") * (1 / math.sqrt(2 * math.pi))
    return dy * (below + x * density)


_RULES: dict[str, Activation] = {
    "Relu": lambda at, dy, x, y: dy.where(y > 0),
    "LeakyRelu": lambda at, dy, x, y: dy.where(x > 0, dy * at["alpha"]),
    "ThresholdedRelu": lambda at, dy, x, y: dy.where(x > at["alpha"]),
    "HardSigmoid": lambda at, dy, x, y: (dy * at["alpha"]).where((y > 0).op("And", y < 1)),
    "HardSwish": _differentiate_hard_swish,
    "Softsign": lambda at, dy, x, y: dy / (x.op("Abs") + 1) ** 2,
    "Sigmoid": lambda at, dy, x, y: dy * y * (1 - y),
    "Swish": _differentiate_swish,
    "Elu": lambda at, dy, x, y: dy.where(x > 0, dy * (y + at["alpha"])),
    "Celu": lambda at, dy, x, y: dy.where(x > 0, dy * (y / at["alpha"] + 1)),
    "Selu": lambda at, dy, x, y: (dy * at["gamma"]).where(
        x > 0, dy * (y + at["alpha"] * at["gamma"])
    ),
    "Softplus": lambda at, dy, x, y: dy * x.op("Sigmoid"),
    "Mish": _differentiate_mish,
    "Gelu": _differentiate_gelu,
    "Shrink": lambda at, dy, x, y: dy.where((x < -at["lambd"]).op("Or", x > at["lambd"])),
}
"""From the gradient of y, x and y to the gradient of x."""


def _apply_rule(rule: Activation, at: Adjoint) -> Gradients:
    yield 0, rule(at, at.dy, at.input(0), at.output())


for _op, _rule in _RULES.items():
    gradient(_op)(partial(_apply_rule, _rule))


@gradient("PRelu")
def prelu(at: Adjoint) -> Gradients:
    x, slope = at.input(0), at.input(1)
    if at.wants(0):
        yield 0, (at.dy * slope).where(x < 0, at.dy)
    if at.wants(1):
        yield 1, at.summed((at.dy * x).where(x < 0), slope)
