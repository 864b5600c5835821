"""cuDNN, by ten functions of its graph API.

An operation on tensors makes a graph; heuristics name engines for it, those they think fastest
first; an engine makes a plan, which is executed on addresses. All of these are descriptors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_size_t, c_void_p
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

from .convolutions import StaticConvolution
from .descriptors import Descriptor, DescriptorKind, Name, Type, check
from .libraries import RefusedError, load_library

VERSIONS = (9,)
"""Major versions of cuDNN that have these functions."""

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t."""
CROSS_CORRELATION = 1
"""cudnnConvolutionMode_t: windows are not mirrored."""
HEURISTICS = (3, 2)
"""cudnnBackendHeurMode_t: the best guess; where that finds nothing, what is slow but there."""

TENSOR_CORES, ROUNDED_INPUTS, ROUNDED_SUMS, FFT, RANDOM_ORDER, WINOGRAD = range(6)
"""cudnnBackendNumericalNote_t: what is to be known of an engine's results."""
UNWANTED = frozenset({ROUNDED_INPUTS, ROUNDED_SUMS, FFT, RANDOM_ORDER, WINOGRAD})
"""Results are sums of products, in float32, and the same again. Tensor cores round float32 to 10
bits, which is no rounding of inputs by this."""
MOST_NOTES, MOST_ENGINES = 16, 32

ALIGNMENT = 16
"""Of tensors, in bytes, as far as cuDNN is told."""
X, W, Y = 1, 2, 3
"""What tensors are called."""


