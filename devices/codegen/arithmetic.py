"""Formulas of arithmetic, comparison, logic and selection.

Each takes a `call` and, as C expressions, its `arguments`; it returns the C expression of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from ...graph.core.operator import Call
from .conversion import convert
from .elementwise import elementwise
from .formulas import Formula, Operand, list_first_input
from .functions import choose_word
from .types import is_float, to_computed_type

FLOATS = {
    "Add": "{a} + {b}",
    "Sub": "{a} - {b}",
    "Mul": "{a} * {b}",
    "Div": "{a} / {b}",
    "Neg": "-{a}",
    "Abs": "fabs({a})",
    "Sign": "sign_{t}({a})",
    "Reciprocal": "1 / {a}",
    "Sqrt": "sqrt({a})",
    "Floor": "floor({a})",
    "Ceil": "ceil({a})",
    "Round": "rint({a})",
    "Exp": "exp({a})",
    "Log": "log({a})",
    "Erf": "erf({a})",
    "Sin": "sin({a})",
    "Cos": "cos({a})",
    "Tan": "tan({a})",
    "Asin": "asin({a})",
    "Acos": "acos({a})",
    "Atan": "atan({a})",
    "Sinh": "sinh({a})",
    "Cosh": "cosh({a})",
    "Tanh": "tanh({a})",
    "Asinh": "asinh({a})",
    "Acosh": "acosh({a})",
    "Atanh": "atanh({a})",
    "IsNaN": "{a} != {a}",
}
"""Formulas of one or two floats."""

INTEGERS = {
    "Add": "({t})(({w}){a} + ({w}){b})",
    "Sub": "({t})(({w}){a} - ({w}){b})",
    "Mul": "({t})(({w}){a} * ({w}){b})",
    "Div": "quotient_{t}({a}, {b})",
    "Neg": "({t})(0 - ({w}){a})",
    "Abs": "abs_{t}({a})",
    "Sign": "sign_{t}({a})",
    "BitwiseAnd": "{a} & {b}",
    "BitwiseOr": "{a} | {b}",
    "BitwiseXor": "{a} ^ {b}",
    "BitwiseNot": "({t})~{a}",
}
"""Formulas of integers, modulo 2ⁿ; signed ones use unsigned types, since signed overflow is
undefined."""

EITHER = {
    "Equal": "{a} == {b}",
    "Less": "{a} < {b}",
    "LessOrEqual": "{a} <= {b}",
    "Greater": "{a} > {b}",
    "GreaterOrEqual": "{a} >= {b}",
    "And": "{a} & {b}",
    "Or": "{a} | {b}",
    "Xor": "{a} ^ {b}",
    "Not": "!{a}",
}
"""Formulas of any numbers or truth values."""


def _format_entry(op: str, call: Call, arguments: Sequence[str]) -> str:
    t = to_computed_type(call.spec(0).dtype)
    table = FLOATS if t.startswith("f") else INTEGERS
    values = dict(zip("ab", arguments, strict=False))
    return (EITHER | table)[op].format(**values, t=t, w=choose_word(t))


for _op in {**FLOATS, **INTEGERS, **EITHER}:
    elementwise(_op)(partial(_format_entry, _op))


def _fold(combine: str) -> Formula:
    """Return the formula that joins all inputs from left to right; `combine` joins {a} and {b}."""

    def formula(call: Call, arguments: Sequence[str]) -> str:
        t = to_computed_type(call.spec(0).dtype)
        return reduce(lambda a, b: combine.format(a=a, b=b, t=t), arguments)

    return formula


elementwise("Max")(_fold("max_{t}({a}, {b})"))
elementwise("Min")(_fold("min_{t}({a}, {b})"))
elementwise("Sum")(_fold("{a} + {b}"))


@elementwise("Mean")
def mean(call: Call, arguments: Sequence[str]) -> str:
    return f"({' + '.join(arguments)}) / {len(arguments)}"


@elementwise("Mod")
def modulo(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: a mod b with the sign of b, or of a with fmod."""
    name = "rest" if call.attributes["fmod"] else "modulo"
    return f"{name}_{to_computed_type(call.spec(0).dtype)}({', '.join(arguments)})"


