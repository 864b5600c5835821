"""Trial runs of a few nodes on zeros, to load kernels or to time them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ...graph.core.ir import Graph
from ...graph.values.recent import RecentItems
from ...graph.values.tensor import Array, TensorSpec
from ..device import scratch_name
from ..errors import DeviceError, DeviceLostError, DeviceMemoryError, KernelError
from ..memory import View
from ..program import BoundProgram
from ..streams.failures import get_cause
from .binding import Binder, Bound
from .copies import DEVICE_TO_HOST, HOST_TO_DEVICE
from .driver import CuPy, device_error, get_code
from .libraries import RefusedError
from .lowering import Lowering
from .memory import ALIGNMENT, CudaArena
from .parts import Execute, Multiply, Part

CALLS, ROUNDS = 8, 5
"""Calls per measurement, and measurements: the fastest is the least disturbed."""


class Trials:
    """Lends memory for trials of nodes, on a stream without items."""

    def __init__(self, cupy: CuPy, device: str, binder: Binder, stream: Any) -> None:
        self._cupy = cupy
        self._device = device
        self._binder = binder
        self._stream = stream

    @contextmanager
    def of(
        self,
        graph: Graph,
        lowering: Lowering,
        constants: Mapping[str, Array],
        views: Mapping[str, View],
    ) -> Iterator[TrialRun]:
        """Lend the tensors and scratch of `graph` in `views` while these are unused, else others.

        `lowering` says which, except `constants`. Inputs are zeros, which are in range as indices.
        Raises DeviceMemoryError if there is too little memory for others.
        """
        specs, stream = _list_specs(graph, lowering), self._stream
        lent = {name: views[name] for name in specs.keys() & views.keys()}
        if len(lent) < len(specs) or not all(view.arena.is_unused for view in lent.values()):
            lent = self._allocate(specs)
        for view in map(lent.__getitem__, graph.inputs):
            place = view.array.data.ptr, 0, view.spec.nbytes
            self._cupy.cuda.runtime.memsetAsync(*place, stream.ptr)
        try:
            yield TrialRun(self._cupy, self._device, self._binder, graph, lent, constants, stream)
        finally:
            stream.synchronize()  # queued work uses the memory, even after an error

    def _allocate(self, specs: Mapping[str, TensorSpec]) -> dict[str, View]:
        sizes = [-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs.values()]
        try:
            arena = CudaArena(self._device, sum(sizes), self._cupy)
        except Exception as error:
            raise device_error(error, self._cupy, self._device) from error
        starts = accumulate(sizes, initial=0)
        return {name: arena.view(next(starts), spec) for name, spec in specs.items()}


@dataclass(frozen=True, slots=True)
class TrialRun:
    """A graph with memory for its tensors on a stream; runs and times implementations."""

    cupy: CuPy
    device: str
    binder: Binder
    graph: Graph
    views: Mapping[str, View]
    constants: Mapping[str, Array]
    stream: Any

    def write(self, tensor: str, array: Array) -> None:
        given = np.ascontiguousarray(array)
        where = self.views[tensor].array.data.ptr, given.ctypes.data, given.nbytes
        self.cupy.cuda.runtime.memcpyAsync(*where, HOST_TO_DEVICE, self.stream.ptr)
        self.stream.synchronize()

    def read(self, tensor: str) -> Array:
        view = self.views[tensor]
        found = np.empty(view.spec.static_shape, view.spec.dtype)
        where = found.ctypes.data, view.array.data.ptr, found.nbytes
        self.cupy.cuda.runtime.memcpyAsync(*where, DEVICE_TO_HOST, self.stream.ptr)
        self.stream.synchronize()
        return found

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Raise RefusedError for errors of CUDA and libraries that the device survives."""
        try:
            yield
        except Exception as error:
            cause, failure = get_cause(error), device_error(error, self.cupy, self.device)
            is_known = isinstance(cause, DeviceError) or get_code(cause, self.cupy) is not None
            if not is_known or isinstance(failure, DeviceLostError):
                raise
            raise RefusedError(failure.what) from error

    def run(self, parts: Sequence[Part]) -> None:
        """Queue `parts` once.

        Raises RefusedError if a library refuses its part; KernelError if another node fails; the
        error names it.
        """
        bound = self._bind(parts)  # kept while steps run: they have addresses in it
        try:
            BoundProgram(self.device, self.graph, bound.steps, measure=False)()
        except KernelError as error:
            if isinstance(error.__cause__, RefusedError):
                raise error.__cause__ from None
            raise

    def record(self, parts: Sequence[Part]) -> Bound:
        """Record `parts` as one CUDA graph, several times; loading cannot be recorded."""
        return self._bind([*parts] * CALLS, capture=True)

    def time(self, parts: Sequence[Part]) -> float:
        self.run(parts)
        bound = self.record(parts)
        ((_, launch),) = bound.steps
        events = [self.cupy.cuda.Event() for _ in range(2)]

        def spent() -> float:
            events[0].record(self.stream)
            launch()
            events[1].record(self.stream)
            events[1].synchronize()
            return float(self.cupy.cuda.get_elapsed_time(*events)) / CALLS

        launch()
        return min(spent() for _ in range(ROUNDS))

    def _bind(self, parts: Sequence[Part], *, capture: bool = False) -> Bound:
        asked = self.graph, parts, self.views, self.constants, self.stream
        return self.binder.bind(*asked, capture=capture)


