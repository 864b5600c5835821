"""Elementwise nodes composed into one kernel, or into the epilogue of a product.

A chain of nodes reads its inputs once and writes its results once. Intermediate values are rounded
as if they were stored, so a chain returns the same bits as its nodes do one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ...graph.values.tensor import TensorSpec
from .epilogue import Epilogue
from .formulas import Member, find_number
from .functions import find_functions
from .indexing import (
    broadcast_strides,
    choose_index_type,
    declare_coordinates,
    make_strides,
    merge_axes,
    write_offset,
)
from .registry import THREADS, Kernel, Parameter, Role, count_groups
from .types import load, store, to_computed_type, to_ctype, write_literal, write_rounding

EACH = 4
"""Elements of a thread for `MANY` elements and more: that many loads are in flight at once."""
MANY = 1 << 20
"""More than the threads that a GPU runs at once."""


def compose(members: Sequence[Member], stored: Sequence[str]) -> tuple[Kernel, tuple[str, ...]]:
    """Return one kernel for the nodes of `members`, and its tensors: inputs, then outputs.

    `members` are in order, and the last one has the shape of the kernel, as have the outputs in
    `stored`, which are written.
    """
    composition = _Composition(members, stored)
    return composition.kernel(), composition.tensors


class Made(NamedTuple):
    """The product's output, with which an epilogue begins, and its spec."""

    output: str
    spec: TensorSpec


class Chain(NamedTuple):
    """Nodes as an epilogue: its title, and the tensor of each of its parameters."""

    epilogue: Epilogue
    title: str
    tensors: dict[str, str]


def chain_members(made: Made, members: Sequence[Member], stored: Sequence[str]) -> Chain:
    """Return `members` in order as the epilogue of the node that computes their first input.

    That node computes `made`, which has the shape of the last member's output, as have the outputs
    in `stored`, which are written; `made` may be one of them.
    """
    composition = _Composition(members, stored, made)
    epilogue = composition.epilogue(made)
    names = (parameter.name for parameter in epilogue.parameters)
    tensors = dict(zip(names, composition.tensors, strict=True))
    return Chain(epilogue, composition.title, tensors)


class _Load(NamedTuple):
    variable: str
    tensor: str
    spec: TensorSpec
    strides: tuple[int, ...]


class _Sources(NamedTuple):
    """The loads of a kernel at each place, as C: statements for the place, then the variables.

    A variable has a type, a name and a value. Values of `same` are the same at all places.
    """

    where: list[str]
    same: list[tuple[str, str, str]]
    other: list[tuple[str, str, str]]


