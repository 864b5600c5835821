"""The registry of generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from ...graph.core.infer import infer_node
from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.core.traits import Part
from ...graph.values.installed import CODEGEN
from ...graph.values.registry import Registry
from ...graph.values.tensor import TensorSpec
from .kernel import Code
from .types import CTYPES

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
