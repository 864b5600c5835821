"""Runs generated kernels on PoCL, straight from numpy arrays: no device, no plan."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from plait.devices.codegen.dialect import OPENCL, join_sources
from plait.devices.codegen.pieces import Launch, Piece, list_traps, make_piece
from plait.devices.codegen.registry import Kernel, scratch
from plait.devices.device import scratch_name
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec
from pocl import pocl_device

GUARD = 256
"""Bytes before and behind each buffer that no kernel may write."""


@cache
def context() -> Any:
    import pyopencl as cl

    return cl.Context([pocl_device()])


@cache
def compiled(source: str) -> Any:
    import pyopencl as cl

    # Compiling takes most of the time, and without optimization a third of it. What is always
    # true for some shapes would be warned of.
    return cl.Program(context(), source).build(["-cl-opt-disable", "-w"])


def run_generated(
    graph: Graph, feeds: Mapping[str, Array], traps: list[str] | None = None
) -> dict[str, Array]:
    """Return all tensors that the nodes of a static graph write, each node alone.

    What kernels report is added to `traps`; where it is left out, they must report nothing. All
    kernels of the graph are compiled as one program: put many nodes into one graph.
    """
    pieces = [make_piece(graph, node, {}) for node in graph.nodes]
    refused = [node for node, piece in zip(graph.nodes, pieces, strict=True) if piece is None]
    assert not refused, f"not generated: {refused}"
    return run_pieces(graph, [piece for piece in pieces if piece is not None], feeds, traps)


def run_pieces(
    graph: Graph,
    pieces: list[Piece],
    feeds: Mapping[str, Array],
    traps: list[str] | None = None,
) -> dict[str, Array]:
    """Return all tensors that the pieces write."""
    queued = [item for piece in pieces for item in piece.queued]
    kernels = [item.kernel for item in queued if isinstance(item, Launch)]
    program = compiled(join_sources(OPENCL, kernels)) if kernels else None
    may_fail = list_traps(queued)
    words = {trap.name: np.zeros(1, np.int64) for trap in may_fail}
    memory = _Memory(graph, {**graph.constants, **feeds, **words})
    for item in queued:
        if isinstance(item, Launch):
            _launch(program, item.kernel, [memory.buffer(name) for name in item.buffers])
        else:
            end = item.begin + item.nbytes
            source = memory.bytes(item.source)[item.start : item.start + item.nbytes]
            memory.bytes(item.target)[item.begin : end] = source
    left = ((trap.text, int(memory.array(trap.name)[0])) for trap in may_fail)
    found = [text.format(value) for text, value in left if value]
    assert traps is not None or not found, found
    if traps is not None:
        traps += found
    return {name: memory.array(name) for node in graph.nodes for name in node.outputs if name}


class _Memory:
    """Tensors by name, in guarded buffers that hold rubbish until they are written."""

    def __init__(self, graph: Graph, given: Mapping[str, Array]) -> None:
        self._graph = graph
        self._raw: dict[str, Array] = {}
        self._specs = {name: TensorSpec(each.dtype, each.shape) for name, each in given.items()}
        self._specs |= graph.tensors
        for node in graph.nodes:
            specs = scratch(node, graph.call(node), graph.output_specs(node))
            for index, spec in enumerate(specs):
                self._specs[scratch_name(node, index)] = spec
        for name, value in given.items():
            self.bytes(name)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def bytes(self, name: str) -> Array:
        if name not in self._raw:
            self._raw[name] = np.full(self._specs[name].nbytes + 2 * GUARD, 0xA5, np.uint8)
        return self._raw[name][GUARD : GUARD + self._specs[name].nbytes]

    def buffer(self, name: str) -> tuple[Array, int]:
        self.bytes(name)
        return self._raw[name], self._specs[name].nbytes

    def array(self, name: str) -> Array:
        spec, raw = self._specs[name], self._raw.get(name)
        if raw is None:
            return np.empty(spec.static_shape, spec.dtype)
        edges = np.concatenate([raw[:GUARD], raw[GUARD + spec.nbytes :]])
        assert (edges == 0xA5).all(), f"written beyond {name}"
        return self.bytes(name).view(spec.dtype).reshape(spec.static_shape)


def _launch(program: Any, kernel: Kernel, buffers: list[tuple[Array, int]]) -> None:
    import pyopencl as cl

    queue = cl.CommandQueue(context())
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    held = [cl.Buffer(context(), flags, hostbuf=raw) for raw, _ in buffers]
    entry = cl.Kernel(program, kernel.name)
    for index, (buffer, (_, nbytes)) in enumerate(zip(held, buffers, strict=True)):
        entry.set_arg(index, buffer.get_sub_region(GUARD, max(nbytes, 1)))
    size = (kernel.groups * kernel.threads,)
    cl.enqueue_nd_range_kernel(queue, entry, size, (kernel.threads,))
    for buffer, (raw, _) in zip(held, buffers, strict=True):
        cl.enqueue_map_buffer(queue, buffer, cl.map_flags.READ, 0, raw.shape, raw.dtype)
    queue.finish()
