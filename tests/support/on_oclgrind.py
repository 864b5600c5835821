"""Runs the generated kernels of small cases on Oclgrind, which says on stderr what they do wrong.

A program of its own: Oclgrind takes its orders from the environment, and prints. Cases of ONNX's
own come pickled in the file that is named: who runs this has them, and making them takes seconds.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
from generated_cases import Feeds, all_cases, fused_pieces
from plait.devices.codegen.dialect import OPENCL, join_sources
from plait.devices.codegen.pieces import Launch
from plait.devices.codegen.registry import Kernel, scratch
from plait.devices.device import scratch_name
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import TensorSpec

MARK = "case: "
BROKEN = """
kernel void broken(global int* x) {
    x[0] = get_local_id(0);
    x[get_local_id(0)] = 1;
}
"""
"""Writes over the end of its buffer, and twice to one place: what must be found."""


def simulator() -> Any:
    """Return Oclgrind's device, None where it is not installed."""
    platforms = [platform for platform in cl.get_platforms() if platform.name == "Oclgrind"]
    return platforms[0].get_devices()[0] if platforms else None


WORD = TensorSpec("int64", (1,))


class Buffers:
    """A buffer for each tensor, of its size to the byte."""

    def __init__(self, context: Any, graph: Graph, feeds: Feeds) -> None:
        self._specs: dict[str, TensorSpec] = dict(graph.tensors)
        for node in graph.nodes:
            specs = scratch(node, graph.call(node), graph.output_specs(node))
            self._specs |= {scratch_name(node, i): spec for i, spec in enumerate(specs)}
        self._given = {**graph.constants, **feeds}
        self._context = context
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        nbytes = self._specs[name].nbytes if name in self._specs else WORD.nbytes  # of a trap
        if nbytes and name not in self._made:
            flags: Any = cl.mem_flags.READ_WRITE
            given = self._given.get(name)
            if given is None:
                self._made[name] = cl.Buffer(self._context, flags, nbytes)
            else:
                flags |= cl.mem_flags.COPY_HOST_PTR
                held = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
                self._made[name] = cl.Buffer(self._context, flags, hostbuf=held)
        return self._made.get(name)


def run(context: Any, queue: Any, graph: Graph, feeds: Feeds) -> None:
    queued = [item for piece in fused_pieces(graph) for item in piece.queued]
    kernels = [item.kernel for item in queued if isinstance(item, Launch)]
    entries = compiled(context, kernels)
    buffers = Buffers(context, graph, feeds)
    for item in queued:
        if isinstance(item, Launch):
            launch(queue, entries[item.kernel.name], item, buffers)
        elif item.nbytes:
            target, source = buffers[item.target], buffers[item.source]
            cl.enqueue_copy(
                queue,
                target,
                source,
                byte_count=item.nbytes,
                src_offset=item.start,
                dst_offset=item.begin,
            )
    queue.finish()


def compiled(context: Any, kernels: list[Kernel]) -> dict[str, Any]:
    """Return the kernels by name: not optimized where that takes what Oclgrind lacks."""
    source, options = join_sources(OPENCL, kernels), ["-cl-std=CL1.2", "-w"]
    names = {kernel.name for kernel in kernels}
    try:
        program = cl.Program(context, source).build(options)
        return {name: cl.Kernel(program, name) for name in names}
    except cl.LogicError:  # llvm.abs, for one
        program = cl.Program(context, source).build([*options, "-cl-opt-disable"])
        return {name: cl.Kernel(program, name) for name in names}


def launch(queue: Any, entry: Any, item: Launch, buffers: Buffers) -> None:
    for index, name in enumerate(item.buffers):
        entry.set_arg(index, buffers[name])
    size = (item.kernel.groups * item.kernel.threads,)
    cl.enqueue_nd_range_kernel(queue, entry, size, (item.kernel.threads,))


def run_broken(context: Any, queue: Any) -> None:
    entry = cl.Kernel(cl.Program(context, BROKEN).build(), "broken")
    one = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
    entry.set_arg(0, one)
    cl.enqueue_nd_range_kernel(queue, entry, (2,), (2,))
    queue.finish()


def main() -> None:
    context = cl.Context([simulator()])
    queue = cl.CommandQueue(context)
    print(f"{MARK}broken", file=sys.stderr, flush=True)
    run_broken(context, queue)
    from_onnx = pickle.loads(Path(sys.argv[1]).read_bytes())
    for name, (graph, feeds) in ({n: c() for n, c in all_cases().items()} | from_onnx).items():
        print(f"{MARK}{name}", file=sys.stderr, flush=True)
        run(context, queue, graph, feeds)


if __name__ == "__main__":
    main()
