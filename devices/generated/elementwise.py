"""Nodes whose output elements come from the elements at the same place: one kernel for several.

A formula says in C what an operator makes of an element. Kernels are put together from formulas, so
that a chain of nodes reads its inputs once and writes its results once. Between nodes values are
rounded as if they were stored: a chain gives the bits that its nodes give one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from .functions import called_in
from .indexing import broadcast, contiguous, coordinates, index_type, merged, offset
from .kernel import THREADS, Code, Kernel, Parameter, groups_of
from .registry import Question, generates
from .types import computed_type, ctype, literal, load, store

EACH = 4
"""Elements of a thread, where there are `MANY`: so many loads are on their way at once."""
MANY = 1 << 20
"""More than the threads that a GPU has at once."""

MOST_INPUTS = 64
"""OpenCL promises room for 128 buffers."""

Formula: TypeAlias = Callable[[Call, Sequence[str]], str]
"""Returns the C expression of an element of the output, in its computed type.

It gets the names of variables that hold an element of each input, "" where that is no operand.
"""


class Operand(NamedTuple):
    """An input whose elements the formula takes.

    Attributes
    ----------
    number : int
        Which of the inputs.
    shape : tuple of int
        From which it is broadcast to the output's shape; of as many elements as the input.
    """

    number: int
    shape: tuple[int, ...]


Operands: TypeAlias = Callable[[Call], Sequence[Operand]]


class _Rule(NamedTuple):
    formula: Formula
    operands: Operands
    unless: Question | None


_rules: dict[str, _Rule] = {}


def all_inputs(call: Call) -> Sequence[Operand]:
    """Return all inputs as operands, broadcast as numpy does."""
    return [
        Operand(index, spec.static_shape)
        for index, spec in enumerate(call.inputs)
        if spec is not None
    ]


def first_input(call: Call) -> Sequence[Operand]:
    """Return the first input as the only operand."""
    return [Operand(0, call.spec(0).static_shape)]


def elementwise(
    *ops: str, operands: Operands = all_inputs, unless: Question | None = None, alone: bool = True
) -> Callable[[Formula], Formula]:
    """Register a formula, and the generator of kernels of a single node.

    `unless` says what the formula is not for. Where it is not `alone`, a single node has a
    generator of its own.
    """

    def refused(call: Call) -> str | None:
        if len(call.inputs) > MOST_INPUTS:
            return f"generated kernels have at most {MOST_INPUTS} inputs"
        return unless(call) if unless is not None else None

    def decorate(formula: Formula) -> Formula:
        for op in ops:
            _rules[op] = _Rule(formula, operands, unless)
            if alone:
                generates(op, unless=refused)(partial(single, op))
        return formula

    return decorate


@dataclass(frozen=True)
class Member:
    """A node of a kernel.

    Attributes
    ----------
    op : str
    call : Call
    inputs : tuple of str
        Names of tensors.
    output : str
    spec : TensorSpec
        Of the output; it broadcasts to the shape of the whole kernel.
    """

    op: str
    call: Call
    inputs: tuple[str, ...]
    output: str
    spec: TensorSpec

    @cached_property
    def reads(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The tensors that the formula takes elements of, and the shapes they are broadcast from.

        What is a number in the source is left out.
        """
        return tuple(
            (self.inputs[index], shape)
            for index, shape in _rules[self.op].operands(self.call)
            if _number(self.call, index) is None
        )


def is_elementwise(op: str) -> bool:
    """True when the operator has a formula."""
    return op in _rules


def has_formula(op: str, call: Call) -> bool:
    """True when the operator has a formula, and it is for such a node."""
    rule = _rules.get(op)
    return rule is not None and (rule.unless is None or rule.unless(call) is None)


def compose(members: Sequence[Member], stored: Sequence[str]) -> tuple[Kernel, tuple[str, ...]]:
    """Return one kernel for nodes in order, and the tensors it takes: inputs, then outputs.

    Parameters
    ----------
    members : sequence of Member
        The last one has the shape of the kernel.
    stored : sequence of str
        The outputs to write; they are of that shape.
    """
    return _Composition(members, stored).kernel()


def single(op: str, call: Call, outputs: Specs) -> Code:
    """Return the code of a node that has a formula."""
    names = tuple(map(str, range(len(call.inputs))))
    kernel, tensors = compose([Member(op, call, names, "y", outputs[0])], ["y"])
    inputs = [
        parameter._replace(number=int(name))
        for parameter, name in zip(kernel.parameters, tensors[:-1], strict=False)
    ]
    return Code((replace(kernel, parameters=(*inputs, kernel.parameters[-1])),))


def _number(call: Call, index: int) -> float | int | bool | None:
    """Return the value of an input that is one constant number."""
    value = call.value(index)
    return None if value is None or value.size != 1 else value.item()


class _Load(NamedTuple):
    variable: str
    tensor: str
    spec: TensorSpec
    strides: tuple[int, ...]


