"""ONNX nodes: their operator's name, their attributes as plain values, and the graphs inside.

Attributes of operators that a library brings to ONNX Runtime are kept as a model has them.

In ONNX a nested graph sees every name of the surrounding graphs; in plait it sees its inputs alone.
So the outer names that it uses are captured: they become inputs of the node, and the last
inputs of each of its graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.attribute import Kind
from ...core.ir import ABSENT, Node
from ...core.operator import find_operator
from ...values.dtypes import TEXT
from ...values.errors import ParseError
from ...values.tensor import Array, TensorSpec
from ..unknown_operators import EXTENSIONS_DOMAIN
from .tensors import EXPORT, STRING, TensorReader, read_spec_dtype, text, to_shape

DEFAULT_DOMAINS = ("", "ai.onnx")

GRAPH = 5
"""The number of graphs among ONNX's types of attributes (AttributeProto.AttributeType)."""

_LOOP_HEAD = (TensorSpec("int64", ()), TensorSpec("bool", ()))

_READERS: Mapping[int, Callable[[Any], Any]] = {
    GRAPH: lambda attribute: NestedProto(attribute.g),
    1: lambda attribute: attribute.f,
    2: lambda attribute: attribute.i,
    3: lambda attribute: attribute.s.decode(),
    6: lambda attribute: tuple(attribute.floats),
    7: lambda attribute: tuple(attribute.ints),
    8: lambda attribute: tuple(text.decode() for text in attribute.strings),
}
"""How to read an attribute of each type of ONNX (AttributeProto.AttributeType) but tensors."""

_STRING, _TENSOR, _STRINGS = 3, 4, 8

_UNDEFINED = 0
"""The element type that says that none is given."""

_CONSTANT_FORMS: Mapping[str, str] = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
}


def read_operator_name(proto: Any) -> str:
    if proto.domain in DEFAULT_DOMAINS:
        return text(proto.op_type)
    return f"{text(proto.domain)}.{text(proto.op_type)}"


def read_attributes(proto: Any, tensors: TensorReader, at: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if is_extension_operator(read_operator_name(proto)):
        return wrap_attributes(proto.attribute)
    for attribute in proto.attribute:
        name = text(attribute.name)
        if name in attributes:
            raise ParseError(f"attribute {name!r} is given twice", at=at, fix=EXPORT)
        try:
            if attribute.type == _TENSOR:
                value = _read_tensor(attribute.t, tensors, f"attribute {name!r}, {at}")
            else:
                value = _READERS[attribute.type](attribute)
        except KeyError:
            raise ParseError(
                f"attribute {name!r} holds neither numbers, text nor a tensor",
                at=at,
                fix="export the model without sequences, optional values and sparse tensors",
            ) from None
        except UnicodeDecodeError as error:
            raise ParseError(
                f"attribute {name!r} is not text in UTF-8", at=at, fix=EXPORT
            ) from error
        attributes[name] = value
    return attributes


def _read_tensor(tensor: Any, tensors: TensorReader, at: str) -> Array:
    if tensor.data_type == STRING:
        return to_shape(np.array(read_text(tensor, at), TEXT), tuple(tensor.dims), at)
    return tensors.read(tensor, at)


def read_default(data: bytes) -> Any:
    """Return the number, text or tuple in `data`, a serialized AttributeProto, or None."""
    from onnx import AttributeProto

    proto = AttributeProto.FromString(data)
    return None if proto.type == AttributeProto.UNDEFINED else _READERS[proto.type](proto)


def read_constant(attributes: Mapping[str, Any], at: str) -> Any:
    """Return the array in `attributes` of a Constant; raises ParseError, about `at`, if sparse."""
    ((form, value),) = attributes.items() if len(attributes) == 1 else (("nothing", None),)
    if form == "value" and isinstance(value, np.ndarray):
        return value
    if form in _CONSTANT_FORMS and not isinstance(value, str):
        with suppress(OverflowError, TypeError, ValueError):  # say, numbers said to be text
            array = np.array(value, _CONSTANT_FORMS[form])
            array.flags.writeable = False
            return array
    raise ParseError(
        f"a constant is given as {', '.join(attributes) or 'nothing'}",
        at=at,
        fix="export the model with numeric, dense constants",
    )


def find_text(proto: Any) -> Any:
    """Return the text of the Constant `proto`, a NodeProto, as a TensorProto, or None."""
    from onnx import TensorProto

    if len(proto.attribute) != 1:
        return None
    (attribute,) = proto.attribute
    if attribute.type == _TENSOR:
        return attribute.t if attribute.t.data_type == STRING else None
    if attribute.type == _STRING:
        return TensorProto(data_type=STRING, string_data=[attribute.s])
    if attribute.type == _STRINGS:
        listed = attribute.strings
        return TensorProto(data_type=STRING, string_data=listed, dims=[len(listed)])
    return None


def read_text(tensor: Any, at: str) -> tuple[str, ...]:
    """Return the elements of `tensor`, a TensorProto of text, in a row; errors name it `at`."""
    try:
        found = tuple(element.decode() for element in tensor.string_data)
    except UnicodeDecodeError as error:
        raise ParseError("a tensor of text is not UTF-8", at=at, fix=EXPORT) from error
    if len(found) != math.prod(tensor.dims) or min(tensor.dims, default=0) < 0:
        raise ParseError(f"str{list(tensor.dims)} has {len(found)} elements", at=at, fix=EXPORT)
    return found


def name_dtypes(node: Node, at: str) -> Node:
    """Return `node` with names of dtypes for ONNX's numbers; errors name it `at`."""
    known = find_operator(node.op).attributes
    attributes = dict(node.attributes)
    for name, value in node.attributes.items():
        if not isinstance(value, int) or name not in known or known[name].kind is not Kind.DTYPE:
            continue
        if value == _UNDEFINED and known[name].default is None:
            del attributes[name]
        else:
            attributes[name] = read_spec_dtype(value, f"attribute {name!r}, {at}")
    return replace(node, attributes=attributes)


ATTRIBUTES = "attributes"
"""The attribute that holds all others."""

_BYTES = "latin-1"
"""The encoding in which each byte is a letter."""


def is_extension_operator(op: str) -> bool:
    return op.rpartition(".")[0] == EXTENSIONS_DOMAIN


def wrap_attributes(protos: Iterable[Any]) -> dict[str, Any]:
    from onnx import NodeProto

    return {ATTRIBUTES: NodeProto(attribute=protos).SerializeToString().decode(_BYTES)}


def unwrap_attributes(value: str) -> list[Any]:
    from onnx import NodeProto

    return list(NodeProto.FromString(value.encode(_BYTES)).attribute)


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
