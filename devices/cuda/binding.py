"""Parts of a subgraph bound to addresses and a stream, ready for queueing."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.values.tensor import Array
from .. import program as programs
from ..codegen.pieces import Launch, Transfer, list_traps
from ..function_steps import Step
from ..kernels.registry import run_in_order
from ..memory import View
from ..streams.program import Steps, Traps
from .cublas import Cublas, Places
from .cudnn import Cudnn
from .driver import CuPy, CupyArrays
from .modules import Arguments, Module, Modules
from .parts import Execute, Multiply, Part, Queued
from .shares import MakeStream

Launcher = Callable[[Step], object]
"""Launches a kernel of CuPy's on the current stream; tests replace it."""

WORD_NBYTES = 8
DEVICE_TO_DEVICE = 3
"""cudaMemcpyKind."""


class Bound(NamedTuple):
    """Steps, objects that must live as long, and traps of a bound subgraph."""

    steps: Steps
    held: list[Any]
    traps: Traps | None


class Libraries(NamedTuple):
    cupy: CuPy
    modules: Modules | None
    """None without generated kernels."""
    cublas: Cublas | None
    cudnn: Cudnn | None
    launcher: Launcher | None


class Binder:
    """Binds subgraphs on an open device; the device and its compute stream must be current."""

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
        """Bind each of `parts` of `graph` to a step that queues it on `stream`.

        Tensors are in `views` and `constants`. With `capture`, adjacent parts that can be captured
        share a step that launches a CUDA graph.
        """
        binding = _Binding(self._libraries, graph, views, constants, parts)
        steps: Steps = []
        # CuPy's kernels may allocate or wait for the host, which recordings forbid.
        for _, run in groupby(parts, lambda part: part.queued is None):
            group = list(run)
            if capture and sum(len(part.queued or ()) for part in group) > 1:
                recorded = self._recorder.record(partial(binding.steps, group))
                recorded.upload(stream)  # rather than with the first item
                steps.append((group[-1].node, partial(recorded.launch, stream)))
            else:
                nodes = (part.node for part in group)
                steps += zip(nodes, binding.steps(group, stream.ptr), strict=True)
        return Bound(steps, binding.held, binding.traps(self._device))


class Recorder:
    """Records work on its own stream as a CUDA graph, one at a time."""

    def __init__(self, make_stream: MakeStream) -> None:
        self._make_stream = make_stream
        self._lock = threading.Lock()
        self._stream: Any = None

    def record(self, bind: Callable[[int], Sequence[Step]]) -> Any:
        with self._lock:
            # On its own stream, or other threads' work would be recorded. It must belong to the
            # device's share: kernels stay on the share of the stream that recorded them.
            if self._stream is None:
                self._stream = self._make_stream()
            steps = bind(self._stream.ptr)
            self._stream.begin_capture()
            try:
                for step in steps:
                    step()
            except BaseException:
                with suppress(Exception):  # it can only report that the recording is useless
                    self._stream.end_capture()
                raise
            return self._stream.end_capture()


class _Binding:
    """One subgraph: its arrays by name, its kernels, and the objects that its steps need."""

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
        # Kept alive with the program: a recording has addresses, but no references.
        self._arrays = {name: view.array for name, view in views.items()} | dict(constants)
        self._loaded = _load_kernels(libraries.modules, parts)
        self._traps = list_traps(item for part in parts for item in part.queued or ())
        self._words = _allocate_words(self._cupy, len(self._traps))
        self.held: list[Any] = [self._loaded, self._arrays, self._words]

    def traps(self, device: str) -> Traps | None:
        if not self._traps:
            return None
        return Traps(device, self._traps, self._words, partial(self._words.fill, 0))

    def steps(self, parts: Sequence[Part], stream: int) -> list[Step]:
        return [
            self._bind_cupy(part.node)
            if part.queued is None
            else run_in_order([self._queue(item, stream) for item in part.queued])
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
        step = self._cudnn.bind(item.work, item.engine, tensors, workspace, stream)
        self.held.append(step)  # a recording has its kernels, but no reference to their plan
        return step

    def _bind_cupy(self, node: Node) -> Step:
        arrays = CupyArrays(self._cupy)
        step = programs.bind_node(arrays, "cuda", self._graph, node, self._views, self._constants)
        return step if self._launcher is None else partial(self._launcher, step)

    def _address(self, name: str) -> int:
        for index, trap in enumerate(self._traps):
            if trap.name == name:
                return int(self._words.ctypes.data) + index * WORD_NBYTES
        return int(self._arrays[name].data.ptr)


def _allocate_words(cupy: CuPy, count: int) -> Array:
    """Return the words of `count` traps, int64, in page-locked memory of `cupy`.

    Kernels write there as to their own memory, if slowly. So a run without errors costs the GPU
    nothing: the host, which reads the words after each run, has them already.
    """
    if not count:
        return np.zeros(0, np.int64)
    words = np.frombuffer(cupy.cuda.alloc_pinned_memory(count * WORD_NBYTES), np.int64, count)
    words.fill(0)
    return words


def _load_kernels(modules: Modules | None, parts: Sequence[Part]) -> dict[str, Module]:
    queued = [item for part in parts for item in part.queued or ()]
    kernels = [item.kernel for item in queued if isinstance(item, Launch)]
    assert modules is not None or not kernels
    return {} if modules is None else modules.load(kernels)
