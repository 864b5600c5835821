"""Programs on an OpenCL device: builds kernels and binds them to buffers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.ir import Graph
from ..codegen.dialect import OPENCL, join_sources
from ..codegen.fusing import fuse
from ..codegen.pieces import Launch, Piece, Queued, list_traps
from ..codegen.registry import Kernel
from ..errors import DeviceError
from ..function_steps import Step
from ..kernels.registry import run_in_order
from ..memory import View
from ..streams.failures import get_first_line
from ..streams.program import Steps, Traps
from .driver import ClDevice, PyOpenCl
from .memory import read_alignment
from .streams import PreparedKernel, Stream

OPTIONS = ("-cl-std=CL1.2", "-w")
WORD_NBYTES = 8
EXACT_DIVISION = "-cl-fp32-correctly-rounded-divide-sqrt"


class OpenClBinder:
    """Builds all kernels of a subgraph as one program, and binds them.

    `setup` is the queue of warm-up launches.
    """

    def __init__(self, cl: PyOpenCl, context: Any, device: ClDevice, setup: Any) -> None:
        self._cl = cl
        self._context = context
        self._setup = setup
        self._alignment = read_alignment(device)
        self._options = [*OPTIONS, *_list_division_options(cl, device)]
        self._lock = threading.Lock()
        self._programs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def bind(
        self,
        stream: Stream,
        device: str,
        graph: Graph,
        views: Mapping[str, View],
        constants: Mapping[str, Any],
    ) -> tuple[Steps, Traps | None]:
        """Return a step for each piece of `graph`, which queues it on `stream`, and the traps.

        `views` and `constants` have the tensors. Raises DeviceError if the compiler of `device`
        refuses a kernel.
        """
        parts = fuse(graph, views, epilogues=lambda node: True)
        pieces = [piece for piece in parts if isinstance(piece, Piece)]
        assert len(pieces) == len(parts), "a node that is not supported"
        launches = [q for piece in pieces for q in piece.queued if isinstance(q, Launch)]
        buffers = {name: view.array for name, view in views.items()} | dict(constants)
        program = None
        if launches:
            # Two slots are bound at once on two threads, and need the same program.
            with self._lock:
                program = self._find_or_make(graph, launches, views)
        found = list_traps(launches)
        words = _Words(self._cl, self._context, self._setup, self._alignment, len(found))
        buffers |= {trap.name: words.buffer(index) for index, trap in enumerate(found)}
        step = partial(self._step, stream, program, buffers)
        steps = [(piece.nodes[-1], run_in_order(map(step, piece.queued))) for piece in pieces]
        if not found:
            return steps, None
        node, last = steps[-1]
        # Queued after the last kernel on the same stream, so that the words are downloaded when the
        # program is complete.
        steps[-1] = node, run_in_order((last, partial(words.download, stream)))
        return steps, Traps(device, found, words.of_host, words.clear)

    def _step(
        self, stream: Stream, program: Any, buffers: Mapping[str, Any], queued: Queued
    ) -> Step:
        if isinstance(queued, Launch):
            arguments = [buffers[name] for name in queued.buffers]
            return partial(stream.launch, self._prepare(program, queued.kernel, arguments))
        source, target = buffers[queued.source], buffers[queued.target]
        if not queued.nbytes:
            return _skip
        return partial(
            stream.copy,
            target,
            source,
            byte_count=queued.nbytes,
            src_offset=queued.start,
            dst_offset=queued.begin,
        )

    def _find_or_make(
        self, graph: Graph, launches: Sequence[Launch], views: Mapping[str, View]
    ) -> Any:
        source = join_sources(OPENCL, (launch.kernel for launch in launches))
        program = self._programs.get(source)
        if program is None:
            program = self._build(source)
            self._warm_up(program, graph, launches, views)
            self._programs[source] = program
        return program

    def _build(self, source: str) -> Any:
        try:
            return self._cl.Program(self._context, source).build(options=self._options)
        except self._cl.RuntimeError as error:
            raise DeviceError(
                f"the device's compiler refuses generated kernels: {_find_complaint(error)}",
                fix="report this, with the name and version of the driver",
            ) from error

    def _prepare(self, program: Any, kernel: Kernel, buffers: list[Any]) -> PreparedKernel:
        made = self._cl.Kernel(program, kernel.name)
        for index, buffer in enumerate(buffers):
            made.set_arg(index, buffer)
        size = kernel.groups * kernel.threads
        return PreparedKernel(made, (size,), (kernel.threads,), (program, *buffers))

    def _warm_up(
        self, program: Any, graph: Graph, launches: Sequence[Launch], views: Mapping[str, View]
    ) -> None:
        """Run one group of each kernel: drivers translate and load kernels at first launch.

        They do that for each `program` anew. All arguments of `launches` are one zeroed buffer of
        the largest size in `graph` and `views`: kernels access nothing else, no matter which values
        they read.
        """
        # Once for each kernel, not for each launch.
        new = {launch.kernel.name: launch for launch in launches}
        sizes = {name: view.spec.nbytes for name, view in views.items()}
        sizes |= {name: array.nbytes for name, array in graph.constants.items()}
        sizes |= {trap.name: WORD_NBYTES for trap in list_traps(launches)}
        nbytes = max((sizes[n] for launch in new.values() for n in launch.buffers), default=0) or 1
        room = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, nbytes)
        self._cl.enqueue_fill_buffer(self._setup, room, b"\0", 0, nbytes)
        for launch in new.values():
            kernel, _, threads, _ = self._prepare(
                program, launch.kernel, [room] * len(launch.buffers)
            )
            self._cl.enqueue_nd_range_kernel(self._setup, kernel, threads, threads)
        self._setup.finish()


class _Words:
    """The words of a program's traps: each starts a sub-buffer, with a copy on the host.

    `of_host`, an int64 for each, holds the words as last downloaded.
    """

    def __init__(self, cl: PyOpenCl, context: Any, setup: Any, alignment: int, count: int) -> None:
        self._cl = cl
        self._setup = setup
        self._alignment = alignment
        # Spaced as sub-buffers require; the host reads the first word of each row.
        self._cells = np.zeros((count, alignment // WORD_NBYTES), np.int64)
        self.of_host = self._cells[:, 0]
        if count:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            self._buffer = cl.Buffer(context, flags, hostbuf=self._cells)

    def buffer(self, index: int) -> Any:
        flags = self._cl.mem_flags.READ_WRITE
        return self._buffer.get_sub_region(index * self._alignment, WORD_NBYTES, flags)

    def download(self, stream: Stream) -> None:
        stream.copy(self._cells, self._buffer, is_blocking=False)

    def clear(self) -> None:
        self._cells.fill(0)
        self._cl.enqueue_copy(self._setup, self._buffer, self._cells, is_blocking=True)


def _list_division_options(cl: PyOpenCl, device: ClDevice) -> tuple[str, ...]:
    """Return the option of `cl` for correctly rounded float32 division, if `device` has it."""
    exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    return (EXACT_DIVISION,) if device.single_fp_config & exact else ()


def _find_complaint(error: Exception) -> str:
    """Return the first line of a build log, in `error`, that reports an error."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "error:" in line), get_first_line(error))


def _skip() -> None:
    """Copy no bytes."""
