"""Memory of an OpenCL device: arenas that are buffers, and sub-buffers at offsets of them."""

from __future__ import annotations

from typing import Any

from ...graph.tensor import TensorSpec
from ..memory import ALIGNMENT, Arena, View, check_fits
from .driver import ClDevice, PyOpenCl


def alignment_of(device: ClDevice) -> int:
    """Return the bytes that offsets of sub-buffers are multiples of."""
    return max(ALIGNMENT, int(device.mem_base_addr_align) // 8)


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
        self._parts: dict[tuple[int, int], Any] = {}
        # Drivers allocate when memory is first touched: there must not be too little of it later.
        cl.enqueue_fill_buffer(queue, buffer, b"\0", 0, max(nbytes, 1)).wait()

    def view(self, offset: int, spec: TensorSpec) -> View:
        """Return a view, whose array is a sub-buffer; that of no bytes is None.

        Views of the same bytes have the same sub-buffer: a kernel may write over its input, but
        not through another sub-buffer.
        """
        check_fits(self, offset, spec, self._alignment)
        place = offset, spec.nbytes
        if spec.nbytes and place not in self._parts:
            self._parts[place] = self.buffer.get_sub_region(offset, spec.nbytes, self._flags)
        return View(self, offset, spec, self._parts.get(place))

    def close(self) -> None:
        """Drop the sub-buffers; the memory goes with the last program that uses it."""
        self._parts.clear()
        super().close()
