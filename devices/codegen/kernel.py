"""The result of a generator: kernels in order, and the scratch they need."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from ...graph.values.tensor import TensorSpec

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
