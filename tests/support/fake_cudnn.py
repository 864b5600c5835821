"""cuDNN's graph API on a fake GPU: checks what it is given as the real one would, and computes.

An engine is a number here. Each asks for another workspace, and has notes on its results.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from ctypes import c_bool, c_float, c_int, c_int64, c_void_p
from functools import partial
from itertools import count
from typing import Any

import fake_cudnn_attention as attention
import numpy as np
from fake_gpu import FakeGpu
from numpy.lib.stride_tricks import sliding_window_view
from plait.devices.cuda.descriptors import DescriptorKind, Name, Type
from plait.graph.values.dtypes import dtype_of

SUCCESS, BAD_PARAM, NOT_SUPPORTED, EXECUTION_FAILED = 0, 2000, 3000, 5000
HANDLE = 99
WORKSPACE = 4096
DTYPES = {0: "float32", 2: "float16", 4: "int32", 9: "bfloat16", 11: "bool"}
IN_C = {
    Type.HANDLE: c_void_p,
    Type.DATA_TYPE: c_int,
    Type.BOOLEAN: c_bool,
    Type.INT64: c_int64,
    Type.FLOAT: c_float,
    Type.VOID_PTR: c_void_p,
    Type.CONVOLUTION_MODE: c_int,
    Type.HEUR_MODE: c_int,
    Type.NUMERICAL_NOTE: c_int,
    Type.POINTWISE_MODE: c_int,
    Type.BACKEND_DESCRIPTOR: c_void_p,
    Type.REDUCTION_OPERATOR_TYPE: c_int,
}
NEEDED = {
    DescriptorKind.TENSOR: {901, 902, 903, 906, 900},
    DescriptorKind.CONVOLUTION: {100, 101, 102, 103, 104, 105, 106},
    DescriptorKind.OPERATION_CONVOLUTION_FORWARD: {700, 701, 702, 703, 704, 705},
    DescriptorKind.POINTWISE: {0, 1},
    DescriptorKind.OPERATION_POINTWISE: {750, 751, 753},
    DescriptorKind.MATMUL: {1500},
    DescriptorKind.OPERATION_MATMUL: {1520, 1521, 1522, 1523},
    DescriptorKind.REDUCTION: {1600, 1601},
    DescriptorKind.OPERATION_REDUCTION: {1610, 1611, 1612},
    DescriptorKind.OPERATIONGRAPH: {800, 801},
    DescriptorKind.ENGINEHEUR: {200, 201},
    DescriptorKind.EXECUTION_PLAN: {400, 401},
    DescriptorKind.VARIANT_PACK: {1000, 1001, 1003},
}
"""The attributes without which a descriptor is not finalized."""
OPTIONAL = {
    DescriptorKind.TENSOR: {907, 908},
    DescriptorKind.POINTWISE: {9},
    DescriptorKind.OPERATION_POINTWISE: {752, 758},
}
"""Those that it may have besides."""
TENSOR_CORES, ROUNDED_INPUTS, RANDOM_ORDER = 0, 1, 4
ENGINES: dict[int, tuple[int, ...]] = {
    10: (ROUNDED_INPUTS,),
    11: (TENSOR_CORES,),
    12: (),
    13: (RANDOM_ORDER,),
    14: (),
}
"""The notes on the results of engines, by their numbers, in the order of the best guess."""
FALLBACKS: dict[int, tuple[int, ...]] = {20: ()}


class FakeDescriptor:
    """An object; `graph` and `engine` are set where heuristics give it."""

    def __init__(self, kind: DescriptorKind) -> None:
        self.kind = kind
        self.is_final = False
        self.attributes: dict[int, list[Any]] = {}
        self.graph: FakeDescriptor | None = None
        self.engine = 0


class FakeCudnn:
    """The functions of the library that plait calls, for one handle.

    Parameters
    ----------
    gpu : FakeGpu
    kernels : mapping of int to int, optional
        How many kernels an engine takes, one if left out: so many take longer.
    refused : container of int, optional
        Engines whose plans are refused.
    uncapturable : container of int, optional
        Engines that fail on a stream that is captured, as those do that have not run before.

    Attributes
    ----------
    calls : int
        How many computations were queued or captured.
    computed : list of (int, str)
        The engines that did, and the dtypes they were given.
    open, descriptors : int
        How many handles and descriptors there are.
    mistake : callable, optional
        What becomes of the results of attention, if anything.
    """

    def __init__(
        self,
        gpu: FakeGpu,
        kernels: Mapping[int, int] = {},
        refused: Container[int] = (),
        uncapturable: Container[int] = (),
    ) -> None:
        self.open = 0
        self._uncapturable = uncapturable
        self._loaded: set[int] = set()
        self.computed: list[tuple[int, str]] = []
        self.mistake: Callable[[Any], Any] = _nothing
        self.cudnnGetVersion = _version
        self._gpu, self._kernels, self._refused = gpu, kernels, refused
        self._stream = 0
        self._known: dict[int, FakeDescriptor] = {}
        self._numbers = count(1 << 40)

    @property
    def calls(self) -> int:
        return len(self.computed)

    @property
    def descriptors(self) -> int:
        return len(self._known)

    def cudnnCreate(self, handle: Any) -> int:  # noqa: N802
        self.open += 1
        handle._obj.value = HANDLE
        return SUCCESS

    def cudnnDestroy(self, handle: Any) -> int:  # noqa: N802
        assert handle.value == HANDLE
        self.open -= 1
        return SUCCESS

    def cudnnSetStream(self, handle: Any, stream: Any) -> int:  # noqa: N802
        self._stream = stream.value
        return SUCCESS if handle.value == HANDLE else BAD_PARAM

    def cudnnGetLastErrorString(self, message: Any, nbytes: Any) -> None:  # noqa: N802
        message.value = b"because the fake says so"[: nbytes.value - 1]

    def cudnnBackendCreateDescriptor(self, kind: Any, made: Any) -> int:  # noqa: N802
        number = next(self._numbers)
        self._known[number] = FakeDescriptor(DescriptorKind(kind.value))
        made._obj.value = number
        return SUCCESS

    def cudnnBackendDestroyDescriptor(self, descriptor: Any) -> int:  # noqa: N802
        del self._known[descriptor.value]
        return SUCCESS

    def cudnnBackendSetAttribute(  # noqa: N802
        self, descriptor: Any, name: Any, kind: Any, length: Any, elements: Any
    ) -> int:
        found = self._known[descriptor.value]
        assert not found.is_final
        assert elements._type_ is IN_C[Type(kind.value)]
        assert length.value == len(elements)
        values = list(elements)
        if kind.value == Type.HANDLE and values != [HANDLE]:
            return BAD_PARAM
        if kind.value == Type.BACKEND_DESCRIPTOR:
            values = [self._known[value] for value in values]
            if not all(value.is_final for value in values):
                return BAD_PARAM
        found.attributes[name.value] = values
        return SUCCESS

    def cudnnBackendFinalize(self, descriptor: Any) -> int:  # noqa: N802
        found = self._known[descriptor.value]
        assert not found.is_final
        if set(found.attributes) - OPTIONAL.get(found.kind, set()) != NEEDED[found.kind]:
            return BAD_PARAM
        if found.kind == DescriptorKind.ENGINEHEUR and not _is_supported(found):
            return NOT_SUPPORTED
        if found.kind == DescriptorKind.EXECUTION_PLAN and _engine(found) in self._refused:
            return NOT_SUPPORTED
        if found.kind == DescriptorKind.OPERATION_CONVOLUTION_FORWARD and not _fits(found):
            return BAD_PARAM
        found.is_final = True
        return SUCCESS

    def cudnnBackendGetAttribute(  # noqa: N802
        self, descriptor: Any, name: Any, kind: Any, most: Any, length: Any, elements: Any
    ) -> int:
        found = self._known[descriptor.value]
        assert found.is_final
        assert elements._type_ is IN_C[Type(kind.value)]
        assert most.value == len(elements)
        values = self._answer(found, Name(name.value), elements)
        length._obj.value = len(values)
        elements[: len(values)] = values
        return SUCCESS

    def _answer(self, found: FakeDescriptor, name: Name, elements: Any) -> list[int]:
        if name == Name.EXECUTION_PLAN_WORKSPACE_SIZE:
            return [WORKSPACE]
        if name == Name.ENGINE_NUMERICAL_NOTE:
            return list({**ENGINES, **FALLBACKS}[found.engine])
        if name == Name.ENGINECFG_ENGINE:
            engines = [found.engine]
        else:
            assert name == Name.ENGINEHEUR_RESULTS
            engines = list(ENGINES if found.attributes[200] == [3] else FALLBACKS)
        given = list(elements)[: len(engines)]
        for number, engine in zip(given, engines, strict=True):
            made = self._known[number]
            made.engine, made.is_final = engine, True
            made.graph = found.graph or found.attributes[201][0]
        return given

    def cudnnBackendExecute(self, handle: Any, plan: Any, pack: Any) -> int:  # noqa: N802
        assert handle.value == HANDLE
        made, places = self._known[plan.value], self._known[pack.value].attributes
        assert made.is_final
        assert self._known[pack.value].is_final
        configuration = made.attributes[Name.EXECUTION_PLAN_ENGINE_CONFIG][0]
        operations = configuration.graph.attributes[Name.OPERATIONGRAPH_OPS]
        is_loaded = plan.value in self._loaded and configuration.engine not in self._uncapturable
        if self._gpu.is_capturing(self._stream) and not is_loaded:
            return EXECUTION_FAILED
        self._loaded.add(plan.value)
        at = dict(zip(places[1000], places[1001], strict=True))
        (workspace,) = places[Name.VARIANT_PACK_WORKSPACE]
        if len(operations) == 1:
            self.computed.append((configuration.engine, _dtype(operations[0], "X").name))
            run = partial(self._run, operations[0], at, workspace)
        else:
            first = operations[0].attributes[Name.OPERATION_MATMUL_ADESC][0].attributes
            self.computed.append((configuration.engine, DTYPES[first[901][0]]))
            values = attention.values_of(operations, at)  # they are read now, tensors later
            run = partial(self._attend, operations, at, values, workspace)
        for _ in range(self._kernels.get(configuration.engine, 1)):
            self._gpu.launch(self._stream, partial(self._run_loaded, plan.value, run))
        return SUCCESS

    def _run_loaded(self, plan: int, run: Callable[[], None]) -> None:
        assert plan in self._known, "the plan was destroyed, and its kernels with it"
        run()

    def _run(self, operation: FakeDescriptor, at: dict[int, int], workspace: int) -> None:
        self._gpu.cells(workspace, WORKSPACE).fill(0x3C)  # whatever else lies there is lost
        x, w, y = (self._tensor(operation, name, at) for name in "XWY")
        window = operation.attributes[Name.OPERATION_CONVOLUTION_FORWARD_CONV_DESC][0].attributes
        y[...] = convolved(
            x.astype(np.float32),
            w.astype(np.float32),
            list(zip(window[105], window[104], strict=True)),
            window[103],
            window[102],
        )

    def _attend(
        self, operations: list[Any], at: dict[int, int], values: dict[int, float], workspace: int
    ) -> None:
        self._gpu.cells(workspace, WORKSPACE).fill(0x3C)
        attention.compute(operations, values, partial(self._in_memory, at), self.mistake)

    def _tensor(self, operation: FakeDescriptor, name: str, at: dict[int, int]) -> Any:
        return self._in_memory(at, _tensor_of(operation, name))

    def _in_memory(self, at: dict[int, int], tensor: dict[int, list[Any]]) -> Any:
        dtype = dtype_of(DTYPES[tensor[Name.TENSOR_DATA_TYPE][0]])
        (number,) = tensor[Name.TENSOR_UNIQUE_ID]
        assert at[number] % tensor[Name.TENSOR_BYTE_ALIGNMENT][0] == 0
        cells, offset = self._gpu.memory(at[number])
        strides = [step * dtype.itemsize for step in tensor[Name.TENSOR_STRIDES]]
        return np.ndarray(tensor[Name.TENSOR_DIMENSIONS], dtype, cells, offset, strides)


def convolved(x: Any, w: Any, pads: Any, strides: Any, dilations: Any) -> Any:
    """Return the sums of weighted windows, group by group."""
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    reach = [(size - 1) * step + 1 for size, step in zip(w.shape[2:], dilations, strict=True)]
    axes = tuple(range(2, x.ndim))
    windows = sliding_window_view(x, reach, axes)
    moved = tuple(slice(None, None, step) for step in strides)
    spread = tuple(slice(None, None, step) for step in dilations)
    windows = windows[(slice(None), slice(None), *moved, *spread)]
    groups = x.shape[1] // w.shape[1]
    inner = tuple(range(-len(axes), 0))
    parts = [
        np.tensordot(part, weights, axes=((1, *inner), (1, *axes)))
        for part, weights in zip(
            np.split(windows, groups, axis=1), np.split(w, groups), strict=True
        )
    ]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def _nothing(y: Any) -> Any:
    return y


def _version() -> int:
    return 91900


def _engine(plan: FakeDescriptor) -> int:
    return int(plan.attributes[Name.EXECUTION_PLAN_ENGINE_CONFIG][0].engine)


def _tensor_of(operation: FakeDescriptor, name: str) -> dict[int, list[Any]]:
    number = Name[f"OPERATION_CONVOLUTION_FORWARD_{name}"]
    attributes: dict[int, list[Any]] = operation.attributes[number][0].attributes
    return attributes


def _dtype(operation: FakeDescriptor, name: str) -> np.dtype[Any]:
    return dtype_of(DTYPES[_tensor_of(operation, name)[Name.TENSOR_DATA_TYPE][0]])


def _is_supported(heuristics: FakeDescriptor) -> bool:
    """Say whether there is an engine: for attention, or as much padding at both ends."""
    (graph,) = heuristics.attributes[Name.ENGINEHEUR_OPERATION_GRAPH]
    operations = graph.attributes[Name.OPERATIONGRAPH_OPS]
    if len(operations) > 1:
        return attention.is_supported(operations)
    (operation,) = operations
    (window,) = operation.attributes[Name.OPERATION_CONVOLUTION_FORWARD_CONV_DESC]
    return bool(window.attributes[104] == window.attributes[105])


def _fits(operation: FakeDescriptor) -> bool:
    """Say whether shapes and types fit together."""
    x, w, y = (_tensor_of(operation, name)[Name.TENSOR_DIMENSIONS] for name in "XWY")
    window = operation.attributes[Name.OPERATION_CONVOLUTION_FORWARD_CONV_DESC][0].attributes
    if not len(x) == len(w) == len(y) == window[Name.CONVOLUTION_SPATIAL_DIMS][0] + 2:
        return False
    if window[Name.CONVOLUTION_COMP_TYPE] != [0] or window[Name.CONVOLUTION_CONV_MODE] != [1]:
        return False
    if len({_dtype(operation, name) for name in "XWY"}) > 1 or x[1] % w[1] or w[0] % (x[1] // w[1]):
        return False
    cells = [
        (size + begin + end - (kernel - 1) * dilation - 1) // stride + 1
        for size, kernel, begin, end, stride, dilation in zip(
            x[2:], w[2:], window[105], window[104], window[103], window[102], strict=True
        )
    ]
    return list(y) == [x[0], w[0], *cells]