class _Composition:
    """The parts of one kernel, as they are found from one node to the next."""

    def __init__(self, members: Sequence[Member], stored: Sequence[str]) -> None:
        self._shape = members[-1].spec.static_shape
        self._each = EACH if prod(self._shape) >= MANY else 1
        self._members = members
        self._stored = stored
        self._loads: dict[tuple[str, tuple[int, ...]], _Load] = {}
        self._variables: dict[str, str] = {}
        self._read_again = {name for member in members for name, _ in member.reads}
        self._statements = [self._statement(member) for member in members]

    def kernel(self) -> tuple[Kernel, tuple[str, ...]]:
        inputs = tuple(dict.fromkeys(each.tensor for each in self._loads.values()))
        tensors = (*inputs, *self._stored)
        parameters = self._parameters(inputs)
        names = {tensor: p.name for tensor, p in zip(inputs, parameters, strict=False)}
        body = "\n".join(self._body(names, [p.name for p in parameters[len(inputs) :]]))
        title = "_".join(member.op.lower() for member in self._members)
        title = title.replace(".", "_")[:60].rstrip("_")
        groups = groups_of(prod(self._shape), THREADS * self._each)
        return Kernel(title, parameters, body, groups, functions=called_in(body)), tensors

    def _parameters(self, inputs: Sequence[str]) -> tuple[Parameter, ...]:
        specs = {each.tensor: each.spec for each in self._loads.values()}
        specs.update({member.output: member.spec for member in self._members})
        read = [
            Parameter(f"x{i}", ctype(specs[name].dtype), "input", i)
            for i, name in enumerate(inputs)
        ]
        written = [
            Parameter(f"y{i}", ctype(specs[name].dtype), "output", i)
            for i, name in enumerate(self._stored)
        ]
        return (*read, *written)

    def _body(self, inputs: dict[str, str], outputs: Sequence[str]) -> list[str]:
        """Return the statements: all loads come before all stores."""
        size = prod(self._shape)
        c = index_type(size + THREADS * self._each)
        loads = list(self._loads.values())
        shape, *strides = merged(
            self._shape, contiguous(self._shape), *(each.strides for each in loads)
        )
        places = [_place(shape, own) for own in strides[1:]]
        place = coordinates("i", shape, "k", c) if None in places else []
        same: list[tuple[str, str, str]] = []
        other: list[tuple[str, str, str]] = []
        for (variable, tensor, spec, _), where, own in zip(loads, places, strides[1:], strict=True):
            value = load(spec.dtype, inputs[tensor], where or offset(own, "k"))
            read = (computed_type(spec.dtype), variable, value)
            (same if where == "0" else other).append(read)
        specs = {member.output: member.spec for member in self._members}
        stores = [
            store(specs[tensor].dtype, parameter, "i", self._variables[tensor])
            for parameter, tensor in zip(outputs, self._stored, strict=True)
        ]
        if self._each == 1:
            first = [f"const {c} i = ({c})GROUP * {THREADS} + THREAD;", f"if (i >= {size}) return;"]
            reads = [f"const {t} {name} = {value};" for t, name, value in same + other]
            return [*first, *place, *reads, *self._statements, *stores]
        return [
            f"const {c} first = ({c})GROUP * {THREADS * self._each} + THREAD;",
            *(f"const {t} {name} = {value};" for t, name, value in same),
            *(f"{t} {name}s[{self._each}];" for t, name, _ in other),
            *self._loop(c, [*place, *(f"{name}s[j] = {value};" for _, name, value in other)]),
            *self._loop(
                c,
                [
                    *(f"const {t} {name} = {name}s[j];" for t, name, _ in other),
                    *self._statements,
                    *stores,
                ],
            ),
        ]

    def _loop(self, c: str, statements: Sequence[str]) -> list[str]:
        """Return the statements, repeated for each element of a thread."""
        return [
            "#pragma unroll",
            f"for (i32 j = 0; j < {self._each}; j++) {{",
            f"const {c} i = first + j * {THREADS};",
            f"if (i < {prod(self._shape)}) {{",
            *statements,
            "}}",
        ]

    def _statement(self, member: Member) -> str:
        rule = _rules[member.op]
        arguments = [""] * len(member.inputs)
        for index, shape in rule.operands(member.call):
            arguments[index] = self._argument(member, index, shape)
        value = rule.formula(member.call, arguments)
        if member.spec.dtype == np.float16 and member.output in self._read_again:
            value = f"ROUND_F16({value})"
        variable = self._variables[member.output] = f"v{len(self._variables)}"
        return f"const {computed_type(member.spec.dtype)} {variable} = {value};"

    def _argument(self, member: Member, index: int, shape: tuple[int, ...]) -> str:
        """Return the name of what holds an operand, or the number that it is."""
        spec, number = member.call.spec(index), _number(member.call, index)
        if number is not None:
            c = computed_type(spec.dtype)
            return f"(({c}){literal(number, c)})"
        name = member.inputs[index]
        if name in self._variables:
            return self._variables[name]
        strides = broadcast(shape, self._shape)
        fresh = _Load(f"a{len(self._loads)}", name, spec, strides)
        return self._loads.setdefault((name, shape), fresh).variable


def _place(shape: Sequence[int], strides: Sequence[int]) -> str | None:
    """Return where an operand is read, None if it takes coordinates to tell."""
    if tuple(strides) == contiguous(shape):
        return "i"
    return None if any(strides) else "0"
