"""Formulas put together: elementwise nodes as one kernel, or as the epilogue of a product.

A chain of nodes reads its inputs once and writes its results once. Between nodes values are rounded
as if they were stored: a chain gives the bits that its nodes give one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ...graph.tensor import TensorSpec
from .epilogue import Epilogue
from .formulas import Member, number_of
from .functions import called_in
from .indexing import broadcast, contiguous, coordinates, index_type, merged, offset
from .kernel import THREADS, Kernel, Parameter, Role, groups_of
from .types import computed_type, ctype, literal, load, rounded, store

EACH = 4
"""Elements of a thread, where there are `MANY`: so many loads are on their way at once."""
MANY = 1 << 20
"""More than the threads that a GPU has at once."""


def compose(members: Sequence[Member], stored: Sequence[str]) -> tuple[Kernel, tuple[str, ...]]:
    """Return one kernel for nodes in order, and the tensors it takes: inputs, then outputs.

    Parameters
    ----------
    members : sequence of Member
        The last one has the shape of the kernel.
    stored : sequence of str
        The outputs to write; they are of that shape.
    """
    composition = _Composition(members, stored)
    return composition.kernel(), composition.tensors


class Made(NamedTuple):
    """The output that an epilogue begins with, and its spec."""

    output: str
    spec: TensorSpec


class Chain(NamedTuple):
    """Nodes as an epilogue: what it is called, and the tensor that each of its parameters is."""

    epilogue: Epilogue
    title: str
    tensors: dict[str, str]


def chained(made: Made, members: Sequence[Member], stored: Sequence[str]) -> Chain:
    """Return nodes in order as the epilogue of the one that makes what they begin with.

    Parameters
    ----------
    made : Made
        It has the shape of the last member's output.
    stored : sequence of str
        The outputs to write; they are of that shape, and that of `made` may be one of them.
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
    """What a kernel reads at each place, as C: statements that tell where, then the variables.

    A variable has a type, a name and a value. Of `same`, the value is the same at all places.
    """

    where: list[str]
    same: list[tuple[str, str, str]]
    other: list[tuple[str, str, str]]


class _Composition:
    """The parts of one kernel, as they are found from one node to the next."""

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
        """What is read, then what is written."""
        return (*self._inputs, *self._stored)

    @property
    def title(self) -> str:
        """The operators, as an identifier."""
        title = "_".join(member.op.lower() for member in self._members)
        return title.replace(".", "_")[:60].rstrip("_")

    def kernel(self) -> Kernel:
        parameters = self._parameters("x", "y")
        body = "\n".join(self._body(parameters))
        each = THREADS * self._each
        groups = groups_of(prod(self._shape), each)
        return Kernel(self.title, parameters, body, groups, functions=called_in(body))

    def epilogue(self, made: Made) -> Epilogue:
        """Return what becomes of the results that the first node is given."""
        parameters = self._parameters("other", "result")
        c, t = index_type(prod(self._shape)), computed_type(made.spec.dtype)
        sources = self._sources(parameters, "place", c)
        inner = [
            *sources.where,
            *_declared(sources.same + sources.other),
            *self._statements,
            *self._stores(parameters, "place"),
        ]

        def write(at: str, value: str) -> list[str]:
            stored = rounded(made.spec.dtype, value)
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
            Parameter(f"{prefix}{number}", ctype(self._specs[name].dtype), role, number)
            for prefix, role, names in roles
            for number, name in enumerate(names)
        )

    def _sources(self, parameters: Sequence[Parameter], index: str, c: str) -> _Sources:
        names = {tensor: p.name for tensor, p in zip(self.tensors, parameters, strict=True)}
        loads = list(self._loads.values())
        # Axes along which all operands go on alike become one: most chains have one axis then, and
        # no divisions to tell coordinates.
        shape, *strides = merged(
            self._shape, contiguous(self._shape), *(each.strides for each in loads)
        )
        places = [_place(shape, own, index) for own in strides[1:]]
        sources = _Sources(coordinates(index, shape, "k", c) if None in places else [], [], [])
        for (variable, tensor, spec, _), where, own in zip(loads, places, strides[1:], strict=True):
            value = load(spec.dtype, names[tensor], where or offset(own, "k"))
            read = (computed_type(spec.dtype), variable, value)
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
        """Return the statements: all loads come before all stores."""
        size = prod(self._shape)
        # The last group's threads count beyond the end before they find that there is nothing for
        # them.
        c = index_type(size + THREADS * self._each)
        place, same, other = self._sources(parameters, "i", c)
        stores = self._stores(parameters, "i")
        if self._each == 1:
            first = [f"const {c} i = ({c})GROUP * {THREADS} + THREAD;", f"if (i >= {size}) return;"]
            # Loads first: an output may lie on an input's bytes, and compilers may not move loads
            # over stores.
            return [*first, *place, *_declared(same + other), *self._statements, *stores]
        return [
            f"const {c} first = ({c})GROUP * {THREADS * self._each} + THREAD;",
            *_declared(same),
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
        arguments = [""] * len(member.inputs)
        for index, shape in member.rule.operands(member.call):
            arguments[index] = self._argument(member, index, shape)
        value = member.rule.formula(member.call, arguments)
        if member.output in self._read_again:
            value = rounded(member.spec.dtype, value)
        variable = self._variables[member.output] = f"v{len(self._variables)}"
        return f"const {computed_type(member.spec.dtype)} {variable} = {value};"

    def _argument(self, member: Member, index: int, shape: tuple[int, ...]) -> str:
        """Return the name of what holds an operand, or the number that it is."""
        spec, number = member.call.spec(index), number_of(member.call, index)
        if number is not None:
            c = computed_type(spec.dtype)
            return f"(({c}){literal(number, c)})"
        name = member.inputs[index]
        if name in self._variables:
            return self._variables[name]
        strides = broadcast(shape, self._shape)
        fresh = _Load(f"a{len(self._loads)}", name, spec, strides)
        return self._loads.setdefault((name, shape), fresh).variable


def _declared(variables: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"const {t} {name} = {value};" for t, name, value in variables]


def _place(shape: Sequence[int], strides: Sequence[int], index: str) -> str | None:
    """Return where an operand is read, None if it takes coordinates to tell."""
    if tuple(strides) == contiguous(shape):
        return index
    return None if any(strides) else "0"
