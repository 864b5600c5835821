"""The result of a generator: kernels, in the order in which they run, and the scratch they need."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from ...graph.tensor import TensorSpec

Role: TypeAlias = Literal["input", "output", "scratch", "trap"]

THREADS = 256
"""Threads of a group, where a kernel has no reason to want another number."""
GROUPS = 264
"""Groups that keep the largest devices busy."""


class Parameter(NamedTuple):
    """A buffer that a kernel takes.

    Attributes
    ----------
    name : str
        In the kernel's source.
    ctype : str
        Of its elements, as `types.ctype` names it.
    role : str
        Whether it is an input, an output or a scratch buffer of the node, or its `TRAP`.
    number : int
        Which of them.
    """

    name: str
    ctype: str
    role: Role
    number: int


TRAP = Parameter("trap", "i64", "trap", 0)
"""Where a kernel leaves a value that it cannot use: an index outside of its axis, for one.

One word, 0 until then; of several values any one. No value that is wrong is 0.
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel and how it is launched: `groups` groups of `threads` threads, in one dimension.

    Attributes
    ----------
    title : str
        What it computes, an identifier; shown by profilers.
    body : str
        The statements, in the dialect that `dialect` defines.
    groups : int
        With 0, there is nothing to do.
    functions : str
        What stands before the kernel: functions that the body calls, each with a name that tells
        all that went into it. Kernels of one program may bring the same.
    """

    title: str
    parameters: tuple[Parameter, ...]
    body: str
    groups: int
    threads: int = THREADS
    functions: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[Parameter, ...]:
        """The parameters that may be written: outputs and scratch."""
        return tuple(each for each in self.parameters if each.role in ("output", "scratch"))

    @property
    def may_fail(self) -> bool:
        """True when it may be given values that it cannot use, and then leaves one in `TRAP`."""
        return TRAP in self.parameters

    @cached_property
    def name(self) -> str:
        """The entry: kernels of the same source have the same name, others do not."""
        source = "\0".join((self._signature(""), self.body, *self.functions, str(self.threads)))
        return f"{self.title}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"

    @cached_property
    def source(self) -> str:
        """The whole function, without what stands before it."""
        return f"{self._signature(self.name)} {{\n{self.body}\n}}\n"

    def _signature(self, name: str) -> str:
        parameters = ", ".join(
            f"GLOBAL {'const ' if role == 'input' else ''}{ctype}* {parameter}"
            for parameter, ctype, role, _ in self.parameters
        )
        return f"KERNEL({self.threads}) {name}({parameters})"


class Code(NamedTuple):
    """How a node is computed.

    Attributes
    ----------
    kernels : tuple of Kernel
        Each reads what those before it wrote.
    trap : str
        What is said of a value that a kernel leaves in `TRAP`, which stands for ``{}`` in it.
    """

    kernels: tuple[Kernel, ...]
    scratch: tuple[TensorSpec, ...] = ()
    trap: str = ""


def groups_of(threads_wanted: int, threads: int = THREADS) -> int:
    """Return how many groups have that many threads together."""
    return -(-threads_wanted // threads)
