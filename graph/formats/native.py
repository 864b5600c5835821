"""The `.plait` format: a graph in one file, its constants used in place.

A container (container.py) of a header (header.py) and constants (constants.py). assembly.py checks
the content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from ..core.check import check
from ..core.ir import Graph
from ..core.operator import is_operator
from ..values.errors import ParseError, UnknownOperatorError
from .assembly import Assembly
from .container import GRAPHS, ConstantWriter, Data, read_constant
from .files import read_file, replace_file
from .header import Header, pack_header, unpack_header
from .sources import Source, read_content
from .unknown_operators import advise


def dump_bytes(graph: Graph) -> bytes:
    """Return `graph` as the bytes of a `.plait` file.

    Raises
    ------
    GraphError
        If it breaks an invariant, or a part cannot be written.
    """
    return b"".join(_pack(graph))


def hash_graph(graph: Graph) -> str:
    """Return a digest of `graph` and its constants; raises the errors of `save`."""
    digest = sha256()
    for part in _pack(graph):
        digest.update(part)
    return digest.hexdigest()


def save(graph: Graph, path: str | os.PathLike[str], *, is_durable: bool = True) -> None:
    """Write `graph` to the `.plait` file `path`, wholly or not at all.

    A file of that name is replaced; its readers keep the old one. If `is_durable`, the new one
    survives a loss of power. Raises GraphError if the graph breaks an invariant, or a part or the
    file cannot be written.
    """
    replace_file(path, _pack(graph), is_durable=is_durable)


def load_bytes(data: Data, at: str = "bytes") -> Graph:
    """Return the graph in `data`, the bytes of a `.plait` file; errors name it `at`.

    Its constants are read-only views of `data`, which they keep alive.

    Raises
    ------
    ParseError
        If the bytes are damaged or foreign, or need operators that are not registered.
    GraphError
        If they hold a graph that does not fit together.
    """
    header, blob = GRAPHS.unpack(data, at)
    return read_graph(header, blob, at)


def load_native(source: Source) -> Graph:
    """Return the graph in a `.plait` file, the `source`: its bytes or path.

    Its constants are used where they lie, or were read to. The file may be changed, replaced or
    deleted afterwards.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign, or needs operators that are not registered.
    GraphError
        If it holds a graph that does not fit together.
    """
    if isinstance(source, str | os.PathLike):
        return load_bytes(read_file(source), os.fspath(source))
    return load_bytes(*read_content(source, "bytes", ParseError))


def is_native(head: bytes) -> bool:
    return GRAPHS.starts(head)


def read_graph(data: memoryview, blob: memoryview, at: str) -> Graph:
    header = unpack_header(data, at)
    unknown = sorted({op for op in _list_operators(header) if not is_operator(op)})
    if unknown:
        raise UnknownOperatorError(
            f"operators that are not registered here: {', '.join(unknown)}",
            at=at,
            fix=advise(
                unknown,
                "before loading, import the modules that define them with @plait.operator, build "
                "the pipeline that they are from, or load_operators(their file); on the command "
                "line --import MODULE or --operators FILE",
            ),
        )
    return _assemble(header, blob, at)


def _assemble(header: Header, blob: memoryview, at: str) -> Graph:
    assembly = Assembly(header.name, at)
    for name, spec in header.inputs:
        assembly.add_input(name, spec)
    for constant in header.constants:
        assembly.add_constant(constant.name, read_constant(blob, constant, at))
    for node in header.nodes:
        nested = {
            name: _assemble(value, blob, at)
            for name, value in node.attributes.items()
            if isinstance(value, Header)
        }
        complete = replace(node, attributes={**node.attributes, **nested}) if nested else node
        assembly.add_node(complete, header.specs)
    assembly.precisions.update(header.precisions)
    return assembly.finish(header.outputs)


def _pack(graph: Graph) -> Iterator[bytes | memoryview]:
    """Return the file of `graph` in parts; errors are raised before the first part."""
    check(graph)
    constants = ConstantWriter()
    return constants.parts(GRAPHS.pack(pack_header(graph, constants.stored)))


def _list_operators(header: Header) -> Iterator[str]:
    for node in header.nodes:
        yield node.op
        for value in node.attributes.values():
            if isinstance(value, Header):
                yield from _list_operators(value)
