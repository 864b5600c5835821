"""Memory: arenas, and views at planned offsets in them.

A memory is named. ``host`` is this process's own; ``shared`` can be mapped by other processes;
any other name belongs to one device. A device *accesses* a memory when its kernels can read and
write it in place; between memories that no device accesses both of, tensors are copied.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..graph.values.dtypes import OBJECT, TEXT, has_objects
from ..graph.values.tensor import Array, TensorSpec
from .donation import Donation
from .errors import DeviceMemoryError

HOST = "host"
SHARED = "shared"
HOST_MEMORIES = frozenset({HOST, SHARED})
CALLER = "caller"
"""Stands for a caller's arrays on a device, which are in no planned memory."""
ALIGNMENT = 64
"""Bytes; a cache line, and enough for any vector load."""

PAGE = mmap.PAGESIZE
"""Bytes."""

TOUCHED_BYTES = 1 << 24
"""The part of an arena that is written when it is allocated: ten milliseconds' work."""


class ArenaPair:
    """Two arenas that hold the values of a variable in turn: the committed one and the next.

    A kernel that changes a few elements copies only those in which the arenas differ.

    Attributes
    ----------
    part : tuple of Array or None
        The indices of all elements that may differ; None if any may.
    is_followed : bool
        False once something writes there that does not keep `part`.
    """

    def __init__(self) -> None:
        self.part: tuple[Array, ...] | None = None
        self.is_followed = True


class UndoLog(list[tuple[Array, tuple[Array, ...], Array]]):
    """The elements that an item has written in place: array, indices, and values from before."""

    item = -1
    """The item that writes."""

    def undo(self) -> None:
        while self:
            array, part, before = self.pop()
            array[part] = before


class Arena:
    """One allocation in a memory; freed by `close`.

    Attributes
    ----------
    buffer : object
        An address for the owning device; for host memories a uint8 array of `nbytes`.
    donations : Mapping of str to Donation
        Of its tensors, by name.
    texts : Array or None
        An object for every 8 bytes, for tensors of text and objects; None before the first.
    pair : ArenaPair or None
        Its own and that of another one, where a variable alternates between them.
    undo : UndoLog or None
        Where a variable is written in place.
    pages : object
        The pages that it lies in: its buffer, or those of its `HostSlab`.
    is_unused : bool
        True while nothing was written to it and nothing runs there, so that devices may try kernels
        in it when they compile.
    """

    def __init__(self, memory: str, nbytes: int, buffer: Any) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.buffer = self.pages = buffer
        self.is_unused = False
        self.donations: dict[str, Donation] = {}
        self.texts: Array | None = None
        self.pair: ArenaPair | None = None
        self.undo: UndoLog | None = None

    def stop_following(self) -> None:
        """Have a variable that alternates here copied as a whole from now on."""
        if self.pair is not None:
            self.pair.is_followed = False

    def close(self) -> None:
        """Free the memory; views on it must not be used any more."""
        self.buffer = self.pages = self.texts = None
        self.donations.clear()


class SharedArena(Arena):
    """An arena that other processes can map through its file descriptor.

    The file has no name, so that nothing remains after any end of the process.
    """

    def __init__(self, nbytes: int) -> None:
        self.fd = -1
        try:
            self.fd = _create_nameless_file()
            os.ftruncate(self.fd, max(nbytes, 1))
            mapping = mmap.mmap(self.fd, max(nbytes, 1))
        except (OSError, OverflowError) as error:
            self._close_fd()
            raise DeviceMemoryError(
                f"cannot share {nbytes} bytes of memory: {error}",
                fix="free memory, lower max_in_flight, or use fewer devices",
            ) from error
        super().__init__(SHARED, nbytes, np.frombuffer(mapping, np.uint8, nbytes))

    def close(self) -> None:
        """Close the descriptor; the pages are freed with the last view and mapping."""
        super().close()
        self._close_fd()

    def _close_fd(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class View:
    """The place of a tensor (arena, offset in bytes), its spec, and its array.

    `array` is None if this process cannot address the memory. All readers use the array of a
    `donation` if there is one.
    """

    arena: Arena
    offset: int
    spec: TensorSpec
    array: Array
    donation: Donation | None = field(default=None, kw_only=True)


class HostSlab:
    """Whole pages of this process's memory, carved into arenas; a GPU page-locks all of them once.

    Touching them early matters: the first write to 64 MB takes 36 ms, later ones 9 ms. Memory
    beyond most tensors' size is touched as it is written: most items may be far shorter than their
    bounds, and a loop may ask for gigabytes of rows, and end after a few.
    """

    def __init__(self, nbytes: int) -> None:
        size = -(-nbytes // PAGE) * PAGE
        try:
            raw = np.zeros(size + PAGE, np.uint8)
        except MemoryError as error:
            raise DeviceMemoryError(
                f"cannot allocate {nbytes} bytes of host memory",
                fix="free memory, or lower max_in_flight",
            ) from error
        raw[:TOUCHED_BYTES].fill(0)
        start = -raw.ctypes.data % PAGE
        self._pages = raw[start : start + size]
        self._end = 0

    def carve(self, nbytes: int) -> Arena | None:
        """Return an arena of the next `nbytes` free bytes, or None if there are too few."""
        begin, end = self._end, self._end + nbytes
        if end > len(self._pages):
            return None
        self._end = -(-end // ALIGNMENT) * ALIGNMENT
        arena = Arena(HOST, nbytes, self._pages[begin:end])
        arena.pages = self._pages
        return arena


def host_arena(nbytes: int) -> Arena:
    """Return a new arena of `nbytes`, in pages of its own of this process's memory."""
    arena = HostSlab(nbytes).carve(nbytes)
    assert arena is not None
    return arena


def host_view(arena: Arena, offset: int, spec: TensorSpec) -> View:
    if arena.buffer is None:  # numpy would quietly allocate memory of its own
        raise DeviceMemoryError("the arena is closed", fix="report this: a view is made too late")
    check_fits(arena, offset, spec)
    if spec.dtype == TEXT:
        return View(arena, offset, spec, _view_texts(arena, offset, spec))
    array = np.ndarray(spec.static_shape, spec.dtype, buffer=arena.buffer, offset=offset)
    return View(arena, offset, spec, array)


def _view_texts(arena: Arena, offset: int, spec: TensorSpec) -> Array:
    """Return the objects of `arena` at `offset` for the text or objects of a tensor of `spec`.

    Bytes cannot refer to objects. The memory plan holds for both, since their places correspond.
    """
    if arena.texts is None:  # untouched pages cost nothing
        arena.texts = np.empty(arena.nbytes // TEXT.itemsize, TEXT)
    start = offset // TEXT.itemsize
    found = arena.texts[start : start + spec.size]
    if has_objects(spec.dtype):
        return found.view(OBJECT).reshape(spec.static_shape)
    found[[not isinstance(one, str) for one in found]] = ""  # None, or objects from before
    return found.reshape(spec.static_shape)


def check_fits(arena: Arena, offset: int, spec: TensorSpec, alignment: int = ALIGNMENT) -> None:
    if offset < 0 or offset + spec.nbytes > arena.nbytes or offset % alignment:
        raise DeviceMemoryError(
            f"{spec} does not fit at offset {offset} of an arena of {arena.nbytes} bytes "
            f"in memory {arena.memory!r} (alignment {alignment})",
            fix="report this: the memory plan is wrong",
        )


def _create_nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("plait-arena")
    import tempfile

    fd, path = tempfile.mkstemp(prefix="plait-arena-")
    os.unlink(path)
    return fd
