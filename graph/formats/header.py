"""The header of a `.plait` file: a graph without its constants' bytes, as scalars.

A nested graph is written like the whole one, in the place of the attribute's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..core.ir import Graph, Node
from ..values.dtypes import EXTENSIONS, TEXT, name_of
from ..values.errors import GraphError
from ..values.tensor import Dim, TensorSpec
from .scalars import ScalarReader, ScalarWriter

DEEPEST = 32
"""Limit of nesting for graphs in nodes."""

GRAPH = False
"""Replaces the length of an attribute's value if that is a graph; lengths are not booleans."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", *EXTENSIONS),
)
"""The dtypes of constants in a file: the same on every machine."""

PRECISIONS = "precisions"
"""Precedes the declared precisions, if any."""


@dataclass(frozen=True, slots=True)
class StoredConstant:
    """The place of a constant: `offset` counts from the file's first constant."""

    name: str
    spec: TensorSpec
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a header, not checked yet: attributes are raw, names may be wrong.

    Nested graphs are Headers among the attributes of nodes.
    """

    name: str
    inputs: tuple[tuple[str, TensorSpec], ...]
    constants: tuple[StoredConstant, ...]
    nodes: tuple[Node, ...]
    specs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    precisions: Mapping[str, int]


Stored: TypeAlias = Callable[[Graph], Sequence[StoredConstant]]
"""Assigns places to the constants of a graph or a nested graph."""


def pack_header(graph: Graph, stored: Stored) -> bytes:
    """Return the header of `graph`, with constants in the places `stored`, or raise GraphError."""
    writer = _Writer(stored)
    writer.put_graph(graph)
    if graph.precisions:  # most graphs have none, and older files end here
        writer.put(PRECISIONS)
        writer.put_list(tuple(graph.precisions.items()), lambda declared: writer.put(*declared))
    return b"".join(writer.parts)


def unpack_header(data: bytes | memoryview, at: str) -> Header:
    """Return the header in `data`; ParseError, with the position in the file `at`, if damaged."""
    reader = _Reader(data, at)
    return reader.read(reader.header)


class _Writer(ScalarWriter):
    def __init__(self, stored: Stored) -> None:
        super().__init__()
        self._stored = stored

    def put_graph(self, graph: Graph) -> None:
        self.put(graph.name)
        self.put_list(graph.inputs, lambda name: self.put_tensor(name, graph))
        self.put_list(self._stored(graph), self.put_constant)
        self.put_list(graph.nodes, lambda node: self.put_node(node, graph))
        self.put_list(graph.outputs, self.put)

    def put_tensor(self, name: str, graph: Graph) -> None:
        self.put(name)
        if name:
            self.put_spec(name, graph.tensors[name])

    def put_spec(self, name: str, spec: TensorSpec) -> None:
        if spec.dtype.name not in DTYPES and spec.dtype != TEXT:
            raise GraphError(
                f"tensor {name!r} has the dtype {spec.dtype.name!r}, which differs by machine",
                fix="insert a Cast to float64 or complex128",
            )
        self.put(name_of(spec.dtype), spec.rank, *(spec.shape or ()))

    def put_constant(self, constant: StoredConstant) -> None:
        self.put(constant.name)
        self.put_spec(constant.name, constant.spec)
        self.put(constant.offset, constant.nbytes)

    def put_node(self, node: Node, graph: Graph) -> None:
        self.put(node.name, node.op)
        self.put_list(node.inputs, self.put)
        self.put_list(node.outputs, lambda name: self.put_tensor(name, graph))
        try:
            self.put_list(tuple(node.attributes.items()), self.put_attribute)
        except GraphError as error:
            error.at = str(node)
            raise

    def put_attribute(self, attribute: tuple[str, Any]) -> None:
        """Write `attribute`: name, length and elements; the length is nil for a single value."""
        name, value = attribute
        self.put(name)
        if isinstance(value, Graph):
            self.put(GRAPH)
            self.put_graph(value)
        elif isinstance(value, tuple | list):
            self.put_list(value, self.put)
        else:
            self.put(None, value)


class _Reader(ScalarReader):
    def header(self) -> Header:
        whole = self.graph()
        precisions = dict[str, int]()
        if left := self.left:
            # Other parts, such as a later version's, must not be ignored.
            if self.scalar() != PRECISIONS:
                raise ValueError(f"{left} bytes too many")
            precisions.update(self.listed(lambda: (self.text(), self.count())))
        return replace(whole, precisions=precisions)

    def graph(self, depth: int = 0) -> Header:
        if depth > DEEPEST:
            raise ValueError(f"graphs are nested deeper than {DEEPEST}")
        name = self.text()
        inputs = self.listed(self.tensor)
        constants = self.listed(self.constant)
        specs: dict[str, TensorSpec] = {}
        nodes = self.listed(lambda: self.node(specs, depth))
        outputs = self.listed(self.text)
        return Header(name, inputs, constants, nodes, specs, outputs, {})

    def tensor(self) -> tuple[str, TensorSpec]:
        return self.text(), self.spec()

    def spec(self) -> TensorSpec:
        name, rank = self.text(), self.scalar()
        if name not in (*DTYPES, "str", "object"):
            raise ValueError(f"{name!r} is not a dtype")
        if rank is None:
            return TensorSpec(name, None)
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise ValueError(f"{rank!r} is not a rank")
        return TensorSpec(name, tuple(self.repeated(rank, self.dim)))

    def dim(self) -> Dim:
        value = self.scalar()
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not number and not (isinstance(value, str) and value):
            raise ValueError(f"{value!r} is not a dimension")
        return value  # type: ignore[no-any-return]

    def constant(self) -> StoredConstant:
        name, spec = self.tensor()
        if spec.dtype == TEXT:
            raise ValueError(f"the constant {name!r} holds no numbers")
        return StoredConstant(name, spec, self.count(), self.count())

    def node(self, specs: dict[str, TensorSpec], depth: int) -> Node:
        name, op = self.text(), self.text()
        inputs = self.listed(self.text)
        outputs: list[str] = []
        # One by one: a damaged count meets the end of the bytes before it exhausts the memory.
        for _ in range(self.count()):
            outputs.append(self.text())
            if outputs[-1]:
                specs[outputs[-1]] = self.spec()
        attributes = dict(self.listed(lambda: self.attribute(depth)))
        return Node(name, op, inputs, tuple(outputs), attributes)

    def attribute(self, depth: int) -> tuple[str, Any]:
        name, length = self.text(), self.scalar()
        if length is None:
            return name, self.scalar()
        if length is GRAPH:
            return name, self.graph(depth + 1)
        if not isinstance(length, int):
            raise ValueError(f"{length!r} is not a length")
        return name, tuple(self.repeated(length, self.scalar))
