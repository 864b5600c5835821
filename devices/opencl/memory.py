"""Memory of an OpenCL device: arenas that are buffers, and sub-buffers at offsets of them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from ...graph.tensor import TensorSpec
from ..memory import ALIGNMENT, Arena, View, check_fits
from .driver import ClDevice, PyOpenCl


def alignment_of(device: ClDevice) -> int:
    """Return the bytes that offsets of sub-buffers are multiples of."""
    return max(ALIGNMENT, int(device.mem_base_addr_align) // 8)


class _Part:
    """A sub-buffer; pyopencl's own cannot be referred to weakly."""

    __slots__ = ("__weakref__", "buffer")

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer


@dataclass(frozen=True, slots=True)
class OpenClView(View):
    """A view of an OpenCL device's memory; it keeps the sub-buffer known to the arena."""

    part: _Part | None = None


class OpenClArena(Arena):
    """One buffer, and its sub-buffers.

    All that touches the arena goes through sub-buffers, copies too: OpenCL leaves undefined what
    happens to a buffer and a sub-buffer of it that are used at the same time.
    """

    def __init__(
        self, memory: str, nbytes: int, alignment: int, cl: PyOpenCl, context: Any, queue: Any
    ) -> None:
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        super().__init__(memory, nbytes, buffer)
        self._alignment = alignment
        self._flags = cl.mem_flags.READ_WRITE
        # Weak: a session that is fed many shapes has many views, of which it keeps the last ones.
        self._parts: weakref.WeakValueDictionary[tuple[int, int], _Part]
        self._parts = weakref.WeakValueDictionary()
        # Drivers allocate when memory is first touched: there must not be too little of it later.
        cl.enqueue_fill_buffer(queue, buffer, b"\0", 0, max(nbytes, 1)).wait()

    def view(self, offset: int, spec: TensorSpec) -> OpenClView:
        """Return a view, whose array is a sub-buffer; that of no bytes is None.

        Views of the same bytes that live at a time have the same sub-buffer: a kernel may write
        over its input, but not through another sub-buffer.
        """
        check_fits(self, offset, spec, self._alignment)
        if not spec.nbytes:
            return OpenClView(self, offset, spec, None)
        place = offset, spec.nbytes
        part = self._parts.get(place)
        if part is None:
            part = _Part(self.buffer.get_sub_region(offset, spec.nbytes, self._flags))
            self._parts[place] = part
        return OpenClView(self, offset, spec, part.buffer, part)

    def close(self) -> None:
        """Drop the sub-buffers; the memory goes with the last program that uses it."""
        self._parts.clear()
        super().close()
