"""Kernels of libraries, run once before the first item comes: they are compiled or loaded then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...graph.ir import Graph, Node
from ...graph.tensor import Array, TensorSpec
from ..device import scratch_name
from ..program import BoundProgram
from .binding import Binder
from .driver import CuPy
from .lowering import Lowering, Part
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
    ) -> None:
        """Run the nodes that are unlike all before; raise KernelError naming one that fails."""
        for part in parts:
            node, work = part.node, part.of_libraries
            kind = f"{node.op} {graph.call(node).inputs} {node.attributes}"
            if work is not None and kind not in self._warm:
                self._run(graph.extract([node], node.name), work, constants, stream)
                self._warm.add(kind)

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
        BoundProgram(self._device, graph, bound.steps, measure=False)()
        stream.synchronize()

    def _specs(self, graph: Graph, node: Node) -> dict[str, TensorSpec]:
        """Return the specs of a node's tensors and scratch buffers, without its constants."""
        specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
        scratch = self._lowering.scratch(node, graph.call(node), graph.output_specs(node))
        return specs | {scratch_name(node, index): spec for index, spec in enumerate(scratch)}


def _room(spec: TensorSpec) -> int:
    return -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
