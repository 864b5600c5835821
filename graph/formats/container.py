"""The container of files of graphs and of plans: a header, and constants that are used in place.

    0  magic, 8 bytes       8  version, u32      12  CRC-32 of the header, u32
    16  header length, u64  24  header           then, aligned to 64 bytes: the constants

All numbers are little-endian. files.py reads and writes files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..core.ir import Graph
from ..values.errors import ParseError
from ..values.tensor import Array, TensorSpec
from .header import StoredConstant

Data: TypeAlias = bytes | bytearray | memoryview

ALIGNMENT = 64
"""Alignment of constants, in bytes."""

_AGAIN = "write the file again"
_PREFIX = struct.Struct("<8sIIQ")
_RECOGNIZED = 6
"""Bytes of the magic that survive a transfer as text."""


@dataclass(frozen=True, slots=True)
class Container:
    """A kind of file."""

    magic: bytes
    """8 bytes: not ASCII, with a line end, which reveals a transfer as text."""
    version: int
    """The newest version that can be read."""
    suffix: str
    noun: str
    writer: str
    """The suffix, content and writing function of such files, for messages."""

    def starts(self, head: bytes) -> bool:
        """Return whether `head` is the start of such a file, damaged or not."""
        return head.startswith(self.magic[:_RECOGNIZED])

    def pack(self, header: bytes) -> bytes:
        return _PREFIX.pack(self.magic, self.version, zlib.crc32(header), len(header)) + header

    def unpack(self, data: Data, at: str) -> tuple[memoryview, memoryview]:
        """Return the header and constants in `data`, the content of a file; errors name it `at`."""
        view = memoryview(data).toreadonly().cast("B")
        again = f"save the {self.noun} again"
        if len(view) < _PREFIX.size or not self.starts(bytes(view[: len(self.magic)])):
            raise ParseError(
                f"not a {self.suffix} file", at=at, fix=f"pass what {self.writer} wrote"
            )
        magic, version, checksum, nbytes = _PREFIX.unpack_from(view)
        if magic != self.magic:
            raise ParseError(
                "the file's line ends were changed on the way", at=at, fix="send it as binary"
            )
        if version > self.version:
            raise ParseError(
                f"the file has version {version} of the format, "
                f"this plait reads up to {self.version}",
                at=at,
                fix="upgrade plait",
            )
        if version < 1 or nbytes > len(view) - _PREFIX.size:
            raise ParseError(
                f"the file is cut short: {len(view)} bytes, its header claims {nbytes}",
                at=at,
                fix=f"copy it again, or {again}",
            )
        end = _PREFIX.size + nbytes
        header = view[_PREFIX.size : end]
        if zlib.crc32(header) != checksum:
            raise ParseError("the header is damaged: its checksum is wrong", at=at, fix=again)
        return header, view[align(end) :]


GRAPHS = Container(b"\x89plait\r\n", 1, ".plait", "graph", "plait.save")
PLANS = Container(b"\x89plans\r\n", 1, ".plan", "plan", "Plan.save")


def align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class ConstantWriter:
    """Assigns places to constants, then yields their bytes in that order."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._end = 0

    def stored(self, graph: Graph) -> list[StoredConstant]:
        """Return the places of the constants of `graph`, after those of earlier graphs."""
        places = []
        for name, array in graph.constants.items():
            spec, offset = graph.tensors[name], align(self._end)
            places.append(StoredConstant(name, spec, offset, spec.nbytes))
            self._arrays.append(array)
            self._end = offset + spec.nbytes
        return places

    def parts(self, head: bytes) -> Iterator[bytes | memoryview]:
        yield head
        end = len(head)
        for array in self._arrays:
            yield bytes(-end % ALIGNMENT)
            yield to_bytes(array)
            end = array.nbytes


def to_bytes(array: Array) -> memoryview:
    """Return the values of `array` as in files: little-endian, in C order."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def read_constant(blob: memoryview, constant: StoredConstant, at: str) -> Array:
    """Return the stored `constant` as a read-only view of `blob`; errors name the file `at`."""
    spec, offset, nbytes = constant.spec, constant.offset, constant.nbytes
    where = f"constant {constant.name!r}, {at}"
    if not spec.is_static or spec.nbytes != nbytes:
        raise ParseError(f"{nbytes} bytes cannot hold {spec}", at=where, fix="save the graph again")
    if offset % ALIGNMENT:
        raise ParseError(
            f"offset {offset} is not a multiple of {ALIGNMENT}",
            at=where,
            fix="save the graph again",
        )
    if offset + nbytes > len(blob):
        raise ParseError(
            f"bytes {offset} to {offset + nbytes} are not in the file, "
            f"which has {len(blob)} bytes of constants",
            at=where,
            fix="copy the file again, or save the graph again",
        )
    return read_array(blob[offset : offset + nbytes], spec, where)


def read_array(data: memoryview, spec: TensorSpec, where: str) -> Array:
    """Return `data` as an array of `spec`: read-only, a view if aligned.

    Raises ParseError, with the place `where`, if numpy cannot have that shape, or the bytes are not
    values of its dtype.
    """
    # The memory view keeps the bytes from being moved or unmapped.
    flat = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    try:
        array: Array = flat.view(spec.dtype.newbyteorder("<")).reshape(spec.static_shape)
    except ValueError as error:  # more dimensions, or longer ones, than numpy has
        raise ParseError(f"{spec}: {error}", at=where, fix=_AGAIN) from error
    return freeze_array(array.astype(spec.dtype, copy=not array.flags.aligned), where, _AGAIN)


def freeze_array(array: Array, where: str, fix: str) -> Array:
    """Make `array`, of a file, read-only; ParseError, with `where` and `fix`, for odd booleans."""
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ParseError("a boolean is neither 0 nor 1", at=where, fix=fix)
    if array.flags.writeable:
        array.flags.writeable = False
    return array
