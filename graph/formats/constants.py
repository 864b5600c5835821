"""The constants of a file: aligned after its header, and used in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.ir import Graph
from ..values.errors import ParseError
from ..values.tensor import Array, TensorSpec
from .container import ALIGNMENT, align
from .header import StoredConstant

_AGAIN = "write the file again"


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
