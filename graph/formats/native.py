"""The `.plait` format: a graph in one file, its constants ready to be used where they lie.

    0  magic, 8 bytes       8  version, u32      12  CRC-32 of the header, u32
    16  header length, u64  24  header           then, aligned to 64 bytes: the constants

All numbers are little-endian; each constant starts at a multiple of 64 bytes. See header.py for
the header. Nothing in a file is believed: see assembly.py.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ..check import check
from ..errors import GraphError, ParseError, UnknownOperatorError
from ..ir import Graph
from ..operator import is_operator
from ..tensor import Array
from .assembly import Assembly
from .header import Header, StoredConstant, pack_header, unpack_header

Data: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

MAGIC = b"\x89plait\r\n"
"""Not ASCII and with a line end, so that a file sent as text is recognised as damaged."""
VERSION = 1
ALIGNMENT = 64

_PREFIX = struct.Struct("<8sIIQ")


def dump_bytes(graph: Graph) -> bytes:
    """Return a graph as the bytes of a `.plait` file.

    Raises
    ------
    GraphError
        If it breaks an invariant, or holds what cannot be written.
    """
    return b"".join(_chunks(graph))


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a `.plait` file, wholly or not at all.

    A file of that name is replaced; whoever has it open keeps the old one.

    Raises
    ------
    GraphError
        If the graph breaks an invariant or holds what cannot be written; or if the file cannot be.
    """
    replace_file(Path(path), _chunks(graph))