class _Composition:
    """Collects the parts of one kernel, node by node."""

    def __init__(
        self, members: Sequence[Member], stored: Sequence[str], made: Made | None = None
    ) -> None:
        self._shape = members[-1].spec.static_shape
        self._members = members
        self._stored = stored
        self._loads: dict[tuple[str, tuple[int, ...]], _Load] = {}
        self._variables: dict[str, str] = {} if made is None else {made.output: "made"}
        self._specs = {member.output: member.spec for member in members}
        self._specs |= {} if made is None else {made.output: made.spec}
        # Values that are only stored are rounded by the store.
        self._read_again = {name for member in members for name, _ in member.reads}
        self._statements = [self._statement(member) for member in members]
        self._inputs = tuple(dict.fromkeys(each.tensor for each in self._loads.values()))
        self._specs |= {each.tensor: each.spec for each in self._loads.values()}

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*self._inputs, *self._stored)

    @property
    def title(self) -> str:
        title = "_".join(member.op.lower() for member in self._members)
        return title.replace(".", "_")[:60].rstrip("_")

    def kernel(self) -> Kernel:
        parameters = self._parameters("x", "y")
        body = "\n".join(self._body(parameters))
        each = THREADS * self._each
        groups = count_groups(prod(self._shape), each)
        return Kernel(self.title, parameters, body, groups, functions=find_functions(body))

    def epilogue(self, made: Made) -> Epilogue:
        parameters = self._parameters("other", "result")
        c, t = choose_index_type(prod(self._shape)), to_computed_type(made.spec.dtype)
        sources = self._sources(parameters, "place", c)
        inner = [
            *sources.where,
            *_declare(sources.same + sources.other),
            *self._statements,
            *self._stores(parameters, "place"),
        ]

        def write(at: str, value: str) -> list[str]:
            stored = write_rounding(made.spec.dtype, value)
            first = [f"const {c} place = {at};", f"const {t} made = {stored};"]
            return ["{", *first, *inner, "}"]

        return Epilogue(parameters, write)

    @property
    def _each(self) -> int:
        return EACH if prod(self._shape) >= MANY else 1

    def _parameters(self, read: str, written: str) -> tuple[Parameter, ...]:
        roles: tuple[tuple[str, Role, Sequence[str]], ...] = (
            (read, "input", self._inputs),
            (written, "output", self._stored),
        )
        return tuple(
            Parameter(f"{prefix}{number}", to_ctype(self._specs[name].dtype), role, number)
            for prefix, role, names in roles
            for number, name in enumerate(names)
        )

    def _sources(self, parameters: Sequence[Parameter], index: str, c: str) -> _Sources:
        names = {tensor: p.name for tensor, p in zip(self.tensors, parameters, strict=True)}
        loads = list(self._loads.values())
        # Merge axes with matching strides in all operands: most chains then have one axis, and need
        # no divisions for coordinates.
        shape, *strides = merge_axes(
            self._shape, make_strides(self._shape), *(each.strides for each in loads)
        )
        places = [_find_index(shape, own, index) for own in strides[1:]]
        sources = _Sources(
            declare_coordinates(index, shape, "k", c) if None in places else [], [], []
        )
        for (variable, tensor, spec, _), where, own in zip(loads, places, strides[1:], strict=True):
            value = load(spec.dtype, names[tensor], where or write_offset(own, "k"))
            read = (to_computed_type(spec.dtype), variable, value)
            # A single number is loaded once, before the loop over a thread's elements.
            (sources.same if where == "0" else sources.other).append(read)
        return sources

    def _stores(self, parameters: Sequence[Parameter], index: str) -> list[str]:
        written = parameters[len(self._inputs) :]
        return [
            store(self._specs[tensor].dtype, parameter.name, index, self._variables[tensor])
            for parameter, tensor in zip(written, self._stored, strict=True)
        ]

    def _body(self, parameters: Sequence[Parameter]) -> list[str]:
        """Return the statements of a kernel with `parameters`; all loads come before all stores."""
        size = prod(self._shape)
        # Threads of the last group count beyond the end before they return.
        c = choose_index_type(size + THREADS * self._each)
        place, same, other = self._sources(parameters, "i", c)
        stores = self._stores(parameters, "i")
        if self._each == 1:
            first = [f"const {c} i = ({c})GROUP * {THREADS} + THREAD;", f"if (i >= {size}) return;"]
            # Loads first: an output may share bytes with an input, and compilers may not move loads
            # over stores.
            return [*first, *place, *_declare(same + other), *self._statements, *stores]
        return [
            f"const {c} first = ({c})GROUP * {THREADS * self._each} + THREAD;",
            *_declare(same),
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
        """Return `statements` in a loop over a thread's elements, with indices of C type `c`."""
        return [
            "#pragma unroll",
            f"for (i32 j = 0; j < {self._each}; j++) {{",
            f"const {c} i = first + j * {THREADS};",
            f"if (i < {prod(self._shape)}) {{",
            *statements,
            "}}",
        ]

    def _statement(self, member: Member) -> str:
        arguments = [""] * len(member.inputs)
        for index, shape in member.rule.operands(member.call):
            arguments[index] = self._argument(member, index, shape)
        value = member.rule.formula(member.call, arguments)
        if member.output in self._read_again:
            value = write_rounding(member.spec.dtype, value)
        variable = self._variables[member.output] = f"v{len(self._variables)}"
        return f"const {to_computed_type(member.spec.dtype)} {variable} = {value};"

    def _argument(self, member: Member, index: int, shape: tuple[int, ...]) -> str:
        spec, number = member.call.spec(index), find_number(member.call, index)
        if number is not None:
            c = to_computed_type(spec.dtype)
            return f"(({c}){write_literal(number, c)})"
        name = member.inputs[index]
        if name in self._variables:
            return self._variables[name]
        strides = broadcast_strides(shape, self._shape)
        fresh = _Load(f"a{len(self._loads)}", name, spec, strides)
        return self._loads.setdefault((name, shape), fresh).variable


def _declare(variables: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"const {t} {name} = {value};" for t, name, value in variables]


def _find_index(shape: Sequence[int], strides: Sequence[int], index: str) -> str | None:
    if tuple(strides) == make_strides(shape):
        return index
    return None if any(strides) else "0"
