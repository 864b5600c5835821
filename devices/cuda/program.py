"""Programs on a CUDA device: kernels bound to arrays, and compiled before the first item comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...graph.ir import Graph, Node
from ...graph.tensor import Array, TensorSpec
from .. import program as programs
from ..constants import Batch
from ..device import scratch_name
from ..memory import View
from ..program import BoundProgram, Step
from .arrays import CupyArrays
from .driver import CuPy
from .memory import ALIGNMENT, CudaArena

Steps = list[tuple[Node, Step]]
Launch = Callable[[Step], object]
"""How a step gets onto the current stream: by calling it, unless a test says otherwise."""


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """A subgraph bound to views.

    Attributes
    ----------
    graph : Graph
    run : BoundProgram
        Queues the kernels on the current stream.
    measures : bool
        Whether the end of each node is marked on the stream.
    held : list of Batch
        The constants it uses.
    """

    graph: Graph
    run: BoundProgram
    measures: bool
    held: list[Batch]


def bind(
    cupy: CuPy,
    graph: Graph,
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    launch: Launch | None,
) -> Steps:
    """Return a step for each node that has work to do."""
    steps = programs.bind_steps(CupyArrays(cupy), "cuda", graph, views, constants)
    if launch is None:
        return steps
    return [(node, partial(launch, step)) for node, step in steps]


def marked(steps: Steps, mark: Callable[[str], Any]) -> Steps:
    """Return steps that call `mark` with their node's name once they are queued."""

    def queue(node: Node, step: Step) -> None:
        step()
        mark(node.name)

    return [(node, partial(queue, node, step)) for node, step in steps]


class Warmer:
    """Runs each kind of kernel once, on zeros of its own, when it is bound.

    CuPy compiles a kernel when it is first launched, which takes up to a second. Zeros are safe
    for whatever a kernel does with its inputs: as indices they are in range.
    """

    def __init__(self, cupy: CuPy, device: str, launch: Launch | None) -> None:
        self._cupy = cupy
        self._device = device
        self._launch = launch
        self._warm: set[str] = set()

    def warm(
        self, graph: Graph, nodes: Sequence[Node], constants: Mapping[str, Array], stream: Any
    ) -> None:
        """Run the nodes that are unlike all before; raise KernelError naming one that fails."""
        for node in nodes:
            kind = f"{node.op} {graph.call(node).inputs} {node.attributes}"
            if kind not in self._warm:
                self._run(graph.extract([node], node.name), constants, stream)
                self._warm.add(kind)

    def _run(self, graph: Graph, constants: Mapping[str, Array], stream: Any) -> None:
        specs = _specs(graph)
        nbytes = sum(map(_room, specs.values()))
        arena = CudaArena(self._device, nbytes, self._cupy)
        self._cupy.cuda.runtime.memsetAsync(arena.buffer.ptr, 0, nbytes, stream.ptr)
        views, offset = {}, 0
        for name, spec in specs.items():
            views[name] = arena.view(offset, spec)
            offset += _room(spec)
        steps = bind(self._cupy, graph, views, constants, self._launch)
        BoundProgram(self._device, graph, steps, measure=False)()
        stream.synchronize()


def _specs(graph: Graph) -> dict[str, TensorSpec]:
    """Return the specs of a single node's tensors and scratch buffers, without its constants."""
    (node,) = graph.nodes
    specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
    scratch = programs.scratch(node, "cuda", graph.call(node), graph.output_specs(node))
    return specs | {scratch_name(node, index): spec for index, spec in enumerate(scratch)}


def _room(spec: TensorSpec) -> int:
    return -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
