"""Containers: what files of graphs and of plans have in common around what they hold.

    0  magic, 8 bytes       8  version, u32      12  CRC-32 of the header, u32
    16  header length, u64  24  header           then, aligned to 64 bytes: the constants

All numbers are little-endian. How files are read and written: see files.py.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import ParseError

Data: TypeAlias = bytes | bytearray | memoryview

ALIGNMENT = 64
"""Of the start of the constants, and of each."""

_PREFIX = struct.Struct("<8sIIQ")
_RECOGNIZED = 6
"""Bytes of the magic that are the same in a file that was sent as text."""


@dataclass(frozen=True, slots=True)
class Container:
    """A kind of file.

    Attributes
    ----------
    magic : bytes
        8 of them: not ASCII, and with a line end, so that a file sent as text is recognized.
    version : int
        The newest that is known here.
    suffix, noun : str
        How such files are called, and what they hold, for messages.
    writer : str
        What writes them, for messages.
    """

    magic: bytes
    version: int
    suffix: str
    noun: str
    writer: str

    def starts(self, head: bytes) -> bool:
        """True when a file that starts with `head` is of this kind, damaged or not."""
        return head.startswith(self.magic[:_RECOGNIZED])

    def pack(self, header: bytes) -> bytes:
        """Return what a file begins with; constants follow."""
        return _PREFIX.pack(self.magic, self.version, zlib.crc32(header), len(header)) + header

    def unpack(self, data: Data, at: str) -> tuple[memoryview, memoryview]:
        """Return a file's header and the bytes of its constants.

        Raises
        ------
        ParseError
            If it is of another kind, of a newer version, cut short, or the checksum is wrong.
        """
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
        return header, view[aligned(end) :]


GRAPHS = Container(b"\x89plait\r\n", 1, ".plait", "graph", "plait.save")
PLANS = Container(b"\x89plans\r\n", 1, ".plan", "plan", "Plan.save")


def aligned(nbytes: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
