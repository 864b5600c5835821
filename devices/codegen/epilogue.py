"""Epilogues of products: statements that continue with the sums before they are written.

A generator of products receives the epilogue as its third argument. That of a lone node stores the
results;
a chain of elementwise nodes after the product computes on them while they are in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.values.installed import CODEGEN
from ...graph.values.registry import Registry
from ...graph.values.tensor import TensorSpec
from .functions import find_functions
from .registry import Code, Kernel, Parameter, Question, generates
from .types import store, to_ctype


class Epilogue(NamedTuple):
    """The continuation of a product."""

    parameters: tuple[Parameter, ...]
    """The buffers that it reads and writes, with names that no generator uses."""
    write: Callable[[str, str], list[str]]
    """From C expressions of a place in the output, in C order, and of the result, in its computed
    type or one that C converts to it, to statements."""


Generator: TypeAlias = Callable[[Call, Specs, Epilogue], Code]
"""Returns the code of a node that passes its results to an epilogue, all of it in one kernel."""

_generators: Registry[str, Generator] = Registry("two products of {!r}", group=CODEGEN)


def generates_product(
    *ops: str, unless: Question | None = None
) -> Callable[[Generator], Generator]:
    """Return the decorator that registers a generator for `ops`, alone and with an epilogue.

    `unless` returns why it refuses a node, or None.
    """

    def decorate(generator: Generator) -> Generator:
        for op in ops:
            _generators.register(op, generator)
            generates(op, unless=unless)(partial(_generate_alone, generator))
        return generator

    return decorate


def takes_epilogue(op: str) -> bool:
    """Return whether the generator of operator `op` accepts an epilogue."""
    return _generators.find(op) is not None


def generate_with(
    node: Node,
    call: Call,
    outputs: Specs,
    epilogue: Epilogue,
    title: str,
    generator: Generator | None = None,
) -> Code:
    """Return the code of `node` with `epilogue`; `title` is appended to the titles of kernels.

    `call` and `outputs` have the specs of the node; `generator` is the operator's by default.
    """
    code = (generator or _generators[node.op])(call, outputs, epilogue)
    others = {parameter.name for parameter in epilogue.parameters}

    def completed(kernel: Kernel) -> Kernel:
        taken = [p for p in kernel.parameters if p.name not in others or p.name in kernel.body]
        return replace(
            kernel,
            title=f"{kernel.title}_{title}"[:60].rstrip("_"),
            parameters=tuple(taken),
            functions=find_functions(kernel.body),
        )

    return code._replace(kernels=tuple(map(completed, code.kernels)))


def _generate_alone(generator: Generator, call: Call, outputs: Specs) -> Code:
    return generator(call, outputs, store_results(outputs[0]))


def store_results(y: TensorSpec) -> Epilogue:
    written = Parameter("y", to_ctype(y.dtype), "output", 0)
    return Epilogue((written,), lambda at, value: [store(y.dtype, "y", at, value)])
