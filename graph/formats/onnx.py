"""ONNX models: read with the `onnx` package, opsets 6 to 28, every operator in its newest form.

What cannot be had is named all at once: the operators, and the nodes that call them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..dims import UNKNOWN
from ..errors import ParseError, UnknownOperatorError
from ..ir import ABSENT, Graph, Node
from ..operator import find_operator, is_operator
from ..tensor import Array, Dim, TensorSpec
from . import upgrade_rules as upgrade_rules
from .assembly import Assembly, understanding
from .expansion import expand
from .names import Names
from .onnx_nodes import (
    DEFAULT_DOMAINS,
    attributes_of,
    constant_value,
    dtypes_named,
    operator_name,
)
from .onnx_tensors import TensorReader, dtype_name, text
from .ordering import in_topological_order, listed
from .upgrade import NEWEST_OPSET, OLDEST_OPSET, Context, newest_name, upgrade

_EXPORT = "export the model again: the file is damaged"
_PROTOBUF_LIMIT = 2**31 - 1


def load_onnx(path: str | os.PathLike[str]) -> Graph:
    """Return the graph in an ONNX model.

    Data that is stored beside the model is mapped, not read. Tensor names are those of the model;
    nodes without a name get one, such as ``Conv_12``.

    Raises
    ------
    ParseError
        If the file is missing, damaged or no ONNX model, or uses what plait lacks. A missing
        operator is an `UnknownOperatorError` that names all of them.
    GraphError
        If its nodes do not fit together.
    """
    return read_model(_parse(Path(path)), path)


def read_model(model: Any, path: str | os.PathLike[str]) -> Graph:
    """Return the graph in a `ModelProto`; data beside it is looked for next to `path`.

    Raises
    ------
    ParseError, GraphError
        As `load_onnx`.
    """
    _check_opset(model, str(path))
    model = expand(model, str(path))
    _check_operators(model, str(path))
    return _Importer(model, Path(path)).graph()


def _parse(path: Path) -> Any:
    """Return the ModelProto in a file; protobuf bounds what it allocates by the file's size."""
    try:
        import onnx
    except ImportError as error:
        raise ParseError(
            "reading ONNX models takes the package 'onnx'", fix="pip install 'plait[onnx]'"
        ) from error
    try:
        if path.stat().st_size > _PROTOBUF_LIMIT:
            raise ParseError(
                "the file is larger than 2 GB, which protobuf cannot read",
                at=str(path),
                fix="save the model with external data: onnx.save(..., save_as_external_data=True)",
            )
        data = path.read_bytes()
    except OSError as error:
        raise ParseError(
            f"cannot read the file: {error.strerror}",
            at=str(path),
            fix="check its path and permissions",
        ) from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own error types differ between its implementations
        raise _not_onnx(path) from error
    if not model.HasField("graph"):
        raise _not_onnx(path)
    return model


def _not_onnx(path: Path) -> ParseError:
    return ParseError(
        "neither a .plait file nor an ONNX model, or a damaged one",
        at=str(path),
        fix="pass a file that plait.save or an ONNX exporter wrote",
    )


def _check_opset(model: Any, at: str) -> None:
    """Raise ParseError for an opset out of range; a model that names none has the first."""
    versions = [entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS]
    if not versions and any(node.domain in DEFAULT_DOMAINS for node in model.graph.node):
        versions = [1]
    for version in versions:
        if not OLDEST_OPSET <= version <= NEWEST_OPSET:
            raise ParseError(
                f"the model uses opset {version}, plait reads {OLDEST_OPSET} to {NEWEST_OPSET}",
                at=at,
                fix="convert it with onnx.version_converter, or export it with another opset",
            )


def _check_operators(model: Any, at: str) -> None:
    """Raise UnknownOperatorError for operators that are not registered, naming all."""
    missing: dict[str, list[str]] = {}
    for node in model.graph.node:
        name = operator_name(node)
        if name != "Constant" and not is_operator(newest_name(name)):
            missing.setdefault(name, []).append(text(node.name or next(iter(node.output), "")))
    if missing:
        by_count = sorted(missing.items(), key=lambda item: -len(item[1]))
        counted = (f"{op} ({listed(names, 3)})" for op, names in by_count)
        fix = "define them with @plait.operator(name=...), or export the model without them"
        if model.functions:
            fix = "inline its functions with onnx.inliner.inline_local_functions"
        raise UnknownOperatorError(
            f"operators that are not supported: {', '.join(counted)}", at=at, fix=fix
        )


