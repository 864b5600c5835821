"""The registry of generators, and the kernels and scratch that they return."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ...graph.core.infer import infer_node
from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.core.traits import Part
from ...graph.values.installed import CODEGEN
from ...graph.values.registry import Registry
from ...graph.values.tensor import TensorSpec
from .types import CTYPES

Role: TypeAlias = Literal["input", "output", "scratch", "trap"]

THREADS = 256
"""Threads of a group, unless a kernel needs another number."""
GROUPS = 264
"""Groups that keep the largest devices busy."""


class Parameter(NamedTuple):
    """A buffer that a kernel accesses."""

    name: str
    """Name in the kernel's source."""
    ctype: str
    """C type of its elements, see `types.to_ctype`."""
    role: Role
    """Whether it is an input, an output or a scratch buffer of the node, or its `TRAP`."""
    number: int
    """Index among those of its role."""


TRAP = Parameter("trap", "i64", "trap", 0)
"""The word where a kernel stores a value that it cannot use, such as an index outside of its axis.
It is 0 until then; of several such values it holds any one. No invalid value is 0."""


@dataclass(frozen=True)
class Kernel:
    """A kernel and its launch: `groups` groups of `threads` threads, in one dimension."""

    title: str
    parameters: tuple[Parameter, ...]
    body: str
    groups: int
    threads: int = THREADS
    functions: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[Parameter, ...]:
        return tuple(each for each in self.parameters if each.role in ("output", "scratch"))

    @property
    def may_fail(self) -> bool:
        """Whether it may store an unusable value in `TRAP`."""
        return TRAP in self.parameters

    @cached_property
    def name(self) -> str:
        """The entry point. Kernels have the same name if and only if they have the same source."""
        source = "\0".join((self._signature(""), self.body, *self.functions, str(self.threads)))
        return f"{self.title}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"

    @cached_property
    def source(self) -> str:
        """The function's source, without the functions that it calls."""
        return f"{self._signature(self.name)} {{\n{self.body}\n}}\n"

    def _signature(self, name: str) -> str:
        parameters = ", ".join(
            f"GLOBAL {'const ' if role == 'input' else ''}{ctype}* {parameter}"
            for parameter, ctype, role, _ in self.parameters
        )
        return f"KERNEL({self.threads}) {name}({parameters})"


class Code(NamedTuple):
    """The kernels that compute a node, and their scratch."""

    kernels: tuple[Kernel, ...]
    """Each may read the results of earlier ones."""
    scratch: tuple[TensorSpec, ...] = ()
    trap: str = ""
    """Message for a value that a kernel leaves in `TRAP`, with ``{}`` in its place."""


def count_groups(threads_wanted: int, threads: int = THREADS) -> int:
    return -(-threads_wanted // threads)


Generator: TypeAlias = Callable[[Call, Specs], Code]
"""Returns the code of a node, given its input and output specs, all of them static."""
Condition: TypeAlias = Callable[[Call], bool]
Question: TypeAlias = Callable[[Call], str | None]
"""Returns why a node has no code, None if it has; shapes may be symbolic."""


class _Entry(NamedTuple):
    generator: Generator
    unless: Question | None
    float64: Condition


_generators: Registry[str, _Entry] = Registry(
    "two generators for {!r}", group=CODEGEN, function_of=lambda entry: entry.generator
)


def use_no_float64(call: Call) -> bool:
    """Return False for any `call`: its code needs no float64 beyond the dtypes of its tensors."""
    return False


def generates(
    *ops: str, unless: Question | None = None, float64: Condition = use_no_float64
) -> Callable[[Generator], Generator]:
    """Return the decorator that registers a generator for operators `ops`.

    A generator gets the call and the specs of the outputs, and returns the code of a node. `unless`
    returns why it refuses a node; dtypes without a C type are always refused. `float64` returns
    whether the code needs double precision beyond the tensors' dtypes, which some devices lack; by
    default it does not. Raises GraphError if an operator has a generator already.
    """

    def decorate(generator: Generator) -> Generator:
        for op in ops:
            _generators.register(op, _Entry(generator, unless, float64))
        return generator

    return decorate


def find_refusal(node: Node, call: Call) -> str | None:
    """Return why no code for `node`, with inputs `call`, is generated; None if it can be."""
    if {output for output, _ in node.operator.views}.issuperset(range(call.n_outputs)):
        return None  # bytes are copied, of any meaning
    entry = _generators.find(node.op)
    if entry is None:
        reason = node.operator.lacks.get(Part.CODEGEN)
        return f"no kernel for {node.op!r} is generated" + (f": {reason}" if reason else "")
    for spec in (*call.inputs, *infer_node(node, call)):
        if spec is not None and spec.dtype.name not in CTYPES:
            return f"generated kernels have no dtype {spec.dtype.name!r}"
    given = [bool(name) for name in node.outputs]
    if not all(given[: sum(given)]):
        return "an output is left out before another one"
    return entry.unless(call) if entry.unless is not None else None


def computes_float64(node: Node, call: Call) -> bool:
    """Return whether code of `node`, with inputs `call`, uses float64, if only in between."""
    specs = (*call.inputs, *infer_node(node, call))
    if any(spec is not None and spec.dtype == np.float64 for spec in specs):
        return True
    entry = _generators.find(node.op)
    return entry is not None and entry.float64(call)


def generate(node: Node, call: Call, outputs: Specs) -> Code:
    entry = _generators.find(node.op)
    assert entry is not None, f"{node} has no generator"
    return entry.generator(call, outputs)


def scratch(node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
    if _generators.find(node.op) is None or find_refusal(node, call) is not None:
        return ()
    return generate(node, call, outputs).scratch
