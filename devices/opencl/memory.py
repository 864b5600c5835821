"""Memory of an OpenCL device: each arena is a buffer, each view a sub-buffer."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from ...graph.values.tensor import TensorSpec
from ..memory import ALIGNMENT, Arena, View, check_fits
from .driver import ClDevice, PyOpenCl


def read_alignment(device: ClDevice) -> int:
    """Return the alignment of sub-buffer offsets of `device` in bytes."""
    return max(ALIGNMENT, int(device.mem_base_addr_align) // 8)


class _Part:
    """A sub-buffer that supports weak references; pyopencl's own does not."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer


@dataclass(frozen=True, slots=True)
class OpenClView(View):
    """A view of an OpenCL device's memory; it keeps the arena's sub-buffer alive."""

    part: _Part | None = None


class OpenClArena(Arena):
    """One buffer and its sub-buffers.

    All accesses go through sub-buffers, copies too: OpenCL leaves the simultaneous use of a
    buffer and a sub-buffer undefined.
    """

    def __init__(
        self, memory: str, nbytes: int, alignment: int, cl: PyOpenCl, context: Any, queue: Any
    ) -> None:
        buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, max(nbytes, 1))
        super().__init__(memory, nbytes, buffer)
        self._alignment = alignment
        self._flags = cl.mem_flags.READ_WRITE
        # Weak: a session with many input shapes makes many views and keeps only the last ones.
        self._parts: weakref.WeakValueDictionary[tuple[int, int], _Part]
        self._parts = weakref.WeakValueDictionary()
        # Drivers allocate at first touch: touch now, so that a shortage shows here.
        cl.enqueue_fill_buffer(queue, buffer, b"\0", 0, max(nbytes, 1)).wait()

    def view(self, offset: int, spec: TensorSpec) -> OpenClView:
        """Return a view of `spec` at `offset`; its array is a sub-buffer, or None without bytes.

        Live views of the same bytes share a sub-buffer: a kernel may write over its input, but not
        through another sub-buffer.
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
        """Drop the sub-buffers. The memory is freed with the last program that uses it."""
        self._parts.clear()
        super().close()
