"""The process of a worker on a GPU: functions and kernels on CuPy's arrays, in memory it opens.

All work is queued on the default stream, the current one of CuPy and PyTorch. After each program
the process waits for the whole GPU, so that the parent sees complete work of any stream.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

from ...graph.core.ir import Graph
from ...graph.values.errors import GraphError
from ...graph.values.tensor import Array, TensorSpec
from ..errors import DeviceLostError
from ..function_steps import Step
from ..kernels.registry import run_in_order
from ..kinds import get_gpu
from ..memory import Arena, View
from ..streams.failures import get_first_line
from ..worker import process
from ..worker.process import ProcessArrays
from .driver import CuPy, CupyArrays, load_cupy
from .exchange import is_on_device
from .memory import CudaArena, open_arena
from .names import parse_name


def main(name: str, connection_fd: int, flags_fd: int, parent: int) -> None:
    process.main(name, connection_fd, flags_fd, parent, GpuArrays)


class GpuArrays(ProcessArrays):
    """Arrays of CuPy on the parent's memory."""

    kind = "cuda"

    def __init__(self, name: str, cupy: CuPy | None = None) -> None:
        super().__init__(name)
        self._cupy = cupy or load_cupy()
        self._index = parse_name(get_gpu(name)).index
        self._memory = f"cuda:{self._index}"
        self.module = CupyArrays(self._cupy)
        self._cupy.cuda.Device(self._index).use()

    def arena(self, mapping: mmap.mmap) -> Arena:
        """Open the memory that the file `mapping` describes."""
        return open_arena(bytes(mapping), self._memory, self._cupy)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        assert isinstance(arena, CudaArena)
        return arena.view(offset, spec)

    def constants(self, graph: Graph) -> Mapping[str, Array]:
        return {name: self._cupy.asarray(value) for name, value in graph.constants.items()}

    def as_array(self, value: Any) -> Array:
        """Convert `value`, on the GPU and of any library, to an array of CuPy's on the same memory.

        Raises GraphError if it is in other memory.
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
        return run_in_order([step, self.settle])

    def settle(self) -> None:
        """Wait for the GPU.

        Raises DeviceLostError if a kernel broke the context of this process.
        """
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceLostError(get_first_line(error)) from error
