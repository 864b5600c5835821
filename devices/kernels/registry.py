"""The kernel registry: a dict and a decorator.

A kernel writes into memory that the plan already owns: ``kernel(xp, inputs, outputs, attributes)``
for any array module. One that declares scratch gets it as a fifth argument. One that says
``binds=True`` is called once, when a plan is opened, and returns a function of no arguments that
does the work: what depends on shapes and attributes alone is then done once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...graph.errors import GraphError
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from .steps import Step

ArrayModule: TypeAlias = Any
Arrays: TypeAlias = Sequence[Array]
KernelFunction: TypeAlias = Callable[..., Any]
ScratchRule: TypeAlias = Callable[[Call, Specs], Sequence[TensorSpec]]
"""Returns the specs of the scratch buffers, given a node's static input and output specs."""

ANY = "any"


@dataclass(frozen=True, slots=True)
class Kernel:
    """How one kind of device, or any, runs an operator."""

    op: str
    device: str
    function: KernelFunction
    scratch: ScratchRule | None = None
    binds: bool = False

    def step(self, *arguments: Any) -> Step:
        """Return what does the work on some arguments."""
        bound = partial(self.function, *arguments)
        return bound() if self.binds else bound


_kernels: dict[tuple[str, str], Kernel] = {}


def kernel(
    op: str, *, device: str = ANY, scratch: ScratchRule | None = None, binds: bool = False
) -> Callable[[KernelFunction], KernelFunction]:
    """Register a kernel for an operator, on one kind of device (``"cuda"``) or any.

    Raises
    ------
    GraphError
        If there is one already.
    """

    def decorate(function: KernelFunction) -> KernelFunction:
        if (op, device) in _kernels:
            raise GraphError(f"two kernels for {op!r} on {device!r}", fix="remove one")
        _kernels[op, device] = Kernel(op, device, function, scratch, binds)
        return function

    return decorate


def find_kernel(op: str, device: str) -> Kernel | None:
    """Return the kernel for a kind of device, else the one for any, else None."""
    return _kernels.get((op, device)) or _kernels.get((op, ANY))


def kernels() -> tuple[Kernel, ...]:
    """Return all registered kernels."""
    return tuple(_kernels.values())
