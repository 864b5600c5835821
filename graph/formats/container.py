"""The container of files of graphs and of plans.

    0  magic, 8 bytes       8  version, u32      12  CRC-32 of the header, u32
    16  header length, u64  24  header           then, aligned to 64 bytes: the constants

All numbers are little-endian. files.py reads and writes files.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TypeAlias

from ..values.errors import ParseError

Data: TypeAlias = bytes | bytearray | memoryview

ALIGNMENT = 64
"""Alignment of constants, in bytes."""

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
