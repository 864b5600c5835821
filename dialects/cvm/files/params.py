"""cvm's parameter files: named integer arrays, one after the other.

    magic, u64   reserved, u64   names: count, u64, then length, u64, and bytes of each
    count, u64   arrays:  magic, u64   reserved, u64   device kind and number, 2 × i32
                          rank, i32   kind, bits, u8   lanes, u16   shape, i64 each
                          nbytes, i64   values

All numbers are little-endian. A length is accepted only if the file has as many bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....graph.values.errors import GraphError
from ....graph.values.tensor import Array
from ..operators.rules import MAX_RANK
from .symbol import fail, reject

LIST_MAGIC = 0xF7E58D4F05049CB7
ARRAY_MAGIC = 0xDD5E40F096B4A13F

_HEAD = struct.Struct("<QQ")
_COUNT = struct.Struct("<Q")
_ARRAY = struct.Struct("<QQiiiBBH")
_NBYTES = struct.Struct("<q")
_CPU, _INTEGER = 1, 0


def read_params(data: bytes, at: str = "params") -> dict[str, Array]:
    """Return the arrays in `data`, a parameter file, by name: int8 or int32, views of the bytes.

    `at` is the file's name in errors: LogicError if the list of names is damaged, or an array is of
    another dtype; RuntimeFailureError if an array is damaged.
    """
    reader = _Reader(data, at)
    magic, _reserved = reader.unpack(_HEAD, "the head")
    if magic != LIST_MAGIC:
        reject(f"this is not a parameter file: it starts with {magic:#x}", at)
    names = reader.names()
    (count,) = reader.unpack(_COUNT, "the number of arrays")
    if count != len(names):
        reject(f"there are {len(names)} names for {count} arrays", at)
    arrays = {name: reader.array(name) for name in names}
    if reader.left:
        reject(f"{reader.left} bytes follow the last array", at)
    return arrays


def write_params(arrays: Mapping[str, Array]) -> bytes:
    """Return a parameter file with `arrays`; GraphError if one is neither int8 nor int32."""
    parts = [_HEAD.pack(LIST_MAGIC, 0), _COUNT.pack(len(arrays))]
    for name in arrays:
        raw = name.encode()
        parts += [_COUNT.pack(len(raw)), raw]
    parts.append(_COUNT.pack(len(arrays)))
    for name, array in arrays.items():
        if array.dtype not in (np.int8, np.int32):
            raise GraphError(
                f"parameter {name!r} is {array.dtype.name}", fix="cvm knows int8 and int32 only"
            )
        bits = 8 * array.dtype.itemsize
        parts.append(_ARRAY.pack(ARRAY_MAGIC, 0, _CPU, 0, array.ndim, _INTEGER, bits, 1))
        parts.append(struct.pack(f"<{array.ndim}q", *array.shape))
        raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
        parts += [_NBYTES.pack(len(raw)), raw]
    return b"".join(parts)


class _Reader:
    """Takes bytes from the front of a file; raises if too few are left."""

    def __init__(self, data: bytes, at: str) -> None:
        self._data = memoryview(data).toreadonly().cast("B")
        self._at = at
        self._place = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    def unpack(self, form: struct.Struct, what: str, damage: Any = reject) -> tuple[Any, ...]:
        return form.unpack(self._take(form.size, what, damage))

    def names(self) -> list[str]:
        (count,) = self.unpack(_COUNT, "the number of names")
        if count > self.left // _COUNT.size:
            reject(f"{count} names do not fit into {self.left} bytes", self._at)
        names: dict[str, None] = {}
        for index in range(count):
            (length,) = self.unpack(_COUNT, f"the length of name {index}")
            raw = bytes(self._take(length, f"name {index}", reject))
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                reject(f"name {index} is not text", self._at)
            if name in names:
                reject(f"there are two arrays named {name!r}", self._at)
            names[name] = None
        return list(names)

    def array(self, name: str) -> Array:
        at = f"array {name!r}, {self._at}"
        magic, _, device, _, rank, kind, bits, lanes = self.unpack(_ARRAY, f"array {name!r}", fail)
        if magic != ARRAY_MAGIC:
            fail(f"an array starts with {magic:#x}", at)
        if device != _CPU:
            fail(f"it is for the device {device}, not the CPU", at)
        if not 0 <= rank <= MAX_RANK:
            reject(f"its rank is {rank}", at)
        shape = self.unpack(struct.Struct(f"<{rank}q"), f"the shape of {name!r}", fail)
        (nbytes,) = self.unpack(_NBYTES, f"the size of {name!r}", fail)
        if (kind, lanes) != (_INTEGER, 1) or bits not in (8, 32):
            reject("it is neither int8 nor int32", at)
        if min(shape, default=1) < 1 or nbytes != math.prod(shape) * (bits // 8):
            fail(f"{nbytes} bytes are not {list(shape)} values of {bits} bits", at)
        values = self._take(nbytes, f"the values of {name!r}", fail)
        return np.frombuffer(values, "<i1" if bits == 8 else "<i4").reshape(shape)

    def _take(self, nbytes: int, what: str, damage: Any) -> memoryview:
        if nbytes > self.left:
            damage(f"the file ends in {what}: {nbytes} bytes wanted, {self.left} left", self._at)
        taken = self._data[self._place : self._place + nbytes]
        self._place += nbytes
        return taken
