"""cuDNN, through ten functions of its graph API.

Operations on tensors form a graph; heuristics propose engines for it, by estimated speed; an engine
becomes a plan, which is executed on addresses. All of these are descriptors.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, byref, c_void_p
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from .cudnn_graphs import Computable, Operations, describe_operations
from .descriptors import Descriptor, DescriptorKind, Name, Type, check
from .libraries import RefusedError, load_library

VERSIONS = (9,)
"""Major versions of cuDNN that have these functions."""

HEURISTICS = (3, 2)
"""cudnnBackendHeurMode_t: the best guess, then the fallback."""

TENSOR_CORES, ROUNDED_INPUTS, ROUNDED_SUMS, FFT, RANDOM_ORDER, WINOGRAD = range(6)
"""cudnnBackendNumericalNote_t: properties of an engine's results."""
UNWANTED = frozenset({ROUNDED_INPUTS, ROUNDED_SUMS, FFT, RANDOM_ORDER, WINOGRAD})
"""Results must be sums of products in float32, and reproducible. Tensor cores round float32 to 10
bits, which cuDNN does not count as rounding inputs."""
MOST_NOTES, MOST_ENGINES = 16, 32
KEPT_PLANS = 512
"""Limit of plans, which may have compiled kernels on the GPU; bound ones live as long as needed."""


class Choices(NamedTuple):
    """The operations of a computation, and their engines."""

    operations: Operations
    engines: list[Descriptor]


def find_cudnn() -> Any:
    return load_library("cudnn", VERSIONS)


class Cudnn:
    """A handle of cuDNN on the current device, made at first use in 0.3 s."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._lock = threading.RLock()  # a handle has one stream at a time
        self._find_choices = lru_cache(KEPT_PLANS)(self._list_choices)
        self._get_plan = lru_cache(KEPT_PLANS)(self._make_plan)

    def close(self) -> None:
        """Destroy the handle; all work that uses it must have ended."""
        with self._lock:
            self._get_plan.cache_clear()
            self._find_choices.cache_clear()
            if "_handle" in vars(self):
                self._library.cudnnDestroy(self._handle)
                del self._handle

    def count(self, work: Computable) -> int:
        with self._lock:
            return len(self._find_choices(work).engines)

    def refer(self, work: Computable, engine: int) -> weakref.ref[Descriptor]:
        """Return a weak reference to the plan of `work` for one `engine`.

        Raises RefusedError if cuDNN refuses it.
        """
        with self._lock:
            return weakref.ref(self._get_plan(work, engine))

    def bind(
        self, work: Computable, engine: int, tensors: Sequence[int], workspace: int, stream: int
    ) -> Callable[[], None]:
        """Return a step that queues `work` by `engine` on `stream`.

        `tensors` are the addresses of its inputs and its output, `workspace` that of
        `work.workspace_nbytes` bytes, `stream` that of the stream. Raises RefusedError if there is
        no such engine, or it needs a larger workspace.
        """
        library, lock, on = self._library, self._lock, c_void_p(stream)
        with lock:
            handle, plan = self._handle, self._get_plan(work, engine)
            _, numbers, values = self._find_choices(work).operations
            places = map(addressof, values.values())
            pack = self._create(DescriptorKind.VARIANT_PACK)
            pack.set(Name.VARIANT_PACK_UNIQUE_IDS, Type.INT64, *numbers, *values)
            pack.set(Name.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, *tensors, *places)
            pack.set(Name.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, workspace)
            pack.finalize()

        def queue() -> None:
            with lock:
                check(library, library.cudnnSetStream(handle, on), "cudnnSetStream")
                done = library.cudnnBackendExecute(handle, plan.value, pack.value)
                check(library, done, "cudnnBackendExecute")

        return queue

    @cached_property
    def _handle(self) -> c_void_p:
        handle = c_void_p()
        check(self._library, self._library.cudnnCreate(byref(handle)), "cudnnCreate")
        return handle

    def _make_plan(self, work: Computable, engine: int) -> Descriptor:
        engines = self._find_choices(work).engines
        if engine >= len(engines):
            raise RefusedError(f"cuDNN has {len(engines)} engines for {work}")
        plan = self._create(DescriptorKind.EXECUTION_PLAN)
        plan.set(Name.EXECUTION_PLAN_HANDLE, Type.HANDLE, self._handle)
        plan.set(
            Name.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, engines[engine]
        ).finalize()
        (nbytes,) = plan.get(Name.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, 1)
        if nbytes > work.workspace_nbytes:
            raise RefusedError(f"cuDNN needs {nbytes} bytes for {work}")
        return plan

    def _list_choices(self, work: Computable) -> Choices:
        unwanted = UNWANTED if work.on_tensor_cores else UNWANTED | {TENSOR_CORES}
        with suppress(RefusedError):  # such as windows padded at one end
            operations = describe_operations(self._library, work)
            graph = self._build_graph(operations)
            guesses = (self._guess(graph, mode, unwanted) for mode in HEURISTICS)
            return Choices(operations, next(filter(None, guesses), []))
        return Choices(Operations([], [], {}), [])

    def _guess(self, graph: Descriptor, mode: int, unwanted: frozenset[int]) -> list[Descriptor]:
        heuristics = self._create(DescriptorKind.ENGINEHEUR)
        heuristics.set(Name.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, graph)
        heuristics.set(Name.ENGINEHEUR_MODE, Type.HEUR_MODE, mode).finalize()
        found = heuristics.get_descriptors(
            Name.ENGINEHEUR_RESULTS, DescriptorKind.ENGINECFG, MOST_ENGINES
        )
        return [each for each in found if unwanted.isdisjoint(_read_notes(each))]

    def _build_graph(self, operations: Operations) -> Descriptor:
        graph = self._create(DescriptorKind.OPERATIONGRAPH)
        graph.set(Name.OPERATIONGRAPH_HANDLE, Type.HANDLE, self._handle)
        made = operations.descriptors
        return graph.set(Name.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, *made).finalize()

    def _create(self, kind: DescriptorKind) -> Descriptor:
        return Descriptor(self._library, kind)


def _read_notes(configuration: Descriptor) -> list[int]:
    """Return the properties of the results of an engine's `configuration`."""
    (engine,) = configuration.get_descriptors(Name.ENGINECFG_ENGINE, DescriptorKind.ENGINE, 1)
    return engine.get(Name.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE, MOST_NOTES)
