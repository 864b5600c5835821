"""The constants of a file: laid out behind its header, and used where they lie."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import ParseError
from ..ir import Graph
from ..tensor import Array, TensorSpec
from .container import ALIGNMENT, aligned
from .header import StoredConstant

_AGAIN = "write the file again"


class ConstantWriter:
    """Gives constants their places, then their bytes in that order."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._end = 0

    def stored(self, graph: Graph) -> list[StoredConstant]:
        """Return the places of one graph's constants, behind those of the graphs before."""
        places = []
        for name, array in graph.constants.items():
            spec, offset = graph.tensors[name], aligned(self._end)
            places.append(StoredConstant(name, spec, offset, spec.nbytes))
            self._arrays.append(array)
            self._end = offset + spec.nbytes
        return places

    def parts(self, head: bytes) -> Iterator[bytes | memoryview]:
        """Yield a file of that head: the head, then the constants."""
        yield head
        end = len(head)
        for array in self._arrays:
            yield bytes(-end % ALIGNMENT)
            yield bytes_of(array)
            end = array.nbytes


def bytes_of(array: Array) -> memoryview:
    """Return an array's values as files have them: little-endian, in the order of C."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def read_constant(blob: memoryview, constant: StoredConstant, at: str) -> Array:
    """Return a constant as a read-only view of a file's constants, which it keeps alive.

    Raises
    ------
    ParseError
        If it does not lie in the file, or its bytes are no values of its dtype.
    """
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
    return array_in(blob[offset : offset + nbytes], spec, where)


def array_in(data: memoryview, spec: TensorSpec, where: str) -> Array:
    """Return the array that exactly these bytes of a file are: read-only, a view if aligned.

    Raises
    ------
    ParseError
        If numpy has no array of that shape, or the bytes are no values of its dtype.
    """
    # From a memory view: it keeps the bytes from being moved or unmapped under the array.
    flat = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    try:
        array: Array = flat.view(spec.dtype.newbyteorder("<")).reshape(spec.static_shape)
    except ValueError as error:  # more dimensions, or longer ones, than numpy has
        raise ParseError(f"{spec}: {error}", at=where, fix=_AGAIN) from error
    return frozen(array.astype(spec.dtype, copy=not array.flags.aligned), where, _AGAIN)


def frozen(array: Array, where: str, fix: str) -> Array:
    """Return an array that was made of a file's bytes, itself made read-only.

    Raises
    ------
    ParseError
        If it has booleans that are neither 0 nor 1.
    """
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ParseError("a boolean is neither 0 nor 1", at=where, fix=fix)
    if array.flags.writeable:
        array.flags.writeable = False
    return array
