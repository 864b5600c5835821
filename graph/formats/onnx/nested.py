"""Graphs inside of ONNX nodes: their captured tensors, and their inputs' specs.

In ONNX a nested graph sees every name of the surrounding graphs; in plait it sees its inputs alone.
So the outer names that it uses are captured: they become inputs of the node, and the last
inputs of each of its graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.ir import ABSENT, Node
from ...values.errors import ParseError
from ...values.tensor import TensorSpec
from .tensors import text

GRAPH = 5
"""The number of graphs among ONNX's types of attributes (AttributeProto.AttributeType)."""

_LOOP_HEAD = (TensorSpec("int64", ()), TensorSpec("bool", ()))


@dataclass(frozen=True, slots=True)
class NestedProto:
    """A graph inside of a node as in the file, and the outer names that it uses."""

    proto: Any
    captured: tuple[str, ...] = ()


def iterate_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == GRAPH:
                yield from iterate_nodes(attribute.g)


def with_captured(node: Node, at: str) -> Node:
    """Return `node` with the names that its graphs capture as last inputs; errors name it `at`."""
    protos = {k: v for k, v in node.attributes.items() if isinstance(v, NestedProto)}
    if not protos:
        return node
    if node.op not in ("If", "Loop", "Scan"):
        raise ParseError(
            f"{node.op} holds a graph", at=at, fix="export the model without graphs inside of nodes"
        )
    names = dict.fromkeys(name for nested in protos.values() for name in _free(nested.proto))
    captured = tuple(names)
    attributes: dict[str, Any] = {
        **node.attributes,
        **{name: replace(nested, captured=captured) for name, nested in protos.items()},
    }
    inputs = node.inputs
    if node.op != "If":
        attributes["captured"] = len(captured)
    if node.op == "Loop":
        inputs += (ABSENT,) * (2 - len(inputs))
    return replace(node, inputs=(*inputs, *captured), attributes=attributes)


def make_formal_specs(node: Node, specs: Mapping[str, TensorSpec]) -> Sequence[TensorSpec]:
    """Return the specs, without shapes, of the inputs of a body of `node`, which has `specs`."""
    if node.op == "If":
        return ()
    captured = node.attributes["captured"]
    given = node.inputs[2 if node.op == "Loop" else 0 : len(node.inputs) - captured]
    dtypes = [specs[name].dtype if name else "float32" for name in given]
    states = tuple(TensorSpec(dtype, None) for dtype in dtypes)
    return (*_LOOP_HEAD, *states) if node.op == "Loop" else states


def _free(graph: Any) -> Iterator[str]:
    defined = {text(value.name) for value in (*graph.input, *graph.initializer)}
    defined |= {text(name) for node in graph.node for name in node.output}
    for node in graph.node:
        inner = (text(name) for name in node.input)
        for name in inner:
            if name and name not in defined:
                yield name
        for attribute in node.attribute:
            if attribute.type == GRAPH:
                yield from (name for name in _free(attribute.g) if name not in defined)
    yield from (name for o in graph.output if (name := text(o.name)) and name not in defined)
