"""Kernels of libraries, run once before the first item comes: they are compiled or loaded then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...graph.ir import Graph, Node
from ...graph.tensor import Array, TensorSpec
from ..device import scratch_name
from ..errors import KernelError
from ..program import BoundProgram
from .binding import Binder
from .cublas import ProductRefusedError
from .driver import CuPy
from .lowering import Lowering, Multiply, Part
from .memory import ALIGNMENT, CudaArena


class Warmer:
    """Runs each kind of kernel that is not ours once, on zeros of its own, when it is bound.

    CuPy compiles a kernel when it is first launched, which takes up to a second, and cuBLAS loads
    it. Zeros are safe for whatever a kernel does with its inputs: as indices they are in range.
    """

    def __init__(self, cupy: CuPy, device: str, lowering: Lowering, binder: Binder) -> None:
        self._cupy = cupy
        self._device = device
        self._lowering = lowering
        self._binder = binder
        self._warm: set[str] = set()

    def warm(
        self, graph: Graph, parts: Sequence[Part], constants: Mapping[str, Array], stream: Any
    ) -> bool:
        """Run the nodes that are unlike all before; raise KernelError naming one that fails.

        Return False where cuBLAS refuses a product, whatever its documentation says of it: the
        parts are to be made again then, since generated kernels will compute it.
        """
        taken = True
        for part in parts:
            node, work = part.node, part.of_libraries
            kind = f"{node.op} {graph.call(node).inputs} {node.attributes}"
            if work is None or kind in self._warm:
                continue
            try:
                self._run(graph.extract([node], node.name), work, constants, stream)
            except KernelError as error:
                if not isinstance(error.__cause__, ProductRefusedError):
                    raise
                taken = False
                for item in work.queued or ():
                    if isinstance(item, Multiply):
                        self._lowering.refuse(item.product)
            else:
                self._warm.add(kind)
        return taken

    def _run(self, graph: Graph, work: Part, constants: Mapping[str, Array], stream: Any) -> None:
        specs = self._specs(graph, work.node)
        nbytes = sum(map(_room, specs.values()))
        arena = CudaArena(self._device, nbytes, self._cupy)
        self._cupy.cuda.runtime.memsetAsync(arena.buffer.ptr, 0, nbytes, stream.ptr)
        views, offset = {}, 0
        for name, spec in specs.items():
            views[name] = arena.view(offset, spec)
            offset += _room(spec)
        bound = self._binder.bind(graph, [work], views, constants, stream)
        try:
            BoundProgram(self._device, graph, bound.steps, measure=False)()
        finally:
            stream.synchronize()  # what is queued uses the arena, whatever became of the rest

    def _specs(self, graph: Graph, node: Node) -> dict[str, TensorSpec]:
        """Return the specs of a node's tensors and scratch buffers, without its constants."""
        specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
        scratch = self._lowering.scratch(node, graph.call(node), graph.output_specs(node))
        return specs | {scratch_name(node, index): spec for index, spec in enumerate(scratch)}


def _room(spec: TensorSpec) -> int:
    return -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
