"""Formulas of activation functions. Floats are computed in their own type, float16 in f32.

Each takes a `call` and, as C expressions, its `arguments`; it returns the C expression of y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ...graph.core.operator import Call
from .conversion import convert
from .elementwise import elementwise
from .types import is_float, to_computed_type, write_literal

FORMULAS = {
    "Relu": "max_{t}({x}, 0)",
    "LeakyRelu": "{x} < 0 ? {x} * {alpha} : {x}",
    "ThresholdedRelu": "{x} <= {alpha} ? 0 : {x}",
    "HardSigmoid": "min_{t}(max_{t}({x} * {alpha} + {beta}, 0), 1)",
    "HardSwish": "{x} * min_{t}(max_{t}({x} * {sixth} + {half}, 0), 1)",
    "Sigmoid": "1 / (1 + exp(-{x}))",
    "Swish": "{x} * (1 / (1 + exp(-{alpha} * {x})))",
    "Softsign": "{x} / (1 + fabs({x}))",
    "Softplus": "softplus_{t}({x})",
    "Mish": "{x} * tanh(softplus_{t}({x}))",
    "Elu": "{x} < 0 ? expm1({x}) * {alpha} : {x}",
    "Selu": "{gamma} * ({x} < 0 ? expm1({x}) * {alpha} : {x})",
    "Celu": "max_{t}({x}, 0) + min_{t}(expm1({x} / {alpha}) * {alpha}, 0)",
}
"""In terms of one float x and the operator's attributes."""

GELU = {
    "none": "(1 + erf({x} * {root_half})) * {x} * {half}",
    "tanh": "{x} / (1 + exp({x} * (({x} * {x}) * {cubic} + 1) * {minus_root}))",
}
"""By approximation; (1 + tanh(u)) / 2 is written 1 / (1 + exp(-2u)), which does not cancel."""

CONSTANTS = {
    "sixth": 1 / 6,
    "half": 0.5,
    "root_half": math.sqrt(0.5),
    "cubic": 0.044715,
    "minus_root": -2 * math.sqrt(2 / math.pi),
}


def _fill_formula(formula: str, call: Call, arguments: Sequence[str]) -> str:
    t = to_computed_type(call.spec(0).dtype)
    numbers = {**CONSTANTS, **call.attributes}
    literals = {
        name: write_literal(value, t) for name, value in numbers.items() if isinstance(value, float)
    }
    return formula.format(x=arguments[0], t=t, **literals)


for _op, _formula in FORMULAS.items():
    elementwise(_op)(partial(_fill_formula, _formula))


@elementwise("Gelu")
def gelu(call: Call, arguments: Sequence[str]) -> str:
    return _fill_formula(GELU[call.attributes["approximate"]], call, arguments)


@elementwise("PRelu")
def prelu(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`: x where x ≥ 0, else slope·x; integers wrap, modulo 2ⁿ."""
    t = to_computed_type(call.spec(0).dtype)
    x, slope = arguments
    if t.startswith("f"):
        return f"{x} < 0 ? {x} * {slope} : {x}"
    if t.startswith("u"):
        return x
    return f"{x} < 0 ? ({t})((u64){x} * (u64){slope}) : {x}"


@elementwise("Shrink", float64=lambda call: not is_float(call.spec(0).dtype))
def shrink(call: Call, arguments: Sequence[str]) -> str:
    """Write C for `call` on `arguments`.

    It is x + bias if x < -lambd, x - bias if x > lambd, else 0; integers go by f64.
    """
    dtype, (x,) = call.spec(0).dtype, arguments
    t = to_computed_type(dtype)
    c = t if t.startswith("f") else "f64"
    bias, lambd = (write_literal(call.attributes[name], c) for name in ("bias", "lambd"))
    value = f"{x} < -{lambd} ? {x} + {bias} : {x} > {lambd} ? {x} - {bias} : 0"
    return value if c == t else convert(value, c, dtype)
