"""Generators of elementwise nodes: kernels are composed of one formula in C for each operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...graph.core.operator import Call, Specs
from .composition import compose
from .formulas import Formula, Member, Operands, Rule, list_all_inputs, register_formula
from .registry import Code, Condition, Question, generates, use_no_float64

MOST_INPUTS = 64
"""OpenCL guarantees 128 buffers."""


def elementwise(
    *ops: str,
    operands: Operands = list_all_inputs,
    unless: Question | None = None,
    float64: Condition = use_no_float64,
    alone: bool = True,
) -> Callable[[Formula], Formula]:
    """Return the decorator that registers a formula, and a generator of single nodes, for `ops`.

    `operands` lists the inputs of a formula, by default all. `unless` returns why a node has no
    formula, `float64` whether its code needs double precision. With `alone` false, a single node
    has a generator of its own.
    """

    def refused(call: Call) -> str | None:
        if len(call.inputs) > MOST_INPUTS:
            return f"generated kernels have at most {MOST_INPUTS} inputs"
        return unless(call) if unless is not None else None

    def decorate(formula: Formula) -> Formula:
        for op in ops:
            register_formula(op, Rule(formula, operands, unless))
            if alone:
                generates(op, unless=refused, float64=float64)(partial(generate_single, op))
        return formula

    return decorate


def generate_single(op: str, call: Call, outputs: Specs) -> Code:
    names = tuple(map(str, range(len(call.inputs))))
    kernel, tensors = compose([Member(op, call, names, "y", outputs[0])], ["y"])
    inputs = [
        parameter._replace(number=int(name))
        for parameter, name in zip(kernel.parameters, tensors[:-1], strict=False)
    ]
    return Code((replace(kernel, parameters=(*inputs, kernel.parameters[-1])),))
