"""Parts of a subgraph bound to addresses and a stream: what is left to do is to queue them."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ...graph.ir import Graph, Node
from ...graph.tensor import Array
from .. import program as programs
from ..codegen.pieces import Launch, Transfer, traps_in
from ..function_steps import Step
from ..kernels.steps import in_order
from ..memory import View
from ..streams.program import Steps
from ..streams.traps import Traps
from .arrays import CupyArrays
from .cublas import Cublas, Places
from .cudnn import Cudnn
from .driver import CuPy
from .modules import Arguments, Module, Modules
from .parts import Execute, Multiply, Part, Queued
from .shares import MakeStream

Launcher = Callable[[Step], object]
"""How a kernel of CuPy's gets onto the current stream: by calling it, unless a test says else."""

WORD_NBYTES = 8
DEVICE_TO_DEVICE = 3
"""cudaMemcpyKind."""


class Bound(NamedTuple):
    """What a subgraph was bound to: steps, what must live as long as they do, and traps."""

    steps: Steps
    held: list[Any]
    traps: Traps | None


class Libraries(NamedTuple):
    """What there is to compute with.

    Attributes
    ----------
    cupy : module
    modules : Modules or None
        None where no kernels are generated.
    cublas : Cublas or None
    cudnn : Cudnn or None
    launcher : callable, optional
    """

    cupy: CuPy
    modules: Modules | None
    cublas: Cublas | None
    cudnn: Cudnn | None
    launcher: Launcher | None


class Binder:
    """Binds subgraphs on an open device, which is current, as is its compute stream."""

    def __init__(self, device: str, libraries: Libraries, make_stream: MakeStream) -> None:
        self._device = device
        self._libraries = libraries
        self._recorder = Recorder(make_stream)

    def bind(
        self,
        graph: Graph,
        parts: Sequence[Part],
        views: Mapping[str, View],
        constants: Mapping[str, Array],
        stream: Any,
        *,
        capture: bool = False,
    ) -> Bound:
        """Return a step for each part of a subgraph.

        With `capture`, neighbouring parts that can be captured have one step together, which
        launches them as a CUDA graph.
        """
        binding = _Binding(self._libraries, graph, views, constants, parts)
        steps: Steps = []
        # What CuPy computes may allocate or wait for the host, which no recording may.
        for _, run in groupby(parts, lambda part: part.queued is None):
            group = list(run)
            if capture and sum(len(part.queued or ()) for part in group) > 1:
                recorded = self._recorder.record(partial(binding.steps, group))
                recorded.upload(stream)  # not when the first item comes
                steps.append((group[-1].node, partial(recorded.launch, stream)))
            else:
                nodes = (part.node for part in group)
                steps += zip(nodes, binding.steps(group, stream.ptr), strict=True)
        return Bound(steps, binding.held, binding.traps(self._device))


class Recorder:
    """Records what is queued on a stream of its own as a CUDA graph, one at a time."""

    def __init__(self, make_stream: MakeStream) -> None:
        self._make_stream = make_stream
        self._lock = threading.Lock()
        self._stream: Any = None

    def record(self, bind: Callable[[int], Sequence[Step]]) -> Any:
        """Return a graph of the steps that `bind` gives for a stream."""
        with self._lock:
            # A stream of its own: what others queue meanwhile would be recorded, too. Of the
            # device's share: kernels stay on that of the stream that they were recorded on.
            if self._stream is None:
                self._stream = self._make_stream()
            steps = bind(self._stream.ptr)
            self._stream.begin_capture()
            try:
                for step in steps:
                    step()
            except BaseException:
                with suppress(Exception):  # it can only say that the recording is of no use
                    self._stream.end_capture()
                raise
            return self._stream.end_capture()