def _list_specs(graph: Graph, lowering: Lowering) -> dict[str, TensorSpec]:
    specs = {name: spec for name, spec in graph.tensors.items() if name not in graph.constants}
    for node in graph.nodes:
        scratch = lowering.scratch(node, graph.call(node), graph.output_specs(node))
        specs |= {scratch_name(node, index): spec for index, spec in enumerate(scratch)}
    return specs


class Warmer:
    """Runs each kind of library kernel once when it is bound.

    CuPy compiles a kernel at its first launch, which takes up to a second, and libraries load
    theirs.
    """

    def __init__(self, lowering: Lowering, trials: Trials, cudnn: Any, *, records: bool) -> None:
        self._lowering = lowering
        self._trials = trials
        self._cudnn = cudnn
        self._records = records
        self._warm: RecentItems[Hashable, bool] = RecentItems()

    def warm(
        self,
        graph: Graph,
        parts: Sequence[Part],
        constants: Mapping[str, Array],
        views: Mapping[str, View],
    ) -> bool:
        """Run the new `parts` of `graph`, with tensors in `constants` and `views`.

        Return False if a library refuses a node, if its work cannot be recorded, or if there is too
        little memory to try it: the parts must be rebuilt, with a generated kernel. Raises
        KernelError naming a node that fails.
        """
        taken = True
        for part in parts:
            work = part.of_libraries
            if work is None:
                continue
            alone = graph.extract(part.nodes, part.node.name)
            try:
                kind = self._get_kind(graph, work)
                if kind in self._warm:
                    continue
                with self._trials.of(alone, self._lowering, constants, views) as trial:
                    trial.run([work])
                    if self._records and work.queued is not None:
                        with trial.refusals():
                            trial.record([work])
            except (RefusedError, DeviceMemoryError):
                taken = taken and work.queued is None
                for item in work.queued or ():
                    if isinstance(item, Multiply | Execute):
                        self._lowering.refuse(item)
            else:
                self._warm[kind] = True
        return taken

    def _get_kind(self, graph: Graph, work: Part) -> Hashable:
        """Return a key that is equal for `work` in `graph` with the same kernels, while loaded."""
        if work.queued is None:
            return f"{work.node.op} {graph.call(work.node).inputs} {work.node.attributes}"
        products = (item.product for item in work.queued if isinstance(item, Multiply))
        calls = (item[:2] for item in work.queued if isinstance(item, Execute))
        return *products, *(self._cudnn.refer(*call) for call in calls)