class Addresses(NamedTuple):
    """Addresses on the GPU: of images, weights, the result, and the workspace."""

    x: int
    w: int
    y: int
    workspace: int


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
        self._engines: dict[StaticConvolution, list[Descriptor]] = {}
        self._plans: dict[tuple[StaticConvolution, int], Descriptor] = {}

    def close(self) -> None:
        """Give the handle back, once all that used it has ended."""
        with self._lock:
            self._plans.clear()
            self._engines.clear()
            if "_handle" in vars(self):
                self._library.cudnnDestroy(self._handle)
                del self._handle

    def count(self, convolution: StaticConvolution) -> int:
        """Return how many engines there are to choose from."""
        with self._lock:
            return len(self._engines_of(convolution))

    def bind(
        self, convolution: StaticConvolution, engine: int, places: Addresses, stream: int
    ) -> Callable[[], None]:
        """Return a step that queues a convolution on a stream.

        Raises
        ------
        RefusedError
            If there is no such engine, or it takes a larger workspace.
        """
        library, lock, on = self._library, self._lock, c_void_p(stream)
        with lock:
            handle, plan = self._handle, self._plan(convolution, engine)
            pack = self._new(DescriptorKind.VARIANT_PACK)
            pack.set(Name.VARIANT_PACK_UNIQUE_IDS, Type.INT64, X, W, Y)
            pack.set(Name.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, *places[:3])
            pack.set(Name.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, places.workspace)
            pack.finalize()

        def queue() -> None:
            with lock:
                check(library, library.cudnnSetStream(handle, on), "cudnnSetStream")
                done = library.cudnnBackendExecute(handle, plan.value, pack.value)
                check(library, done, "a convolution")

        return queue

    @cached_property
    def _handle(self) -> c_void_p:
        handle = c_void_p()
        check(self._library, self._library.cudnnCreate(byref(handle)), "cudnnCreate")
        return handle

    def _plan(self, convolution: StaticConvolution, engine: int) -> Descriptor:
        """Return what executes a convolution; it loads kernels, and is kept."""
        if (convolution, engine) not in self._plans:
            engines = self._engines_of(convolution)
            if engine >= len(engines):
                raise RefusedError(f"cuDNN has {len(engines)} engines for {convolution}")
            plan = self._new(DescriptorKind.EXECUTION_PLAN)
            plan.set(Name.EXECUTION_PLAN_HANDLE, Type.HANDLE, self._handle)
            plan.set(
                Name.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, engines[engine]
            ).finalize()
            (nbytes,) = plan.get(Name.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64, 1)
            if nbytes > convolution.workspace_nbytes:
                raise RefusedError(f"cuDNN needs {nbytes} bytes for {convolution}")
            self._plans[convolution, engine] = plan
        return self._plans[convolution, engine]

    def _engines_of(self, convolution: StaticConvolution) -> list[Descriptor]:
        """Return the engines whose results are wanted, those that should be fastest first."""
        if convolution not in self._engines:
            unwanted = UNWANTED if convolution.on_tensor_cores else UNWANTED | {TENSOR_CORES}
            self._engines[convolution] = []
            with suppress(RefusedError):  # such as windows padded at one end
                graph = self._graph(convolution)
                guesses = (self._guess(graph, mode, unwanted) for mode in HEURISTICS)
                self._engines[convolution] = next(filter(None, guesses), [])
        return self._engines[convolution]

    def _guess(self, graph: Descriptor, mode: int, unwanted: frozenset[int]) -> list[Descriptor]:
        heuristics = self._new(DescriptorKind.ENGINEHEUR)
        heuristics.set(Name.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, graph)
        heuristics.set(Name.ENGINEHEUR_MODE, Type.HEUR_MODE, mode).finalize()
        found = heuristics.get_descriptors(
            Name.ENGINEHEUR_RESULTS, DescriptorKind.ENGINECFG, MOST_ENGINES
        )
        return [each for each in found if unwanted.isdisjoint(_notes(each))]

    def _graph(self, convolution: StaticConvolution) -> Descriptor:
        """Return a graph of one operation."""
        window = self._new(DescriptorKind.CONVOLUTION)
        window.set(Name.CONVOLUTION_COMP_TYPE, Type.DATA_TYPE, DATA_TYPES["float32"])
        window.set(Name.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, CROSS_CORRELATION)
        window.set(Name.CONVOLUTION_SPATIAL_DIMS, Type.INT64, len(convolution.strides))
        window.set(Name.CONVOLUTION_PRE_PADDINGS, Type.INT64, *convolution.begins)
        window.set(Name.CONVOLUTION_POST_PADDINGS, Type.INT64, *convolution.ends)
        window.set(Name.CONVOLUTION_FILTER_STRIDES, Type.INT64, *convolution.strides)
        window.set(Name.CONVOLUTION_DILATIONS, Type.INT64, *convolution.dilations).finalize()
        operation = self._new(DescriptorKind.OPERATION_CONVOLUTION_FORWARD)
        for name, value in {
            Name.OPERATION_CONVOLUTION_FORWARD_CONV_DESC: window,
            Name.OPERATION_CONVOLUTION_FORWARD_X: self._tensor(X, convolution.dtype, convolution.x),
            Name.OPERATION_CONVOLUTION_FORWARD_W: self._tensor(W, convolution.dtype, convolution.w),
            Name.OPERATION_CONVOLUTION_FORWARD_Y: self._tensor(Y, convolution.dtype, convolution.y),
        }.items():
            operation.set(name, Type.BACKEND_DESCRIPTOR, value)
        operation.set(Name.OPERATION_CONVOLUTION_FORWARD_ALPHA, Type.FLOAT, 1.0)
        operation.set(Name.OPERATION_CONVOLUTION_FORWARD_BETA, Type.FLOAT, 0.0).finalize()
        graph = self._new(DescriptorKind.OPERATIONGRAPH)
        graph.set(Name.OPERATIONGRAPH_HANDLE, Type.HANDLE, self._handle)
        return graph.set(Name.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, operation).finalize()

    def _tensor(self, number: int, dtype: str, shape: Sequence[int]) -> Descriptor:
        strides = tuple(accumulate((1, *shape[:0:-1]), mul))[::-1]
        tensor = self._new(DescriptorKind.TENSOR)
        tensor.set(Name.TENSOR_DATA_TYPE, Type.DATA_TYPE, DATA_TYPES[dtype])
        tensor.set(Name.TENSOR_DIMENSIONS, Type.INT64, *shape)
        tensor.set(Name.TENSOR_STRIDES, Type.INT64, *strides)
        tensor.set(Name.TENSOR_UNIQUE_ID, Type.INT64, number)
        return tensor.set(Name.TENSOR_BYTE_ALIGNMENT, Type.INT64, ALIGNMENT).finalize()

    def _new(self, kind: DescriptorKind) -> Descriptor:
        return Descriptor(self._library, kind)


def _notes(configuration: Descriptor) -> list[int]:
    """Return what is to be known of the results of an engine that heuristics have configured."""
    (engine,) = configuration.get_descriptors(Name.ENGINECFG_ENGINE, DescriptorKind.ENGINE, 1)
    return engine.get(Name.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE, MOST_NOTES)