class _Binding:
    """One subgraph: its arrays by name, its kernels, and what must live as long as its steps."""

    def __init__(
        self,
        libraries: Libraries,
        graph: Graph,
        views: Mapping[str, View],
        constants: Mapping[str, Array],
        parts: Sequence[Part],
    ) -> None:
        self._cupy, _, self._cublas, self._cudnn, self._launcher = libraries
        self._graph, self._views, self._constants = graph, views, constants
        # Kept alive with the program: a recording has addresses, and no hold on what is there.
        self._arrays = {name: view.array for name, view in views.items()} | dict(constants)
        self._loaded = _load(libraries.modules, parts)
        self._traps = traps_in(item for part in parts for item in part.queued or ())
        self._words = _words(self._cupy, len(self._traps))
        self.held: list[Any] = [self._loaded, self._arrays, self._words]

    def traps(self, device: str) -> Traps | None:
        """Return the traps of the generated kernels; None where none can fail."""
        if not self._traps:
            return None
        return Traps(device, self._traps, self._words, partial(self._words.fill, 0))

    def steps(self, parts: Sequence[Part], stream: int) -> list[Step]:
        """Return what queues parts on a stream."""
        return [
            self._cupys(part.node)
            if part.queued is None
            else in_order([self._queue(item, stream) for item in part.queued])
            for part in parts
        ]

    def _queue(self, item: Queued, stream: int) -> Step:
        if isinstance(item, Launch):
            return self._kernel(item, stream)
        if isinstance(item, Multiply):
            return self._product(item, stream)
        if isinstance(item, Execute):
            return self._execution(item, stream)
        return self._copy(item, stream)

    def _kernel(self, launch: Launch, stream: int) -> Step:
        arguments = Arguments([self._address(name) for name in launch.buffers])
        # The driver reads them when it launches, not now.
        self.held.append(arguments)
        kernel, queue = launch.kernel, self._cupy.cuda.driver.launchKernel
        grid, block = (kernel.groups, 1, 1), (kernel.threads, 1, 1)
        function = self._loaded[kernel.name].address(kernel)
        return partial(queue, function, *grid, *block, 0, stream, arguments.address, 0)

    def _copy(self, transfer: Transfer, stream: int) -> Step:
        source = self._address(transfer.source) + transfer.start
        target = self._address(transfer.target) + transfer.begin
        copy = self._cupy.cuda.runtime.memcpyAsync
        return partial(copy, target, source, transfer.nbytes, DEVICE_TO_DEVICE, stream)

    def _product(self, item: Multiply, stream: int) -> Step:
        assert self._cublas is not None
        names = (item.a, item.b, item.y, item.workspace, *([item.bias] if item.bias else []))
        addresses = map(self._address, names)
        places = Places(*map(operator.add, addresses, (*item.starts, 0, 0)))
        return self._cublas.bind(item.product, places, stream)

    def _execution(self, item: Execute, stream: int) -> Step:
        assert self._cudnn is not None
        tensors = [self._address(name) for name in item.tensors]
        workspace = self._address(item.workspace)
        return self._cudnn.bind(item.work, item.engine, tensors, workspace, stream)

    def _cupys(self, node: Node) -> Step:
        arrays = CupyArrays(self._cupy)
        step = programs.bind_node(arrays, "cuda", self._graph, node, self._views, self._constants)
        return step if self._launcher is None else partial(self._launcher, step)

    def _address(self, name: str) -> int:
        for index, trap in enumerate(self._traps):
            if trap.name == name:
                return int(self._words.ctypes.data) + index * WORD_NBYTES
        return int(self._arrays[name].data.ptr)


def _words(cupy: CuPy, count: int) -> Array:
    """Return the words of traps, (count,) int64, in page-locked memory.

    Kernels write there as to their own memory, if slowly. So a run in which nothing is wrong costs
    the GPU nothing: the host, which reads the words after each run, has them already.
    """
    if not count:
        return np.zeros(0, np.int64)
    words = np.frombuffer(cupy.cuda.alloc_pinned_memory(count * WORD_NBYTES), np.int64, count)
    words.fill(0)
    return words


def _load(modules: Modules | None, parts: Sequence[Part]) -> dict[str, Module]:
    """Load all generated kernels of a subgraph."""
    queued = [item for part in parts for item in part.queued or ()]
    kernels = [item.kernel for item in queued if isinstance(item, Launch)]
    assert modules is not None or not kernels
    return {} if modules is None else modules.load(kernels)
