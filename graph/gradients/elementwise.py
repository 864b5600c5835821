"""Gradients of elementwise arithmetic, summed over broadcast axes.

At a kink the gradient is one of the adjacent slopes or a value between: 0 for Abs at 0; equal
arguments of Max and Min share the gradient equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from .formula import Term
from .registry import Adjoint, gradient

Gradients = Iterator[tuple[int, Term]]
Unary = Callable[[Term, Term, Term], Term]
Binary = Callable[[Term, Term, Term, Term], Term]

_UNARY: dict[str, Unary] = {
    "Abs": lambda dy, x, y: dy * x.op("Sign"),
    "Acos": lambda dy, x, y: -dy / (1 - x * x).op("Sqrt"),
    "Acosh": lambda dy, x, y: dy / (x * x - 1).op("Sqrt"),
    "Asin": lambda dy, x, y: dy / (1 - x * x).op("Sqrt"),
    "Asinh": lambda dy, x, y: dy / (x * x + 1).op("Sqrt"),
    "Atan": lambda dy, x, y: dy / (x * x + 1),
    "Atanh": lambda dy, x, y: dy / (1 - x * x),
    "Cos": lambda dy, x, y: -dy * x.op("Sin"),
    "Cosh": lambda dy, x, y: dy * x.op("Sinh"),
    "Erf": lambda dy, x, y: dy * (-(x * x)).op("Exp") * (2 / math.sqrt(math.pi)),
    "Exp": lambda dy, x, y: dy * y,
    "Identity": lambda dy, x, y: dy,
    "Log": lambda dy, x, y: dy / x,
    "Neg": lambda dy, x, y: -dy,
    "Reciprocal": lambda dy, x, y: -dy * y * y,
    "Sin": lambda dy, x, y: dy * x.op("Cos"),
    "Sinh": lambda dy, x, y: dy * x.op("Cosh"),
    "Sqrt": lambda dy, x, y: dy / (2 * y),
    "Tan": lambda dy, x, y: dy * (1 + y * y),
    "Tanh": lambda dy, x, y: dy * (1 - y * y),
}

_BINARY: dict[str, tuple[Binary, Binary]] = {
    "Add": (lambda dy, a, b, y: dy, lambda dy, a, b, y: dy),
    "Sub": (lambda dy, a, b, y: dy, lambda dy, a, b, y: -dy),
    "Mul": (lambda dy, a, b, y: dy * b, lambda dy, a, b, y: dy * a),
    "Div": (lambda dy, a, b, y: dy / b, lambda dy, a, b, y: -dy * y / b),
}
"""The gradients with respect to the first and to the second operand, before they are summed."""


def _apply_unary(rule: Unary, at: Adjoint) -> Gradients:
    yield 0, rule(at.dy, at.input(0), at.output())


def _apply_binary(rules: tuple[Binary, Binary], at: Adjoint) -> Gradients:
    a, b = at.input(0), at.input(1)
    for index, (rule, operand) in enumerate(zip(rules, (a, b), strict=True)):
        if at.wants(index):
            yield index, at.summed(rule(at.dy, a, b, at.output()), operand)


for _op, _rule in _UNARY.items():
    gradient(_op)(partial(_apply_unary, _rule))

for _op, _rules in _BINARY.items():
    gradient(_op)(partial(_apply_binary, _rules))


@gradient("Mod")
def modulo(at: Adjoint) -> Gradients:
    # The quotient counts as constant: y is a minus a whole multiple of b.
    a, b = at.input(0), at.input(1)
    if at.wants(0):
        yield 0, at.summed(at.dy, a)
    if at.wants(1):
        quotient = a / b
        if at["fmod"]:
            times = quotient.op("Sign") * quotient.op("Abs").op("Floor")
        else:
            times = quotient.op("Floor")
        yield 1, at.summed(-at.dy * times, b)


@gradient("Pow")
def power(at: Adjoint) -> Gradients:
    # dx = dy·e·x^(e-1), and de = dy·y·log x if x > 0, else 0, so that 0^0 stays 1.
    x, exponent = at.input(0), at.input(1)
    if at.wants(0):
        yield 0, at.summed(_differentiate_power(at.dy, x, exponent), x)
    if at.wants(1):
        positive = x > 0
        logarithm = x.where(positive, 1).op("Log")
        yield 1, at.summed(at.dy * at.output() * logarithm, exponent)


def _differentiate_power(dy: Term, x: Term, exponent: Term) -> Term:
    value = exponent.value
    if value is not None and value.size == 1 and value.reshape(-1)[0] != 0:
        number = float(value.reshape(-1)[0])
        slope = x if number == 2 else x ** (number - 1)
        return dy if number == 1 else dy * slope * number
    e = exponent.cast(x.dtype)
    return dy * e * x.where((e > 0).op("Or", e < 0), 1) ** (e - 1)


def _share_extremum(at: Adjoint) -> Gradients:
    # All operands that are the extremum share the gradient equally.
    y, operands = at.output(), [at.input(index) for index in range(len(at.inputs))]
    if len(operands) == 1:
        yield 0, at.dy
        return
    chosen = [x.equals(y).cast(y.dtype) for x in operands]
    count = chosen[0].op("Sum", *chosen[1:]) if len(chosen) > 2 else chosen[0] + chosen[1]
    share = at.dy / count
    for index, x in enumerate(operands):
        if at.wants(index):
            yield index, at.summed(share * chosen[index], x)


gradient("Max")(_share_extremum)
gradient("Min")(_share_extremum)


def _spread_sum(divides: bool, at: Adjoint) -> Gradients:
    dy = at.dy / len(at.inputs) if divides else at.dy
    for index in range(len(at.inputs)):
        if at.wants(index):
            yield index, at.summed(dy, at.input(index))


gradient("Sum")(partial(_spread_sum, False))
gradient("Mean")(partial(_spread_sum, True))


@gradient("Clip")
def clip(at: Adjoint) -> Gradients:
    x, y = at.input(0), at.output()
    if at.wants(0):
        yield 0, at.dy.where(x.equals(y))
    for index in (1, 2):
        bound = at.optional(index)
        if bound is not None and at.wants(index):
            replaced = x < y if index == 1 else x > y
            total = at.dy.where(replaced).op("ReduceSum", keepdims=False)
            yield index, total.reshaped(at.formula.shape_of(bound))


def _cast_back(at: Adjoint) -> Gradients:
    yield 0, at.dy.cast(at.input(0).dtype)


gradient("Cast")(_cast_back)
gradient("CastLike")(_cast_back)


@gradient("Dropout")
def dropout(at: Adjoint) -> Gradients:
    training = at.optional(2)
    if training is None or (training.value is not None and not training.value.any()):
        yield 0, at.dy
        return
    given = at.optional(1)
    ratio = at.formula.constant(0.5, at.dy.dtype) if given is None else given.cast(at.dy.dtype)
    scale = (1 - ratio.where(training)).op("Reciprocal")
    if scale.spec.rank != 0:  # a list of one would add a dimension to a single number
        scale = scale.op("Reshape", at.formula.constant([], "int64"))
    yield 0, (at.dy * scale).where(at.output(1))


@gradient("Where")
def where(at: Adjoint) -> Gradients:
    condition = at.input(0)
    if at.wants(1):
        yield 1, at.summed(at.dy.where(condition), at.input(1))
    if at.wants(2):
        zero = at.formula.constant(0, at.dy.dtype)
        yield 2, at.summed(zero.where(condition, at.dy), at.input(2))
