"""Elementwise operators as formulas: an expression in C for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from ...graph.core.operator import Call
from ...graph.values.installed import CODEGEN
from ...graph.values.registry import Registry
from ...graph.values.tensor import TensorSpec
from .registry import Question

Formula: TypeAlias = Callable[[Call, Sequence[str]], str]
"""Returns the C expression of an element of the output, in its computed type.  Its arguments are
the variables with an element of each input, "" for inputs that are not operands."""


class Operand(NamedTuple):
    number: int
    """Which of the inputs."""
    shape: tuple[int, ...]
    """From which it is broadcast to the output's shape; of as many elements as the input."""


Operands: TypeAlias = Callable[[Call], Sequence[Operand]]


class Rule(NamedTuple):
    """A formula, its operands, and the function that returns why a node has none."""

    formula: Formula
    operands: Operands
    unless: Question | None


_rules: Registry[str, Rule] = Registry(
    "two formulas of {!r}", group=CODEGEN, function_of=lambda rule: rule.formula
)


def list_all_inputs(call: Call) -> Sequence[Operand]:
    return [
        Operand(index, spec.static_shape)
        for index, spec in enumerate(call.inputs)
        if spec is not None
    ]


def list_first_input(call: Call) -> Sequence[Operand]:
    return [Operand(0, call.spec(0).static_shape)]


def register_formula(op: str, rule: Rule) -> None:
    _rules.register(op, rule)


@dataclass(frozen=True)
class Member:
    op: str
    call: Call
    inputs: tuple[str, ...]
    """Names of tensors."""
    output: str
    spec: TensorSpec
    """Spec of the output; it broadcasts to the shape of the whole kernel."""

    @property
    def rule(self) -> Rule:
        return _rules[self.op]

    @cached_property
    def reads(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The tensors that the formula reads elements of, with the shapes they are broadcast from.

        Inputs that are numbers in the source are left out.
        """
        return tuple(
            (self.inputs[index], shape)
            for index, shape in self.rule.operands(self.call)
            if find_number(self.call, index) is None
        )


def has_formula(op: str, call: Call) -> bool:
    rule = _rules.find(op)
    return rule is not None and (rule.unless is None or rule.unless(call) is None)


def find_number(call: Call, index: int) -> float | int | bool | None:
    value = call.value(index)
    return None if value is None or value.size != 1 else value.item()
