"""Elementwise operators as other elementwise operators."""

from __future__ import annotations

from functools import reduce

import numpy as np

from .rules import DecompositionBuilder, decomposition


@decomposition("Clip", wide=False)
def clip(builder: DecompositionBuilder, x: str, low: str = "", high: str = "") -> str:
    bounded = builder("Max", x, _to_scalar(builder, low)) if low else x
    return builder("Min", bounded, _to_scalar(builder, high)) if high else bounded


@decomposition("Max", "Min", wide=False)
def extremum(builder: DecompositionBuilder, *operands: str) -> str | None:
    op = builder.node.op
    return None if len(operands) == 2 else reduce(lambda a, b: builder(op, a, b), operands)


@decomposition("Sum")
def total(builder: DecompositionBuilder, *operands: str) -> str:
    return reduce(lambda a, b: builder("Add", a, b), operands)


@decomposition("Mean")
def mean(builder: DecompositionBuilder, *operands: str) -> str:
    if len(operands) == 1:
        return operands[0]
    return builder("Div", builder("Sum", *operands), float(len(operands)))


@decomposition("Sub", wide=False)
def sub(builder: DecompositionBuilder, a: str, b: str) -> str | None:
    # a + (-b) has the same bits.
    return None if builder.spec(b).dtype.kind == "u" else builder("Add", a, builder("Neg", b))


@decomposition("Neg", wide=False)
def neg(builder: DecompositionBuilder, x: str) -> str:
    # x · -1 has the same bits.
    return builder("Mul", x, np.asarray(-1, builder.spec(x).dtype))


@decomposition("Reciprocal", wide=False)
def reciprocal(builder: DecompositionBuilder, x: str) -> str:
    return builder("Div", np.asarray(1, builder.spec(x).dtype), x)


@decomposition("Greater", "Less", wide=False)
def turned(builder: DecompositionBuilder, a: str, b: str) -> str:
    return builder("Less" if builder.node.op == "Greater" else "Greater", b, a)


@decomposition("GreaterOrEqual", "LessOrEqual", wide=False)
def or_equal(builder: DecompositionBuilder, a: str, b: str) -> str:
    # Two comparisons, as neither is true of a NaN.
    strict = builder(builder.node.op.removesuffix("OrEqual"), a, b)
    return builder("Or", strict, builder("Equal", a, b))


@decomposition("IsNaN", wide=False)
def is_nan(builder: DecompositionBuilder, x: str) -> str:
    return builder("Not", builder("Equal", x, x))


@decomposition("IsInf", wide=False)
def is_inf(builder: DecompositionBuilder, x: str) -> str | None:
    found = [
        builder("Equal", x, np.asarray(sign * np.inf, builder.spec(x).dtype))
        for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
        if builder.attributes[name]
    ]
    return reduce(lambda a, b: builder("Or", a, b), found) if found else None


@decomposition("Xor", wide=False)
def xor(builder: DecompositionBuilder, a: str, b: str) -> str:
    return builder("And", builder("Or", a, b), builder("Not", builder("And", a, b)))


@decomposition("CastLike", wide=False)
def cast_like(builder: DecompositionBuilder, x: str, like: str) -> str:
    given = {name: builder.attributes[name] for name in ("saturate", "round_mode")}
    return builder("Cast", x, to=builder.spec(like).dtype.name, **given)


def _to_scalar(builder: DecompositionBuilder, bound: str) -> str:
    """Reshape `bound` with `builder` to a scalar: an axis of length 1 would broadcast others."""
    shape = builder.shape(bound)
    return bound if shape == () else builder("Reshape", bound, np.zeros(0, np.int64))
