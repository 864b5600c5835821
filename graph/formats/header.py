"""The header of a `.plait` file: a graph but for its constants' bytes, as msgpack scalars.

The header is flat: a list is its length, then its elements. No msgpack value nests, so nothing is
ever allocated because of a length that a damaged header claims: reading stops where the bytes end.
A graph inside of a node is written like the whole one, in the place of the attribute's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import msgpack

from ..dtypes import EXTENSIONS
from ..errors import GraphError, ParseError
from ..ir import Graph, Node
from ..tensor import Dim, TensorSpec

T = TypeVar("T")

DEEPEST = 32
"""How deep graphs may be nested in nodes."""

GRAPH = False
"""Stands where the length of an attribute's value does, when that is a graph."""

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", *EXTENSIONS),
)
"""The dtypes a file may hold; those of one size and meaning on every machine."""

PRECISIONS = "precisions"
"""What stands before the declared precisions, where there are any."""


@dataclass(frozen=True, slots=True)
class StoredConstant:
    """Where a constant's bytes lie: at `offset` bytes into the file's constants."""

    name: str
    spec: TensorSpec
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says, not yet believed: attributes are raw, names may be wrong.

    A graph inside of a node is a Header among the node's attributes.
    """

    name: str
    inputs: tuple[tuple[str, TensorSpec], ...]
    constants: tuple[StoredConstant, ...]
    nodes: tuple[Node, ...]
    specs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    precisions: Mapping[str, int]


Stored: TypeAlias = Callable[[Graph], Sequence[StoredConstant]]
"""Gives a graph's constants, the whole one's or a nested one's, places in the file."""


def pack_header(graph: Graph, stored: Stored) -> bytes:
    """Return the header of a graph whose constants lie where `stored` puts them.

    Raises
    ------
    GraphError
        If an attribute, a name or a dtype cannot be written.
    """
    writer = _Writer(stored)
    writer.put_graph(graph)
    if graph.precisions:  # most graphs have none, and older files end here
        writer.put(PRECISIONS)
        writer.put_list(tuple(graph.precisions.items()), lambda declared: writer.put(*declared))
    return b"".join(writer.parts)


def unpack_header(data: bytes | memoryview, at: str) -> Header:
    """Return what a header says.

    Raises
    ------
    ParseError
        If it is damaged; the message says at which byte.
    """
    reader = _Reader(data, at)
    try:
        return reader.header()
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise reader.damaged(str(error) or type(error).__name__) from error


class _Writer:
    def __init__(self, stored: Stored) -> None:
        self.parts: list[bytes] = []
        self._stored = stored
        self._pack: Callable[[Any], bytes] = msgpack.Packer(strict_types=True).pack

    def put(self, *values: Any) -> None:
        for value in values:
            try:
                self.parts.append(self._pack(value))
            except (TypeError, ValueError, OverflowError) as error:
                raise GraphError(
                    f"{value!r} cannot be saved: {error}",
                    fix="use text in UTF-8, numbers of 64 bits, booleans, and sequences of those",
                ) from error

    def put_list(self, elements: Sequence[T], put: Callable[[T], None]) -> None:
        self.put(len(elements))
        for element in elements:
            put(element)

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
        if spec.dtype.name not in DTYPES:
            raise GraphError(
                f"tensor {name!r} has the dtype {spec.dtype.name!r}, which differs by machine",
                fix="insert a Cast to float64 or complex128",
            )
        self.put(spec.dtype.name, spec.rank, *(spec.shape or ()))

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
        """Write name, length and elements; the length is nil where the value is no sequence."""
        name, value = attribute
        self.put(name)
        if isinstance(value, Graph):
            self.put(GRAPH)
            self.put_graph(value)
        elif isinstance(value, tuple | list):
            self.put_list(value, self.put)
        else:
            self.put(None, value)


class _Reader:
    def __init__(self, data: bytes | memoryview, at: str) -> None:
        self._at = at
        self._nbytes = len(data)
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(len(data), 1), max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._unpacker.feed(data)

    def damaged(self, detail: str) -> ParseError:
        return ParseError(
            f"the header is damaged: {detail}",
            at=f"{self._at}, byte {self._unpacker.tell()} of the header",
            fix="save the graph again",
        )

    def header(self) -> Header:
        whole = self.graph()
        precisions, end = dict[str, int](), self._unpacker.tell()
        if end < self._nbytes and self.scalar() == PRECISIONS:
            precisions.update(self.listed(lambda: (self.text(), self.count())))
            end = self._unpacker.tell()
        if end != self._nbytes:
            raise ValueError(f"{self._nbytes - end} bytes too many")
        return replace(whole, precisions=precisions)

    def graph(self, depth: int = 0) -> Header:
        """Return the whole graph, or one inside of a node."""
        if depth > DEEPEST:
            raise ValueError(f"graphs are nested deeper than {DEEPEST}")
        name = self.text()
        inputs = self.listed(self.tensor)
        constants = self.listed(self.constant)
        specs: dict[str, TensorSpec] = {}
        nodes = self.listed(lambda: self.node(specs, depth))
        outputs = self.listed(self.text)
        return Header(name, inputs, constants, nodes, specs, outputs, {})

    def text(self) -> str:
        return self._typed(str)

    def count(self) -> int:
        value = self._typed(int)
        if value < 0:
            raise ValueError(f"{value} is not a length")
        return value

    def listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        return tuple(self._listed(self.count(), read))

    def tensor(self) -> tuple[str, TensorSpec]:
        return self.text(), self.spec()

    def spec(self) -> TensorSpec:
        name, rank = self.text(), self.scalar()
        if name not in DTYPES:
            raise ValueError(f"{name!r} is not a dtype")
        if rank is None:
            return TensorSpec(name, None)
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise ValueError(f"{rank!r} is not a rank")
        return TensorSpec(name, tuple(self._listed(rank, self.dim)))

    def dim(self) -> Dim:
        value = self.scalar()
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not number and not (isinstance(value, str) and value):
            raise ValueError(f"{value!r} is not a dimension")
        return value  # type: ignore[no-any-return]

    def constant(self) -> StoredConstant:
        return StoredConstant(self.text(), self.spec(), self.count(), self.count())

    def node(self, specs: dict[str, TensorSpec], depth: int) -> Node:
        name, op = self.text(), self.text()
        inputs = self.listed(self.text)
        outputs: list[str] = []
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
        return name, tuple(self._listed(length, self.scalar))

    def scalar(self) -> Any:
        value = self._unpacker.unpack()
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ValueError(f"unexpected {type(value).__name__}")
        return value

    def _listed(self, length: int, read: Callable[[], T]) -> Iterable[T]:
        for _ in range(length):
            yield read()

    def _typed(self, kind: type[T]) -> T:
        value = self._unpacker.unpack()
        if type(value) is not kind:
            raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
        return value
