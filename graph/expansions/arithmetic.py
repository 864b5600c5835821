"""Elementwise operators in others."""

from __future__ import annotations

from functools import reduce

import numpy as np

from .rules import Draft, expands


@expands("Clip", wide=False)
def clip(draft: Draft, x: str, low: str = "", high: str = "") -> str:
    """Min(Max(x, low), high)."""
    bounded = draft("Max", x, _scalar(draft, low)) if low else x
    return draft("Min", bounded, _scalar(draft, high)) if high else bounded


@expands("Max", "Min", wide=False)
def extremum(draft: Draft, *operands: str) -> str | None:
    """One after the other, where there are not two."""
    op = draft.node.op
    return None if len(operands) == 2 else reduce(lambda a, b: draft(op, a, b), operands)


@expands("Sum")
def total(draft: Draft, *operands: str) -> str:
    """Add, one after the other."""
    return reduce(lambda a, b: draft("Add", a, b), operands)


@expands("Mean")
def mean(draft: Draft, *operands: str) -> str:
    """Sum(...) / count."""
    if len(operands) == 1:
        return operands[0]
    return draft("Div", draft("Sum", *operands), float(len(operands)))


@expands("Sub", wide=False)
def sub(draft: Draft, a: str, b: str) -> str | None:
    """A + (-b): the same bits."""
    return None if draft.spec(b).dtype.kind == "u" else draft("Add", a, draft("Neg", b))


@expands("Neg", wide=False)
def neg(draft: Draft, x: str) -> str:
    """X · -1: the same bits."""
    return draft("Mul", x, np.asarray(-1, draft.spec(x).dtype))


@expands("Reciprocal", wide=False)
def reciprocal(draft: Draft, x: str) -> str:
    """1 / x."""
    return draft("Div", np.asarray(1, draft.spec(x).dtype), x)


@expands("Greater", "Less", wide=False)
def turned(draft: Draft, a: str, b: str) -> str:
    """B < a, or b > a."""
    return draft("Less" if draft.node.op == "Greater" else "Greater", b, a)


@expands("GreaterOrEqual", "LessOrEqual", wide=False)
def or_equal(draft: Draft, a: str, b: str) -> str:
    """Greater or Equal: two comparisons, as neither is true of a NaN."""
    strict = draft(draft.node.op.removesuffix("OrEqual"), a, b)
    return draft("Or", strict, draft("Equal", a, b))


@expands("IsNaN", wide=False)
def is_nan(draft: Draft, x: str) -> str:
    """Not equal to itself."""
    return draft("Not", draft("Equal", x, x))


@expands("IsInf", wide=False)
def is_inf(draft: Draft, x: str) -> str | None:
    """Equal to an infinity."""
    found = [
        draft("Equal", x, np.asarray(sign * np.inf, draft.spec(x).dtype))
        for sign, name in ((1, "detect_positive"), (-1, "detect_negative"))
        if draft.attributes[name]
    ]
    return reduce(lambda a, b: draft("Or", a, b), found) if found else None


@expands("Xor", wide=False)
def xor(draft: Draft, a: str, b: str) -> str:
    """One of them, and not both."""
    return draft("And", draft("Or", a, b), draft("Not", draft("And", a, b)))


@expands("CastLike", wide=False)
def cast_like(draft: Draft, x: str, like: str) -> str:
    """Cast to the other's dtype."""
    given = {name: draft.attributes[name] for name in ("saturate", "round_mode")}
    return draft("Cast", x, to=draft.spec(like).dtype.name, **given)


def _scalar(draft: Draft, bound: str) -> str:
    """Return a bound without axes: one of length 1 would add an axis to a scalar."""
    shape = draft.shape(bound)
    return bound if shape == () else draft("Reshape", bound, np.zeros(0, np.int64))
