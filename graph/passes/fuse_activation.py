"""Activation functions that exporters write out in arithmetic, put together again.

One pass over memory in place of three to five. The formulas are the same but for rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ..ir import Graph, Node
from ..operator import find_operator
from .merging import MayMerge, always, with_nodes

X = "x"
"""In a pattern: the tensor that the function is applied to."""

_COMMUTE = ("Add", "Mul")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A call of an operator on patterns, constants (by value) or `X`; attributes as given."""

    op: str
    inputs: tuple[Operand, ...]
    attributes: Mapping[str, float] = field(default_factory=dict)


Operand: TypeAlias = Pattern | str | float

_SIX_CELLS = Pattern("Clip", (Pattern("Add", (X, 3.0)), 0.0, 6.0))
_HARD_SIGMOID = Pattern("HardSigmoid", (X,), {"alpha": 1 / 6, "beta": 0.5})
_ERF = Pattern("Add", (Pattern("Erf", (Pattern("Div", (X, math.sqrt(2))),)), 1.0))
_ERF_OF_PRODUCT = Pattern("Add", (Pattern("Erf", (Pattern("Mul", (X, math.sqrt(0.5))),)), 1.0))

PATTERNS: tuple[tuple[Pattern, str], ...] = (
    (Pattern("Div", (Pattern("Mul", (X, _SIX_CELLS)), 6.0)), "HardSwish"),
    (Pattern("Mul", (Pattern("Mul", (X, _SIX_CELLS)), 1 / 6)), "HardSwish"),
    (Pattern("Mul", (X, Pattern("Div", (_SIX_CELLS, 6.0)))), "HardSwish"),
    (Pattern("Mul", (X, Pattern("Mul", (_SIX_CELLS, 1 / 6)))), "HardSwish"),
    (Pattern("Mul", (X, _HARD_SIGMOID)), "HardSwish"),
    (Pattern("Mul", (X, Pattern("Sigmoid", (X,)))), "Swish"),
    *(
        (pattern, "Gelu")
        for erf in (_ERF, _ERF_OF_PRODUCT)
        for pattern in (
            Pattern("Mul", (Pattern("Mul", (X, erf)), 0.5)),
            Pattern("Mul", (X, Pattern("Mul", (erf, 0.5)))),
            Pattern("Mul", (Pattern("Mul", (X, 0.5)), erf)),
        )
    ),
)


def fuse_activation(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """x·clip(x + 3, 0, 6)/6 -> HardSwish(x), x·sigmoid(x) -> Swish(x), x·(1 + erf(x/√2))/2 -> Gelu.

    In whatever order the products stand. What lies between must be read by nothing else and be no
    output; the constants must be single numbers, and x a float.
    """
    kept: dict[str, Node] = {}
    for node in graph.nodes:
        kept[node.name] = node
        fused = _fused(graph, node)
        if fused is not None and may_merge(graph, [*fused[1], node], fused[0]):
            kept[node.name], inner = fused
            for step in inner:
                del kept[step.name]
    if len(kept) == len(graph.nodes):
        return graph
    return with_nodes(graph, tuple(kept.values()))


def _fused(graph: Graph, node: Node) -> tuple[Node, list[Node]] | None:
    """Return the function that a node is the last step of, and the other steps."""
    for pattern, op in PATTERNS:
        for match in _matches(graph, pattern, node.outputs[0], _Match()) if node.outputs else ():
            inner = [step for step in match.nodes if step is not node]
            if match.x is not None and _is_closed(graph, node, inner, match.x):
                attributes = find_operator(op).complete({}, at=str(node))
                return Node(node.name, op, (match.x,), node.outputs, attributes), inner
    return None


@dataclass(frozen=True, slots=True)
class _Match:
    """What x is, once known, and which nodes were met."""

    x: str | None = None
    nodes: tuple[Node, ...] = ()


def _matches(graph: Graph, operand: Operand, tensor: str, so_far: _Match) -> Iterator[_Match]:
    """Yield the ways in which a tensor fits an operand, given what the others have matched."""
    if isinstance(operand, str):
        if tensor and tensor not in graph.constants and so_far.x in (None, tensor):
            yield replace(so_far, x=tensor)
        return
    if not isinstance(operand, Pattern):
        if tensor in graph.constants and _equals(graph.constants[tensor], operand):
            yield so_far
        return
    node = graph.producers.get(tensor)
    if node is None or node.op != operand.op or len(node.inputs) != len(operand.inputs):
        return
    if any(not _close(node.attributes[name], value) for name, value in operand.attributes.items()):
        return
    orders = itertools.permutations(node.inputs) if node.op in _COMMUTE else [node.inputs]
    for order in orders:
        found = [replace(so_far, nodes=(*so_far.nodes, node))]
        for inner, name in zip(operand.inputs, order, strict=True):
            found = [m for earlier in found for m in _matches(graph, inner, name, earlier)]
        yield from found


def _is_closed(graph: Graph, last: Node, inner: list[Node], x: str) -> bool:
    """True when nobody else reads what lies between, and all of it has x's dtype and shape."""
    spec = graph.tensors[x]
    if spec.dtype.kind != "f" or graph.tensors[last.outputs[0]] != spec:
        return False
    names = {last.name, *(step.name for step in inner)}
    return all(
        tensor not in graph.outputs
        and tensor not in graph.precisions
        and all(reader.name in names for reader in graph.consumers[tensor])
        for step in inner
        for tensor in step.outputs
    )


def _equals(array: Any, value: float) -> bool:
    return bool(array.size == 1 and array.dtype.kind == "f" and _close(array.item(), value))


def _close(number: float, value: float) -> bool:
    """True when two numbers are equal but for the rounding of float32."""
    return bool(np.float32(number) == np.float32(value)) or math.isclose(
        number, value, rel_tol=2e-7
    )
