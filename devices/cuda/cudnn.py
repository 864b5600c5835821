"""cuDNN, by ten functions of its graph API.

Operations on tensors make a graph; heuristics name engines for it, those they think fastest
first; an engine makes a plan, which is executed on addresses. All of these are descriptors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, byref, c_size_t, c_void_p
from functools import cached_property
from typing import Any, NamedTuple

from .cudnn_graphs import Computable, Operations, operations_of
from .descriptors import Descriptor, DescriptorKind, Name, Type, check
from .libraries import RefusedError, load_library

VERSIONS = (9,)
"""Major versions of cuDNN that have these functions."""

HEURISTICS = (3, 2)
"""cudnnBackendHeurMode_t: the best guess; where that finds nothing, what is slow but there."""

TENSOR_CORES, ROUNDED_INPUTS, ROUNDED_SUMS, FFT, RANDOM_ORDER, WINOGRAD = range(6)
"""cudnnBackendNumericalNote_t: what is to be known of an engine's results."""
UNWANTED = frozenset({ROUNDED_INPUTS, ROUNDED_SUMS, FFT, RANDOM_ORDER, WINOGRAD})
"""Results are sums of products, in float32, and the same again. Tensor cores round float32 to 10
bits, which is no rounding of inputs by this."""
MOST_NOTES, MOST_ENGINES = 16, 32


class Choices(NamedTuple):
    """The operations of a computation, and the engines there are for them."""

    operations: Operations
    engines: list[Descriptor]


def find_cudnn() -> Any:
    """Return the library, None where it is not installed."""
    return load_library("cudnn", VERSIONS)


def version_of(library: Any) -> str:
    """Return its version, such as ``"9.19.0"``."""
    library.cudnnGetVersion.restype = c_size_t
    number = int(library.cudnnGetVersion())
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


class Cudnn:
    """A handle of cuDNN on the device that is current; it is made when first used, in 0.3 s.

    Parameters
    ----------
    library : object
        Has cuDNN's functions.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._lock = threading.RLock()  # a handle has one stream at a time
        self._choices: dict[Computable, Choices] = {}
        self._plans: dict[tuple[Computable, int], Descriptor] = {}

    def close(self) -> None:
        """Give the handle back, once all that used it has ended."""
        with self._lock:
            self._plans.clear()
            self._choices.clear()
            if "_handle" in vars(self):
                self._library.cudnnDestroy(self._handle)
                del self._handle

    def count(self, work: Computable) -> int:
        """Return how many engines there are to choose from."""
        with self._lock:
            return len(self._choices_for(work).engines)

    def bind(
        self, work: Computable, engine: int, tensors: Sequence[int], workspace: int, stream: int
    ) -> Callable[[], None]:
        """Return a step that queues a computation on a stream.

        Parameters
        ----------
        work : StaticConvolution or StaticAttention
        engine : int
        tensors : sequence of int
            Addresses of its inputs and its output.
        workspace, stream : int
            Addresses of what has `work.workspace_nbytes`, and of the stream.

        Raises
        ------
        RefusedError
            If there is no such engine, or it takes a larger workspace.
        """
        library, lock, on = self._library, self._lock, c_void_p(stream)
        with lock:
            handle, plan = self._handle, self._plan(work, engine)
            _, numbers, values = self._choices_for(work).operations
            places = map(addressof, values.values())
            pack = self._new(DescriptorKind.VARIANT_PACK)
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

    def _plan(self, work: Computable, engine: int) -> Descriptor:
        """Return what executes a computation; it loads kernels, and is kept."""
        if (work, engine) not in self._plans:
            engines = self._choices_for(work).engines
            if engine >= len(engines):
                raise RefusedError(f"cuDNN has {len(engines)} engines for {work}")
            plan = self._new(DescriptorKind.EXECUTION_PLAN)
            plan.set(Name.EXECUTION_PLAN_HANDLE, Type.HANDLE, self._handle)
            plan.set(
                Name.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, engines[engine]
            ).finalize()
            (nbytes,) = plan.get(Name.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, 1)
            if nbytes > work.workspace_nbytes:
                raise RefusedError(f"cuDNN needs {nbytes} bytes for {work}")
            self._plans[work, engine] = plan
        return self._plans[work, engine]

    def _choices_for(self, work: Computable) -> Choices:
        """Return the engines whose results are wanted, those that should be fastest first."""
        if work not in self._choices:
            unwanted = UNWANTED if work.on_tensor_cores else UNWANTED | {TENSOR_CORES}
            self._choices[work] = Choices(Operations([], [], {}), [])
            with suppress(RefusedError):  # such as windows padded at one end
                operations = operations_of(self._library, work)
                graph = self._graph(operations)
                guesses = (self._guess(graph, mode, unwanted) for mode in HEURISTICS)
                self._choices[work] = Choices(operations, next(filter(None, guesses), []))
        return self._choices[work]

    def _guess(self, graph: Descriptor, mode: int, unwanted: frozenset[int]) -> list[Descriptor]:
        heuristics = self._new(DescriptorKind.ENGINEHEUR)
        heuristics.set(Name.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, graph)
        heuristics.set(Name.ENGINEHEUR_MODE, Type.HEUR_MODE, mode).finalize()
        found = heuristics.get_descriptors(
            Name.ENGINEHEUR_RESULTS, DescriptorKind.ENGINECFG, MOST_ENGINES
        )
        return [each for each in found if unwanted.isdisjoint(_notes(each))]

    def _graph(self, operations: Operations) -> Descriptor:
        graph = self._new(DescriptorKind.OPERATIONGRAPH)
        graph.set(Name.OPERATIONGRAPH_HANDLE, Type.HANDLE, self._handle)
        made = operations.descriptors
        return graph.set(Name.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, *made).finalize()

    def _new(self, kind: DescriptorKind) -> Descriptor:
        return Descriptor(self._library, kind)


def _notes(configuration: Descriptor) -> list[int]:
    """Return what is to be known of the results of an engine that heuristics have configured."""
    (engine,) = configuration.get_descriptors(Name.ENGINECFG_ENGINE, DescriptorKind.ENGINE, 1)
    return engine.get(Name.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE, MOST_NOTES)