@elementwise("BitShift")
def shift(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: a << b or a >> b; b beyond the width leaves the sign."""
    name = call.attributes["direction"].lower()
    return f"{name}_{to_computed_type(call.spec(0).dtype)}({', '.join(arguments)})"


@elementwise("IsInf")
def is_infinite(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: whether x is infinite, with a sign that `call` detects."""
    infinity = f"INF_{to_computed_type(call.spec(0).dtype).upper()}"
    signs = {"detect_positive": "", "detect_negative": "-"}
    asked = [sign for name, sign in signs.items() if call.attributes[name]]
    return " || ".join(f"{arguments[0]} == {sign}{infinity}" for sign in asked) or "0"


@elementwise("Where")
def where(call: Call, arguments: Sequence[str]) -> str:
    return "{} ? {} : {}".format(*arguments)


def _list_clip_operands(call: Call) -> Sequence[Operand]:
    # Scalars of any shape with one element.
    bounds = [Operand(index, ()) for index in (1, 2) if call.has(index)]
    return [Operand(0, call.spec(0).static_shape), *bounds]


@elementwise("Clip", operands=_list_clip_operands)
def clip(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: min(max(x, low), high); either end may be absent."""
    t = to_computed_type(call.spec(0).dtype)
    x, low, high = (*arguments, "", "")[:3]
    raised = f"max_{t}({x}, {low})" if low else x
    return f"min_{t}({raised}, {high})" if high else raised


# Correct within a rounding or two, which C's pow need not be, and much faster.
SHORT_POWERS = {
    -1.0: "1 / {x}",
    0.5: "sqrt({x})",
    1.0: "{x}",
    2.0: "{x} * {x}",
    3.0: "{x} * {x} * {x}",
}


_IN_F32 = ("f32", "i8", "u8", "i16", "u16")
"""Types whose numbers are all exact in f32."""


def _is_wide(call: Call) -> bool:
    base, exponent = (call.spec(index).dtype for index in range(2))
    if not is_float(base):
        return is_float(exponent)
    value = call.value(1)
    if value is not None and value.size == 1 and value.item() in SHORT_POWERS:
        return False
    return base != np.float32 or np.result_type(exponent, np.float32) != np.float32


@elementwise("Pow", float64=_is_wide)
def power(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: xᵉ in x's dtype.

    Integers are modulo 2ⁿ; small powers of floats are products.
    """
    x, e = arguments
    base, exponent = (to_computed_type(call.spec(index).dtype) for index in range(2))
    if base.startswith("f"):
        value = call.value(1)
        if value is not None and value.size == 1 and value.item() in SHORT_POWERS:
            return SHORT_POWERS[value.item()].format(x=x)
        # As numpy promotes: f64 if f32 does not hold all numbers of the exponent's dtype.
        wide = "f32" if base == "f32" and exponent in _IN_F32 else "f64"
        found = f"pow(({wide}){x}, ({wide}){e})"
        return f"({base}){found}" if wide != base else found
    if exponent.startswith("u"):
        return f"power_{base}({x}, {e})"
    whole = f"({e} < 0 ? inverse_{base}({x}, (i64){e}) : power_{base}({x}, (u64){e}))"
    if exponent.startswith("i"):
        return whole
    # Integers to the power of an integral float are exact modulo 2ⁿ.
    integral = f"({e} == rint({e}) && fabs({e}) < 0x1p31f)"
    whole = f"({e} < 0 ? inverse_{base}({x}, (i64){e}) : power_{base}({x}, (u64)fabs({e})))"
    other = convert(f"pow((f64){x}, (f64){e})", "f64", call.spec(0).dtype)
    return f"{integral} ? {whole} : {other}"


@elementwise("Expand", operands=list_first_input, alone=False)
def expand(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: x itself, which consumers read without repetition."""
    return arguments[0]
