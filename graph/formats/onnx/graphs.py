"""Converts one graph of an ONNX model, or of a node in it, to plait's."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...core.ir import ABSENT, Graph, Node
from ...core.operator import find_operator, is_operator
from ...core.ordering import sort_nodes
from ...values.dims import UNKNOWN
from ...values.errors import ParseError
from ...values.extras import get_install_command
from ...values.names import Names
from ...values.tensor import Dim, TensorSpec, copy_read_only
from ..assembly import Assembly, locate_errors
from . import upgrade_rules as upgrade_rules
from .nodes import (
    NestedProto,
    find_text,
    make_formal_specs,
    name_dtypes,
    read_attributes,
    read_constant,
    read_operator_name,
    read_text,
    with_captured,
)
from .tensors import EXPORT, STRING, TensorReader, read_spec_dtype, text
from .upgrade import Context, find_newest_name, upgrade


@dataclass(frozen=True, slots=True)
class Model:
    """The common data of all graphs of a model: its file, opset and reader of tensors."""

    at: str
    opset: int
    tensors: TensorReader


class GraphReader:
    """Converts one graph of a model, or of a node in it, to plait's.

    A graph without a name is called `name`. Outputs of a `nested` one are never requested by name.
    """

    def __init__(self, proto: Any, model: Model, name: str, *, nested: bool = False) -> None:
        self._nested = nested
        self._proto = proto
        self._model = model
        self._at = model.at
        self._tensors = model.tensors
        self._assembly = Assembly(text(proto.name) or name, self._at)
        self._outputs = tuple(text(output.name) for output in proto.output)
        self._public = frozenset(self._outputs)
        self._names = Names(separator="_")

    def graph(
        self,
        formals: Sequence[TensorSpec] = (),
        captured: Mapping[str, TensorSpec] = MappingProxyType({}),
    ) -> Graph:
        """Return the graph, checked.

        `formals` are the specs of its inputs unless it declares them itself, `captured` the tensors
        that it uses of the surrounding graph: its last inputs. Raises ParseError or GraphError as
        `load_onnx`.
        """
        self._check_supported_features()
        nodes, constants = self._nodes_and_constants()
        # Unread constants are not loaded: files have many, and large ones.
        read = {name for node in nodes for name in node.inputs} | self._public
        # Names that are made while nodes are read must not meet those that come later.
        taken = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        context = Context(self._assembly, self._model.opset, Names(taken | set(constants)))
        self._declare_inputs(constants, formals)
        for name, spec in captured.items():
            self._assembly.add_input(name, spec)
        decoded = read - {n for one in nodes if one.op != "DequantizeLinear" for n in one.inputs}
        published = self._add_constants(constants, read, decoded - self._public, context)
        given = {*self._assembly.tensors, *constants}
        for node in order_topologically(nodes, given, self._at):
            inputs = tuple(published.get(name, name) for name in node.inputs)
            node = _drop_unread(replace(node, inputs=inputs), read)
            if not self._copies_constant(node):
                self._add(node, context)
        # Each output of a graph is written by a node: a constant output goes through an Identity.
        for name, source in published.items():
            self._assembly.add_node(Node(self._names.take(name), "Identity", (source,), (name,)))
        outputs = self._told_apart(context) if self._nested else self._outputs
        return self._assembly.finish(outputs)

    def _told_apart(self, context: Context) -> Sequence[str]:
        """Return the outputs, each with a name free in `context`: bodies may repeat an output."""
        found: dict[str, None] = {}
        for source in self._outputs:
            name = context.names.take(f"{source}/again") if source in found else source
            found[name] = None
            if name != source:
                identity = Node(self._names.take(name), "Identity", (source,), (name,))
                self._assembly.add_node(identity)
        return tuple(found)

    def _check_supported_features(self) -> None:
        if not self._outputs:
            raise ParseError("the model has no output", at=self._at, fix=EXPORT)
        if self._proto.sparse_initializer:
            raise ParseError(
                "sparse constants are not supported",
                at=f"{self._proto.sparse_initializer[0].values.name!r}, {self._at}",
                fix="export the model with dense constants",
            )

    def _nodes_and_constants(self) -> tuple[list[Node], dict[str, Any]]:
        """Return the nodes in file order, and the TensorProto or array of each constant."""
        constants: dict[str, Any] = {}
        nodes: list[Node] = []
        for tensor in self._proto.initializer:
            if tensor.data_type == STRING:
                nodes += self._text_nodes(text(tensor.name), tensor, constants)
            else:
                self._claim(constants, text(tensor.name), tensor)
        for index, proto in enumerate(self._proto.node):
            op = read_operator_name(proto)
            name = self._names.take(text(proto.name) or f"{text(proto.op_type)}_{index}")
            outputs = _strip_absent(proto.output)
            where = f"node {name!r} ({op}), {self._at}"
            held = find_text(proto) if op == "Constant" and outputs else None
            if held is not None:
                nodes += self._text_nodes(outputs[0], held, constants)
                continue
            attributes = read_attributes(proto, self._tensors, where)
            if op == "Constant":
                value = read_constant(attributes, where)
                self._claim(constants, outputs[0] if outputs else "", value)
            else:
                node = Node(name, op, _strip_absent(proto.input), outputs, attributes)
                nodes.append(with_captured(node, where))
        return nodes, constants

    def _text_nodes(self, name: str, tensor: Any, constants: dict[str, Any]) -> Iterator[Node]:
        """Yield nodes that list and shape the text `tensor` as `name`; `constants` get shapes."""
        where = f"constant {name!r}, {self._at}"
        if not is_operator("Constant"):
            raise ParseError(
                "constants of text need ONNX Runtime", at=where, fix=get_install_command("ort")
            )
        made = {"value_strings": read_text(tensor, where)}
        if len(tensor.dims) == 1:
            yield Node(self._names.take(name), "Constant", (), (name,), made)
            return
        row, shape = f"{name}/row", f"{name}/shape"
        self._claim(constants, shape, copy_read_only(np.array(tensor.dims, np.int64)))
        yield Node(self._names.take(row), "Constant", (), (row,), made)
        yield Node(self._names.take(name), "Reshape", (row, shape), (name,), {})

    def _claim(self, constants: dict[str, Any], name: str, value: Any) -> None:
        if not name or name in constants:
            raise ParseError(
                f"constant {name!r} is defined twice" if name else "a constant has no name",
                at=self._at,
                fix=EXPORT,
            )
        constants[name] = value

    def _declare_inputs(self, constants: Mapping[str, Any], formals: Sequence[TensorSpec]) -> None:
        used = {
            text(dim.dim_param)
            for value in self._proto.input
            for dim in value.type.tensor_type.shape.dim
        }
        # A new one for each missing length: two of these need not be equal.
        symbols = (symbol for i in itertools.count() if (symbol := f"?{i}") not in used)
        for value, known in itertools.zip_longest(self._proto.input, formals):
            if value is None:
                raise ParseError(
                    f"the graph {self._assembly.name!r} inside of a node has too few inputs",
                    at=self._at,
                    fix=EXPORT,
                )
            name = text(value.name)
            if name not in constants:
                # The graph's own declarations count, as they may say more than its node knows.
                told = known is None or value.HasField("type")
                self._assembly.add_input(
                    name, _read_spec(value, symbols, self._at) if told else known
                )

    def _add_constants(
        self, constants: Mapping[str, Any], read: set[str], decoded: set[str], context: Context
    ) -> dict[str, str]:
        """Add the `constants` that are `read`; return new names from `context` for graph outputs.

        Those of 4 bits that are only `decoded` are read as bytes, which decode to the same values.
        """
        published: dict[str, str] = {}
        for name, value in constants.items():
            if name in read:
                if name in self._public:
                    published[name] = context.names.take(f"{name}/value")
                array = value if isinstance(value, np.ndarray) else None
                if array is None:
                    subject = f"tensor {value.name!r}"
                    array = self._tensors.read(value, subject, unpacks=name in decoded)
                self._assembly.add_constant(published.get(name, name), array)
        return published

    def _copies_constant(self, node: Node) -> bool:
        """Replace `node` if it is an Identity of a constant, not public; return whether it is."""
        if node.op != "Identity" or len(node.inputs) != 1 or len(node.outputs) != 1:
            return False
        value = self._assembly.constants.get(node.inputs[0])
        if value is None or node.outputs[0] in self._public:
            return False
        self._assembly.add_constant(node.outputs[0], value)
        return True

    def _add(self, node: Node, context: Context) -> None:
        node = self._with_graphs(node)
        with locate_errors(node, self._at):
            upgraded = upgrade(node, context)
        for made in upgraded:
            name = node.name if made.name == node.name else self._names.take(made.name)
            named = name_dtypes(replace(made, name=name), f"{node}, {self._at}")
            self._assembly.add_node(named, context.declared)

    def _with_graphs(self, node: Node) -> Node:
        protos = {k: v for k, v in node.attributes.items() if isinstance(v, NestedProto)}
        if not protos:
            return node
        if node.op == "Scan" and self._model.opset < 9:
            raise ParseError(
                "Scan of opset 8 has batches, which no other has",
                at=f"{node}, {self._at}",
                fix="export the model with opset 9 or newer",
            )
        specs = self._assembly.tensors
        names = next(iter(protos.values())).captured
        # Captured inputs come last.
        given = node.inputs[len(node.inputs) - len(names) :]  # constants may be named anew
        captured = {name: specs[source] for name, source in zip(names, given, strict=True)}
        formals = make_formal_specs(node, specs)
        graphs = {
            name: GraphReader(nested.proto, self._model, f"{node.name}/{name}", nested=True).graph(
                formals, captured
            )
            for name, nested in protos.items()
        }
        return replace(node, attributes={**node.attributes, **graphs})


def _read_spec(value: Any, symbols: Iterator[str], at: str) -> TensorSpec:
    """Return the spec of a ValueInfoProto, with one of `symbols` for each open length."""
    where = f"input {value.name!r}, {at}"
    if value.type.WhichOneof("value") != "tensor_type":
        raise ParseError(
            f"an input is not a tensor but: {value.type.WhichOneof('value') or 'nothing'}",
            at=where,
            fix="export the model with tensors as inputs",
        )
    tensor = value.type.tensor_type
    dtype = read_spec_dtype(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return TensorSpec(dtype, None)
    return TensorSpec(dtype, [_read_dim(dim, symbols) for dim in tensor.shape.dim])


def _read_dim(dim: Any, symbols: Iterator[str]) -> Dim:
    """Return the length or symbol `dim`; unknown ones, -1, "" and "?", get one of `symbols`."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.HasField("dim_param") and dim.dim_param not in ("", UNKNOWN):
        return text(dim.dim_param)
    return next(symbols)