def replace_file(target: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file, wholly or not at all; raise GraphError if it cannot be."""
    draft = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        with draft.open("xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise GraphError(
            f"cannot write {target}: {error.strerror}", fix="choose a folder you may write to"
        ) from error
    finally:
        with suppress(OSError):  # most often there is none left
            draft.unlink()


def load_bytes(data: Data, at: str = "bytes") -> Graph:
    """Return the graph that the bytes of a `.plait` file hold.

    Its constants are read-only views of `data`, which they keep alive.

    Raises
    ------
    ParseError
        If the bytes are damaged or foreign, or need operators that are not registered.
    GraphError
        If they hold a graph that does not fit together.
    """
    view = memoryview(data).toreadonly().cast("B")
    header = unpack_header(*_frame(view, at))
    _check_operators(header, at)
    start = _aligned(_PREFIX.size + _PREFIX.unpack_from(view)[3])
    return _graph(header, view[start:], at)


def load_native(path: str | os.PathLike[str]) -> Graph:
    """Return the graph in a `.plait` file; its constants are mapped, not read.

    The file may be replaced or deleted afterwards.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign, or needs operators that are not registered.
    GraphError
        If it holds a graph that does not fit together.
    """
    at = os.fspath(path)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ParseError("the file is empty", at=at, fix="save the graph again")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ParseError(
            f"cannot read the file: {error.strerror}", at=at, fix="check its path and permissions"
        ) from error
    return load_bytes(mapping, at)


def is_native(head: bytes) -> bool:
    """True when a file that starts with `head` is a `.plait` file, damaged or not."""
    return head.startswith(MAGIC[:6])


def _graph(header: Header, blob: memoryview, at: str) -> Graph:
    """Return the graph that a header describes, or a nested one."""
    assembly = Assembly(header.name, at)
    for name, spec in header.inputs:
        assembly.add_input(name, spec)
    for constant in header.constants:
        assembly.add_constant(constant.name, _constant(blob, constant, at))
    for node in header.nodes:
        nested = {
            name: _graph(value, blob, at)
            for name, value in node.attributes.items()
            if isinstance(value, Header)
        }
        complete = replace(node, attributes={**node.attributes, **nested}) if nested else node
        assembly.add_node(complete, header.specs)
    assembly.precisions.update(header.precisions)
    return assembly.finish(header.outputs)


def _chunks(graph: Graph) -> Iterator[bytes | memoryview]:
    """Yield the parts of a file; the whole header is made before the first part."""
    check(graph)
    arrays: list[Array] = []
    end = 0

    def stored(graph: Graph) -> list[StoredConstant]:
        nonlocal end
        places = []
        for name, array in graph.constants.items():
            spec, offset = graph.tensors[name], _aligned(end)
            places.append(StoredConstant(name, spec, offset, spec.nbytes))
            arrays.append(array)
            end = offset + spec.nbytes
        return places

    header = pack_header(graph, stored)
    prefix = _PREFIX.pack(MAGIC, VERSION, zlib.crc32(header), len(header))
    return _parts(arrays, prefix + header)


def _parts(arrays: Sequence[Array], head: bytes) -> Iterator[bytes | memoryview]:
    yield head
    end = len(head)
    for array in arrays:
        yield bytes(-end % ALIGNMENT)
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        yield little.reshape(-1).view(np.uint8).data
        end = array.nbytes


def _frame(view: memoryview, at: str) -> tuple[memoryview, str]:
    """Return the header's bytes, checked against the prefix."""
    if len(view) < _PREFIX.size or not is_native(bytes(view[:8])):
        raise ParseError("not a .plait file", at=at, fix="pass what plait.save wrote")
    magic, version, checksum, nbytes = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise ParseError(
            "the file's line ends were changed on the way", at=at, fix="send it as binary"
        )
    if version > VERSION:
        raise ParseError(
            f"the file has version {version} of the format, this plait reads up to {VERSION}",
            at=at,
            fix="upgrade plait",
        )
    if version < 1 or nbytes > len(view) - _PREFIX.size:
        raise ParseError(
            f"the file is cut short: {len(view)} bytes, its header claims {nbytes}",
            at=at,
            fix="copy it again, or save the graph again",
        )
    header = view[_PREFIX.size : _PREFIX.size + nbytes]
    if zlib.crc32(header) != checksum:
        raise ParseError(
            "the header is damaged: its checksum is wrong", at=at, fix="save the graph again"
        )
    return header, at


def _check_operators(header: Header, at: str) -> None:
    unknown = sorted({op for op in _operators(header) if not is_operator(op)})
    if unknown:
        raise UnknownOperatorError(
            f"operators that are not registered here: {', '.join(unknown)}",
            at=at,
            fix="import the modules that define them with @plait.operator before loading",
        )


def _operators(header: Header) -> Iterator[str]:
    for node in header.nodes:
        yield node.op
        for value in node.attributes.values():
            if isinstance(value, Header):
                yield from _operators(value)


def _constant(blob: memoryview, constant: StoredConstant, at: str) -> Array:
    spec, offset, nbytes = constant.spec, constant.offset, constant.nbytes
    where = f"constant {constant.name!r}, {at}"
    if not spec.is_static or spec.nbytes != nbytes:
        raise ParseError(f"{nbytes} bytes cannot hold {spec}", at=where, fix="save the graph again")
    if offset % ALIGNMENT:
        raise ParseError(
            f"offset {offset} is no multiple of {ALIGNMENT}", at=where, fix="save the graph again"
        )
    if offset + nbytes > len(blob):
        raise ParseError(
            f"bytes {offset} to {offset + nbytes} are not in the file, "
            f"which has {len(blob)} bytes of constants",
            at=where,
            fix="copy the file again, or save the graph again",
        )
    # From a memory view: it keeps the bytes from being moved or unmapped under the array.
    flat = (
        np.frombuffer(blob[offset : offset + nbytes], np.uint8) if nbytes else np.empty(0, np.uint8)
    )
    try:
        array: Array = flat.view(spec.dtype.newbyteorder("<")).reshape(spec.static_shape)
    except ValueError as error:  # more dimensions, or longer ones, than numpy has
        raise ParseError(f"{spec}: {error}", at=where, fix="save the graph again") from error
    return _frozen(array.astype(spec.dtype, copy=not array.flags.aligned), where)


def _frozen(array: Array, where: str) -> Array:
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ParseError("a boolean is neither 0 nor 1", at=where, fix="save the graph again")
    if array.flags.writeable:
        array.flags.writeable = False
    return array


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
