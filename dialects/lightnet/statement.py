"""One operator of a LightNet file while it is translated to nodes, and the rules of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.parameters import Number
from ...graph.values.errors import ParseError
from ...graph.values.names import Names
from ...graph.values.tensor import Array, TensorSpec
from .entries import Entry, fail

DTYPES: Mapping[str, str] = {
    "TL_DOUBLE": "float64",
    "TL_FLOAT": "float32",
    "TL_INT32": "int32",
    "TL_INT16": "int16",
    "TL_INT8": "int8",
    "TL_UINT32": "uint32",
    "TL_UINT16": "uint16",
    "TL_UINT8": "uint8",
    "TL_BOOL": "bool",
}


MOST_ZEROS = 2**28
"""The limit of bytes of constants that a file creates: zeros take no memory until they are read."""

DEVICES = ("_cpu", "_cuda", "_cudnn")
"""Suffixes of optypes in files made for a device."""

COMPUTED = 32
"""The weight of a computed byte against one of zeros, since it takes memory at once."""


@dataclass(slots=True)
class Reading:
    builder: GraphBuilder
    names: Names
    """Names from the file and new ones."""
    weights: Mapping[str, Array]
    """Vectors, by tensor."""
    fed: set[str]
    """Tensors that are inputs of the graph even if the file gives their values."""
    printed: list[str] = field(default_factory=list)
    """Tensors that the file prints."""
    read: set[str] = field(default_factory=set)
    _sharing: dict[str, set[str]] = field(default_factory=dict)
    _overwritten: dict[str, Entry] = field(default_factory=dict)
    _made: int = 0

    def allot(self, nbytes: int, at: str, *, computed: bool = False) -> None:
        """Count `nbytes` of the constant `at`, more if `computed`; ParseError above a limit."""
        self._made += nbytes * (COMPUTED if computed else 1)
        if self._made > MOST_ZEROS:
            raise ParseError(
                f"constants of more than {MOST_ZEROS} bytes, each computed one counted for "
                f"{COMPUTED}, are to be made of nothing",
                at=at,
                fix="pass them as weights, or feed them: load_lightnet(model, inputs=[...])",
            )

    def share(self, one: str, other: str) -> None:
        both = self._sharing.setdefault(one, {one}) | self._sharing.setdefault(other, {other})
        # All refer to one set, so that a later partner shares with all of them.
        for tensor in both:
            self._sharing[tensor] = both

    def overwrite(self, tensor: str, by: Entry) -> None:
        for one in self._sharing.pop(tensor, {tensor}):
            self._sharing.pop(one, None)
            self._overwritten[one] = by

    def overwriter(self, tensor: str) -> Entry | None:
        return self._overwritten.get(tensor)


class Statement:
    """An operator of a file; its parameters and inputs are checked on access."""

    def __init__(self, entry: Entry, reading: Reading, at: str) -> None:
        self.entry = entry
        self.reading = reading
        self.at = f"{entry}, {at}"

    def input(self, argument: str) -> str:
        if argument not in self.entry.inputs:
            fail(f"the input {argument!r} is missing", self.at)
        return self._readable(self.entry.inputs[argument])

    def inputs(self, prefix: str) -> list[str]:
        """Return the tensors of all arguments with names that start with `prefix`."""
        found = [n for argument, n in self.entry.inputs.items() if argument.startswith(prefix)]
        return [self._readable(name) for name in found]

    def spec(self, tensor: str, rank: int | None = None) -> TensorSpec:
        """Return the spec of `tensor`. If a `rank` is given, any other raises ParseError."""
        spec = self.reading.builder.spec(tensor)
        if rank is not None and spec.rank != rank:
            fail(f"tensor {tensor!r} is {spec}, not of rank {rank}", self.at)
        return spec

    def output(self, argument: str = "dst") -> str:
        if argument not in self.entry.outputs:
            fail(f"the output {argument!r} is missing", self.at)
        return self.entry.outputs[argument]

    def integers(self, name: str, length: int | None = None, least: int = 0) -> tuple[int, ...]:
        found = tuple(one.int32 for one in self._array(name, length))
        if min(found) < least:
            fail(f"parameter {name!r} must hold integers ≥ {least}", self.at)
        return found

    def integer(self, name: str, least: int, below: int | None = None) -> int:
        found = int(self._value(name, Number, "a number").int32)
        if found < least or (below is not None and found >= below):
            upper = "" if below is None else f" and < {below}"
            fail(f"parameter {name!r} must be an integer ≥ {least}{upper}", self.at)
        return found

    def axis(self, tensor: str, name: str = "axis") -> int:
        return self.integer(name, 0, below=max(self.spec(tensor).rank or 0, 1))

    def number(self, name: str, above: float = -math.inf) -> float:
        found = float(self._value(name, Number, "a number").double)
        if not found > above:  # NaN is not, either
            fail(f"parameter {name!r} must be > {above}, got {found}", self.at)
        return found

    def numbers(self, name: str, length: int | None = None) -> tuple[float, ...]:
        return tuple(one.double for one in self._array(name, length))

    def flag(self, name: str) -> bool:
        return bool(self._value(name, bool, "a bool"))

    def choice(self, name: str, choices: Mapping[str, Any]) -> Any:
        word = self._value(name, str, "a string")
        if word not in choices:
            fail(f"parameter {name!r} is {word!r}: none of {', '.join(choices)}", self.at)
        return choices[word]

    def dtype(self, name: str = "dtype") -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self.choice(name, DTYPES))
        return found

    def write(self, op: str, *inputs: str | Array, **attributes: Any) -> str:
        """Add a node `op` with `inputs` and `attributes`, and return the new name of its output.

        Arrays among the inputs become constants.
        """
        return self._node(op, inputs, [self._fresh(op)], attributes, self._fresh(op))[0]

    def several(self, op: str, count: int, *inputs: str | Array, **attributes: Any) -> list[str]:
        """Add a node `op` with `inputs`, `attributes`, `count` outputs; return their new names."""
        outputs = [self._fresh(op) for _ in range(count)]
        # The node's own name is new too, so that errors and pins can identify it.
        return self._node(op, inputs, outputs, attributes, self._fresh(op))

    def last(self, op: str, *inputs: str | Array, output: str = "dst", **attributes: Any) -> None:
        # If there are several such nodes, all get new names.
        name = self.entry.name if len(self.entry.outputs) == 1 else self._fresh(op)
        self._node(op, inputs, [self.output(output)], attributes, name)

    def constant(self, value: Array) -> str:
        return str(self.reading.builder.constant(value, self._fresh("constant")))

    def _node(
        self,
        op: str,
        inputs: Sequence[str | Array],
        outputs: list[str],
        attributes: Mapping[str, Any],
        name: str,
    ) -> list[str]:
        named = [one if isinstance(one, str) else self.constant(np.asarray(one)) for one in inputs]
        made = self.reading.builder.op(
            # An argument without a name is omitted.
            op,
            *(one or None for one in named),
            name=name,
            outputs=outputs,
            **attributes,
        )
        return [str(one) for one in made]

    def _fresh(self, op: str) -> str:
        return self.reading.names.take(f"{self.entry.name}/{op.lower()}")

    def _readable(self, tensor: str) -> str:
        # LightNet would read the overwritten memory; graphs have no order that could express it.
        by = self.reading.overwriter(tensor)
        if by is not None:
            fail(f"{by} has overwritten tensor {tensor!r} in place", self.at)
        if tensor not in self.reading.builder:
            fail(f"no earlier operator writes tensor {tensor!r}", self.at)
        self.reading.read.add(tensor)
        return tensor

    def _array(self, name: str, length: int | None) -> tuple[Number, ...]:
        found = self._value(name, tuple, "an array of numbers")
        if not isinstance(found[0], Number):  # the reader has checked that all have one type
            fail(f"parameter {name!r} must be an array of numbers", self.at)
        if length is not None and len(found) != length:
            fail(f"parameter {name!r} must hold {length} numbers, not {len(found)}", self.at)
        return tuple(found)

    def _value(self, name: str, kind: type, words: str) -> Any:
        found = self.entry.parameters.get(name)
        if found is None:
            fail(f"the parameter {name!r} is missing", self.at)
        if not isinstance(found.value, kind):
            fail(f"parameter {name!r} must be {words}, got {found.kind}", self.at)
        return found.value


Writer: TypeAlias = Callable[[Statement], None]


@dataclass(frozen=True, slots=True)
class LightNetRule:
    inputs: str
    outputs: str
    parameters: str
    """The names of its arguments; ``*`` after a prefix allows any number of them."""
    write: Writer


RULES: dict[str, LightNetRule] = {}
"""By optype, without the suffix of a device."""


def register_rule(
    optype: str, inputs: str, parameters: str = "", outputs: str = "dst"
) -> Callable[[Writer], Writer]:
    def register(write: Writer) -> Writer:
        RULES[optype] = LightNetRule(inputs, outputs, parameters, write)
        return write

    return register


def find_rule(optype: str) -> LightNetRule | None:
    for suffix in DEVICES:
        optype = optype.removesuffix(suffix)
    return RULES.get(optype)


def check_arguments(entry: Entry, rule: LightNetRule, at: str) -> None:
    """Raise ParseError, at the place `at`, if `entry` has arguments that `rule` does not list."""
    groups: tuple[tuple[str, Mapping[str, object], str], ...] = (
        ("input", entry.inputs, rule.inputs),
        ("output", entry.outputs, rule.outputs),
        ("parameter", entry.parameters, rule.parameters),
    )
    for what, given, formals in groups:
        for name in given:
            if not any(_matches(formal, name) for formal in formals.split()):
                fail(f"there is no {what} {name!r}, only {formals or 'none'}", f"{entry}, {at}")


def _matches(formal: str, name: str) -> bool:
    return name.startswith(formal[:-1]) if formal.endswith("*") else name == formal