def _strip_absent(names: Iterable[str | bytes]) -> tuple[str, ...]:
    kept = [text(name) for name in names]
    while kept and kept[-1] == ABSENT:
        kept.pop()
    return tuple(kept)


def _drop_unread(node: Node, read: set[str]) -> Node:
    formals = find_operator(find_newest_name(node.op)).outputs.split()
    if formals and formals[-1][-1] in "*+":
        return node
    required = sum(not formal.endswith("?") for formal in formals)
    kept = [
        name if name in read or index < required else ABSENT
        for index, name in enumerate(node.outputs)
    ]
    return replace(node, outputs=_strip_absent(kept))


def order_topologically(nodes: Sequence[Node], given: Collection[str], at: str) -> list[Node]:
    """Return `nodes` with producers first, and otherwise in their order; errors name the file `at`.

    `given` are the tensors that no node writes: inputs and constants. Raises ParseError if a tensor
    is written twice, is read but never written, or depends on itself.
    """
    producer = _find_producers(nodes, given, at)
    _check_written(nodes, given, producer, at)
    order, cycle = sort_nodes(nodes)
    if cycle:
        raise ParseError(
            f"nodes wait for each other in a cycle: {format_names([node.name for node in cycle])}",
            at=at,
            fix="export the model again: a graph has no loops",
        )
    return order


def format_names(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} ... {len(names)} in all"


def _find_producers(nodes: Sequence[Node], given: Collection[str], at: str) -> dict[str, int]:
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in producer or name in given:
                first = nodes[producer[name]] if name in producer else "an input or constant"
                raise ParseError(
                    f"tensor {name!r} is defined twice: by {first} and by {node}",
                    at=at,
                    fix="export the model again with unique names",
                )
            producer[name] = index
    return producer


def _check_written(
    nodes: Sequence[Node], given: Collection[str], producer: dict[str, int], at: str
) -> None:
    for node in nodes:
        missing = [name for name in node.inputs if name and name not in producer]
        missing = [name for name in missing if name not in given]
        if missing:
            raise ParseError(
                f"nothing writes the tensors {format_names(missing)}",
                at=f"{node}, {at}",
                fix="export the model again: it is incomplete",
            )
