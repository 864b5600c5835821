"""Formulas of exact operators that compute an element from the elements at the same place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ....devices.codegen.elementwise import elementwise
from ....devices.codegen.formulas import Operand
from ....devices.codegen.types import write_literal
from ....graph.core.attribute import Attributes
from ....graph.core.operator import Call
from ..precision import compute_limit

FORMULAS = {
    "broadcast_add": "(i32)((u32){a} + (u32){b})",
    "broadcast_sub": "(i32)((u32){a} - (u32){b})",
    "broadcast_mul": "(i32)((u32){a} * (u32){b})",
    "broadcast_max": "max_i32({a}, {b})",
    "broadcast_div": "quotient_i32({a}, {b})",
    "broadcast_greater": "{a} > {b}",
    "elemwise_add": "(i32)((u32){a} + (u32){b})",
    "elemwise_sub": "(i32)((u32){a} - (u32){b})",
    "relu": "max_i32({a}, 0)",
    "abs": "abs_i32({a})",
    "negative": "(i32)(0 - (u32){a})",
    "precision": "digits_i32({a})",
    "clip": "min_i32(max_i32({a}, {a_min}), {a_max})",
    "cvm_clip": "min_i32(max_i32({a}, -{bound}), {bound})",
    "right_shift": "min_i32(max_i32(half_i32({a} >> {shift}), -{bound}), {bound})",
    "left_shift": "(i32)min_i64(max_i64((i64){a} * {factor}, -{bound}), {bound})",
}
"""Formulas of one or two elements and of numbers from the attributes.

A right shift rounds once, halves up, in the last bit shifted out; a left shift fits in 64 bits.
"""

_NUMBERS: dict[str, Callable[[Attributes], str]] = {
    "a_min": lambda attributes: write_literal(attributes["a_min"], "i32"),
    "a_max": lambda attributes: write_literal(attributes["a_max"], "i32"),
    "bound": lambda attributes: write_literal(compute_limit(attributes["precision"]), "i32"),
    "shift": lambda attributes: str(attributes["shift_bit"] - 1),
    "factor": lambda attributes: write_literal(1 << attributes["shift_bit"], "i64"),
}


def _write_formula(formula: str, call: Call, arguments: Sequence[str]) -> str:
    numbers = {
        name: number(call.attributes)
        for name, number in _NUMBERS.items()
        if f"{{{name}}}" in formula
    }
    return formula.format(**dict(zip("ab", arguments, strict=False)), **numbers)


for _op, _formula in FORMULAS.items():
    elementwise(f"cvm.{_op}")(partial(_write_formula, _formula))


def _list_operands(call: Call) -> Sequence[Operand]:
    """Return the operands of `call`: the condition, perhaps one of whole rows, and both choices."""
    shape, given = call.spec(1).static_shape, call.spec(0).static_shape
    rows = (*given, *(1,) * (len(shape) - len(given)))
    return Operand(0, rows), Operand(1, shape), Operand(2, shape)


@elementwise("cvm.where", operands=_list_operands)
def where(call: Call, arguments: Sequence[str]) -> str:
    return "{} != 0 ? {} : {}".format(*arguments)
