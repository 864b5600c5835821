"""Products whose sums other nodes go on with before anything is written.

What a generator of products does with the results is given to it. By itself a node stores them; a
chain of elementwise nodes behind it is computed on them while they are in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from ...graph.installed import CODEGEN
from ...graph.ir import Node
from ...graph.operator import Call, Specs
from ...graph.registry import Registry
from ...graph.tensor import TensorSpec
from .functions import called_in
from .kernel import Code, Kernel, Parameter
from .registry import Question, generates
from .types import ctype, store


class Epilogue(NamedTuple):
    """What becomes of results.

    Attributes
    ----------
    parameters : tuple of Parameter
        The buffers that it reads and writes, by names that no generator uses.
    write : callable
        From the C expressions of a place in the output, in C order, and of the result, in its
        computed type or one that C converts to it, to statements.
    """

    parameters: tuple[Parameter, ...]
    write: Callable[[str, str], list[str]]


Generator: TypeAlias = Callable[[Call, Specs, Epilogue], Code]
"""Returns the code of a node that leaves its results to an epilogue, all of it in one kernel."""

_generators: Registry[str, Generator] = Registry("two products of {!r}", group=CODEGEN)


def generates_product(
    *ops: str, unless: Question | None = None
) -> Callable[[Generator], Generator]:
    """Register a generator for operators, by themselves and with an epilogue."""

    def decorate(generator: Generator) -> Generator:
        for op in ops:
            _generators.register(op, generator)
            generates(op, unless=unless)(partial(_alone, generator))
        return generator

    return decorate


def takes_epilogue(op: str) -> bool:
    """True when the operator's generator leaves what becomes of its results to others."""
    return _generators.find(op) is not None


def generate_with(
    node: Node,
    call: Call,
    outputs: Specs,
    epilogue: Epilogue,
    title: str,
    generator: Generator | None = None,
) -> Code:
    """Return the code of a node and its epilogue; the title is added to that of the kernels.

    The `generator` is the operator's own, if left out.
    """
    code = (generator or _generators[node.op])(call, outputs, epilogue)
    others = {parameter.name for parameter in epilogue.parameters}

    def completed(kernel: Kernel) -> Kernel:
        taken = [p for p in kernel.parameters if p.name not in others or p.name in kernel.body]
        return replace(
            kernel,
            title=f"{kernel.title}_{title}"[:60].rstrip("_"),
            parameters=tuple(taken),
            functions=called_in(kernel.body),
        )

    return code._replace(kernels=tuple(map(completed, code.kernels)))


def _alone(generator: Generator, call: Call, outputs: Specs) -> Code:
    return generator(call, outputs, storing(outputs[0]))


def storing(y: TensorSpec) -> Epilogue:
    """Return the epilogue that writes results as they are."""
    written = Parameter("y", ctype(y.dtype), "output", 0)
    return Epilogue((written,), lambda at, value: [store(y.dtype, "y", at, value)])
