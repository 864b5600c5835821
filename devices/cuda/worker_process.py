"""The process of a worker on a GPU: functions and kernels on CuPy's arrays, in memory it opens.

All is queued on the default stream, which is the current one of CuPy and PyTorch alike. When a
program has run, the process waits for the whole GPU, so that whatever stream a function used, its
work is done when the parent hears of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

from ...graph.errors import GraphError
from ...graph.ir import Graph
from ...graph.tensor import Array, TensorSpec
from ..errors import DeviceLostError
from ..function_steps import Step
from ..kernels.steps import in_order
from ..kinds import gpu_of
from ..memory import Arena, View
from ..streams.failures import first_line
from ..worker import process
from .arrays import CupyArrays
from .driver import CuPy, load_cupy
from .exchange import is_on_device
from .ipc import open_arena
from .memory import CudaArena
from .names import parsed


def main(name: str, connection_fd: int, flags_fd: int, parent: int) -> None:
    """Serve the parent, as `process.main` does."""
    process.main(name, connection_fd, flags_fd, parent, GpuArrays)


class GpuArrays:
    """Arrays of CuPy, on memory of the parent's.

    Parameters
    ----------
    name : str
        The worker's.
    cupy : module, optional
        What to use for CuPy; imported if left out.
    """

    kind = "cuda"

    def __init__(self, name: str, cupy: CuPy | None = None) -> None:
        self._name = name
        self._cupy = cupy or load_cupy()
        self._index = parsed(gpu_of(name)).index
        self._memory = f"cuda:{self._index}"
        self.module = CupyArrays(self._cupy)
        self._cupy.cuda.Device(self._index).use()

    def arena(self, mapping: mmap.mmap) -> Arena:
        """Open the memory that a file describes."""
        return open_arena(bytes(mapping), self._memory, self._cupy)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return the view at an offset."""
        assert isinstance(arena, CudaArena)
        return arena.view(offset, spec)

    def constants(self, graph: Graph) -> Mapping[str, Array]:
        """Return them uploaded."""
        return {name: self._cupy.asarray(value) for name, value in graph.constants.items()}

    def as_array(self, value: Any) -> Array:
        """Return an array on the GPU, of any library, as one of CuPy's on the same memory.

        Raises
        ------
        GraphError
            If it lies elsewhere.
        """
        if not is_on_device(value, self._index):
            raise GraphError(
                f"the function returned a {type(value).__name__} that is not on {self._memory!r}",
                fix="return what lies on the GPU, such as cupy.asarray(result)",
            )
        if hasattr(value, "__dlpack__"):
            return self._cupy.from_dlpack(value)
        return self._cupy.asarray(value)

    def measured(self, step: Step) -> Step:
        """Return a step that waits for what it has queued."""
        return in_order([step, self.settle])

    def settle(self) -> None:
        """Wait for the GPU.

        Raises
        ------
        DeviceLostError
            If a kernel broke the context of this process.
        """
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceLostError(first_line(error)) from error
