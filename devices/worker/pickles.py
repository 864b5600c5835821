"""Python objects on their way to a worker and back: pickles, with the bytes of arrays out of band.

Reading a pickle runs code. This process and its workers read only pickles that they send each
other, over a socket without a name, never one from a file or a feed.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.core.ir import Graph
from ...graph.values.dtypes import has_objects
from ...graph.values.errors import describe_error
from ...graph.values.tensor import Array
from ..errors import KernelError
from ..memory import SharedArena, View
from .wire import MOST_DATA

_COUNT = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Cargo:
    """The tensors of Python objects that a program reads and writes."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    """Those written by other steps, and those read by other steps or the user."""

    @classmethod
    def of(cls, graph: Graph, views: Mapping[str, View]) -> Cargo | None:
        held = {name: one.array for name, one in views.items() if has_objects(one.spec.dtype)}
        inputs = {name: held[name] for name in graph.inputs if name in held}
        outputs = {name: held[name] for name in graph.outputs if name in held}
        return cls(inputs, outputs) if inputs or outputs else None

    def with_views(self, views: Mapping[str, View]) -> Cargo:
        return Cargo(_replace(self.inputs, views), _replace(self.outputs, views))

    def clear(self) -> None:
        for array in (*self.inputs.values(), *self.outputs.values()):
            array.fill(None)


def pack(arrays: Mapping[str, Array], at: str) -> bytearray:
    """Return the objects in `arrays` as bytes.

    Raises KernelError if an object cannot be pickled; it names the tensor, and the place `at`.
    """
    buffers: list[pickle.PickleBuffer] = []
    values = [list(array.flat) for array in arrays.values()]
    try:
        body = pickle.dumps(values, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    except Exception as error:  # objects of users raise anything
        raise KernelError(
            f"an object cannot go to another process: {describe_error(error)}",
            at=f"{at}, {', '.join(arrays)}",
            fix="run the functions that hand it on in one process, or make it one that pickles",
        ) from error
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    packed = bytearray()
    for number in (len(parts), *(part.nbytes for part in parts)):
        packed += _COUNT.pack(number)
    for part in parts:
        packed += part
    return packed


def unpack(packed: Any, arrays: Mapping[str, Array], at: str) -> None:
    """Put the objects of `packed` into `arrays`, in order.

    Raises KernelError, `at` the place, if one cannot be restored: a module may be missing.
    """
    view = memoryview(packed)
    sizes = struct.Struct(f"<{_COUNT.unpack_from(view)[0]}Q")
    start, parts = _COUNT.size + sizes.size, []
    for size in sizes.unpack_from(view, _COUNT.size):
        # Copies: functions may keep their inputs, and the file is unmapped.
        parts.append(bytearray(view[start : start + size]))
        start += size
    try:
        values = pickle.loads(parts[0], buffers=parts[1:])
    except Exception as error:
        raise KernelError(
            f"an object from another process cannot be made: {describe_error(error)}",
            at=f"{at}, {', '.join(arrays)}",
            fix="define its class in a module that both processes can import",
        ) from error
    for array, held in zip(arrays.values(), values, strict=True):
        for index, value in zip(np.ndindex(array.shape), held, strict=True):
            array[index] = value


def to_file(packed: bytearray) -> SharedArena | None:
    """Return a shared file of `packed`, or None if that fits into a message."""
    if len(packed) <= MOST_DATA:
        return None
    file = SharedArena(len(packed))
    file.buffer[:] = np.frombuffer(packed, np.uint8)
    return file


def map_file(fd: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def _replace(arrays: Mapping[str, Array], views: Mapping[str, View]) -> dict[str, Array]:
    return {name: views[name].array if name in views else array for name, array in arrays.items()}