class _Importer:
    """Turns one model into a graph."""

    def __init__(self, model: Any, path: Path) -> None:
        self._proto = model.graph
        self._at = str(path)
        self._opset = max(
            (entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS),
            default=OLDEST_OPSET,
        )
        self._tensors = TensorReader(path)
        self._assembly = Assembly(text(model.graph.name) or path.stem, self._at)
        self._outputs = tuple(text(output.name) for output in model.graph.output)
        self._public = frozenset(self._outputs)
        self._names = Names(separator="_")

    def graph(self) -> Graph:
        """Return the graph, checked."""
        self._check_supported_features()
        nodes, constants = self._nodes_and_constants()
        read = {name for node in nodes for name in node.inputs} | self._public
        taken = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        context = Context(self._assembly, self._opset, Names(taken | set(constants)))
        self._declare_inputs(constants)
        published = self._add_constants(constants, read, context)
        given = {*self._assembly.tensors, *constants}
        for node in in_topological_order(nodes, given, self._at):
            inputs = tuple(published.get(name, name) for name in node.inputs)
            node = _unread_left_out(replace(node, inputs=inputs), read)
            if not self._copies_constant(node):
                self._add(node, context)
        for name, source in published.items():
            self._assembly.add_node(Node(self._names.take(name), "Identity", (source,), (name,)))
        return self._assembly.finish(self._outputs)

    def _check_supported_features(self) -> None:
        if not self._outputs:
            raise ParseError("the model has no output", at=self._at, fix=_EXPORT)
        if self._proto.sparse_initializer:
            raise ParseError(
                "sparse constants are not supported",
                at=f"{self._proto.sparse_initializer[0].values.name!r}, {self._at}",
                fix="export the model with dense constants",
            )

    def _nodes_and_constants(self) -> tuple[list[Node], dict[str, Any]]:
        """Return the nodes in file order, and the TensorProto or array of each constant."""
        constants: dict[str, Any] = {}
        for tensor in self._proto.initializer:
            self._claim(constants, text(tensor.name), tensor)
        nodes: list[Node] = []
        for index, proto in enumerate(self._proto.node):
            op = operator_name(proto)
            name = self._names.take(text(proto.name) or f"{text(proto.op_type)}_{index}")
            outputs = _stripped(proto.output)
            where = f"node {name!r} ({op}), {self._at}"
            attributes = attributes_of(proto, self._tensors, where)
            if op == "Constant":
                value = constant_value(attributes, where)
                self._claim(constants, outputs[0] if outputs else "", value)
            else:
                nodes.append(Node(name, op, _stripped(proto.input), outputs, attributes))
        return nodes, constants

    def _claim(self, constants: dict[str, Any], name: str, value: Any) -> None:
        if not name or name in constants:
            raise ParseError(
                f"constant {name!r} is defined twice" if name else "a constant has no name",
                at=self._at,
                fix=_EXPORT,
            )
        constants[name] = value

    def _declare_inputs(self, constants: Mapping[str, Any]) -> None:
        used = {
            text(dim.dim_param)
            for value in self._proto.input
            for dim in value.type.tensor_type.shape.dim
        }
        symbols = (symbol for i in itertools.count() if (symbol := f"?{i}") not in used)
        for value in self._proto.input:
            name = text(value.name)
            if name not in constants:
                self._assembly.add_input(name, _spec(value, symbols, self._at))

    def _add_constants(
        self, constants: Mapping[str, Any], read: set[str], context: Context
    ) -> dict[str, str]:
        """Add the constants that are read; return new names for those that are graph outputs."""
        published: dict[str, str] = {}
        for name, value in constants.items():
            if name in read:
                if name in self._public:
                    published[name] = context.names.take(f"{name}/value")
                array = value if isinstance(value, np.ndarray) else self._read(value)
                self._assembly.add_constant(published.get(name, name), array)
        return published

    def _read(self, tensor: Any) -> Array:
        return self._tensors.read(tensor, f"tensor {tensor.name!r}")

    def _copies_constant(self, node: Node) -> bool:
        """Make Identity of a constant that constant, unless its name is public; say whether."""
        if node.op != "Identity" or len(node.inputs) != 1 or len(node.outputs) != 1:
            return False
        value = self._assembly.constants.get(node.inputs[0])
        if value is None or node.outputs[0] in self._public:
            return False
        self._assembly.add_constant(node.outputs[0], value)
        return True

    def _add(self, node: Node, context: Context) -> None:
        with understanding(node, self._at):
            upgraded = upgrade(node, context)
        for made in upgraded:
            name = node.name if made.name == node.name else self._names.take(made.name)
            named = dtypes_named(replace(made, name=name), f"{node}, {self._at}")
            self._assembly.add_node(named, context.declared)


def _spec(value: Any, symbols: Iterator[str], at: str) -> TensorSpec:
    """Return the spec of a ValueInfoProto; a length that is not given becomes a new symbol."""
    where = f"input {value.name!r}, {at}"
    if value.type.WhichOneof("value") != "tensor_type":
        raise ParseError(
            f"an input is no tensor but: {value.type.WhichOneof('value') or 'nothing'}",
            at=where,
            fix="export the model with tensors as inputs",
        )
    tensor = value.type.tensor_type
    dtype = dtype_name(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return TensorSpec(dtype, None)
    return TensorSpec(dtype, [_dim(dim, symbols) for dim in tensor.shape.dim])


def _dim(dim: Any, symbols: Iterator[str]) -> Dim:
    """Return a length or symbol; exporters write -1, "" or "?" for what they don't know."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.HasField("dim_param") and dim.dim_param not in ("", UNKNOWN):
        return text(dim.dim_param)
    return next(symbols)


def _stripped(names: Iterable[str | bytes]) -> tuple[str, ...]:
    """Return names without the absent ones at the end."""
    kept = [text(name) for name in names]
    while kept and kept[-1] == ABSENT:
        kept.pop()
    return tuple(kept)


def _unread_left_out(node: Node, read: set[str]) -> Node:
    """Return the node without optional outputs that nobody reads."""
    formals = find_operator(newest_name(node.op)).outputs.split()
    if formals and formals[-1][-1] in "*+":
        return node
    required = sum(not formal.endswith("?") for formal in formals)
    kept = [
        name if name in read or index < required else ABSENT
        for index, name in enumerate(node.outputs)
    ]
    return replace(node, outputs=_stripped(kept))
