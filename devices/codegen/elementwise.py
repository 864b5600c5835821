"""Nodes whose output elements come from the elements at the same place.

Their formulas say in C what becomes of an element; kernels are put together from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...graph.operator import Call, Specs
from .composition import compose
from .formulas import Formula, Member, Operands, Rule, all_inputs, register_formula
from .kernel import Code
from .registry import Condition, Question, generates, never

MOST_INPUTS = 64
"""OpenCL promises room for 128 buffers."""


def elementwise(
    *ops: str,
    operands: Operands = all_inputs,
    unless: Question | None = None,
    float64: Condition = never,
    alone: bool = True,
) -> Callable[[Formula], Formula]:
    """Register a formula, and the generator of kernels of a single node.

    `unless` says what the formula is not for, `float64` where a node's code takes that. Where it is
    not `alone`, a single node has a generator of its own.
    """

    def refused(call: Call) -> str | None:
        if len(call.inputs) > MOST_INPUTS:
            return f"generated kernels have at most {MOST_INPUTS} inputs"
        return unless(call) if unless is not None else None

    def decorate(formula: Formula) -> Formula:
        for op in ops:
            register_formula(op, Rule(formula, operands, unless))
            if alone:
                generates(op, unless=refused, float64=float64)(partial(single, op))
        return formula

    return decorate


def single(op: str, call: Call, outputs: Specs) -> Code:
    """Return the code of a node that has a formula."""
    names = tuple(map(str, range(len(call.inputs))))
    kernel, tensors = compose([Member(op, call, names, "y", outputs[0])], ["y"])
    inputs = [
        parameter._replace(number=int(name))
        for parameter, name in zip(kernel.parameters, tensors[:-1], strict=False)
    ]
    return Code((replace(kernel, parameters=(*inputs, kernel.parameters[-1])),))
