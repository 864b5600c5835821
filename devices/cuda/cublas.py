"""cuBLAS, through its library cublasLt.

CuPy's interface cannot be captured in CUDA graphs, and allocates. Here the plan owns the workspace,
and queueing a product allocates nothing.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Container
from ctypes import (
    byref,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, NamedTuple

from ...graph.values.recent import RecentItems
from ..errors import DeviceError
from .libraries import RefusedError, load_library
from .products import ALIGNMENT, Product

SUCCESS = 0
STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}
REFUSED = frozenset({7, 8, 15})
"""Statuses of refused products: nothing was queued, and the library still works."""
AS_STORED, TRANSPOSED = 0, 1
"""cublasOperation_t."""
TF32 = 77
"""CUBLAS_COMPUTE_32F_FAST_TF32: factors of float32 are rounded to 10 bits, sums are not."""

TRANSPOSE_LEFT, TRANSPOSE_RIGHT, EPILOGUE, BIAS = 3, 4, 7, 8
"""cublasLtMatmulDescAttributes_t."""
ADD_BIAS, ADD_BIAS_AND_RELU = 4, 6
"""cublasLtEpilogue_t."""
COUNT, STRIDE = 5, 6
"""cublasLtMatrixLayoutAttribute_t, for stacks."""
MOST_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
"""cublasLtMatmulPreferenceAttributes_t."""
EXACT_SUMS = 2
"""CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums of halves stay float32 in the workspace."""


class Arithmetic(NamedTuple):
    factors: int
    sums: int
    scales: int
    """cudaDataType_t of the factors, of the result, and of alpha and beta."""
    compute: int
    """cublasComputeType_t."""
    scale: Any
    """Dtype of alpha and beta."""


ARITHMETIC = {
    "float16": Arithmetic(2, 2, 0, 68, c_float),
    "bfloat16": Arithmetic(14, 14, 0, 68, c_float),
    "float32": Arithmetic(0, 0, 0, 68, c_float),
    "float64": Arithmetic(1, 1, 1, 70, c_double),
    "int8": Arithmetic(3, 10, 10, 72, c_int32),
}


class Places(NamedTuple):
    """Addresses on the GPU of the factors, the result, the workspace, and the bias if any."""

    a: int
    b: int
    y: int
    workspace: int
    bias: int = 0


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm with its properties."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def find_cublas() -> Any:
    return load_library("cublasLt")


class Cublas:
    """A handle of cuBLAS on the current device; threads may share it."""

    def __init__(self, library: Any, *, tf32: bool = False) -> None:
        self._library = library
        self._tf32 = tf32
        self._handle = c_void_p()
        self._algorithms: RecentItems[Product, Any] = RecentItems()
        _check(library.cublasLtCreate(byref(self._handle)), "cublasLtCreate")

    def close(self) -> None:
        """Destroy the handle; all work that uses it must have ended."""
        self._library.cublasLtDestroy(self._handle)

    def bind(self, product: Product, places: Places, stream: int) -> Callable[[], None]:
        """Return a step that queues `product` at `places` on `stream`.

        Raises RefusedError if cuBLAS does not support it in its workspace.
        """
        by = ARITHMETIC[product.dtype]
        operation, right, left, result = self._describe(product, places.bias)
        # A race only makes two threads find the same algorithm.
        algorithm = self._algorithms.get(product)
        if algorithm is None:
            algorithm = self._find_algorithm(product, operation, right, left, result)
            self._algorithms[product] = algorithm
        number = int if by.scale is c_int32 else float
        alpha, beta = (byref(by.scale(number(scale))) for scale in (product.alpha, product.beta))
        y = c_void_p(places.y), result.value
        given = (
            *(self._handle, operation.value, alpha),
            *(c_void_p(places.b), right.value, c_void_p(places.a), left.value, beta),
            *(*y, *y, byref(algorithm)),
            *(c_void_p(places.workspace), c_size_t(product.workspace_nbytes), c_void_p(stream)),
        )
        multiply = self._library.cublasLtMatmul

        def queue(_held: object = (operation, right, left, result)) -> None:
            _check(multiply(*given), "cublasLtMatmul", REFUSED)

        return queue

    def _describe(self, product: Product, bias: int) -> tuple[_Descriptor, ...]:
        by = ARITHMETIC[product.dtype]
        a, b, m, n, k = product.a, product.b, product.m, product.n, product.k
        compute = TF32 if self._tf32 and product.dtype == "float32" else by.compute
        operation = self._make("MatmulDesc", c_int(compute), c_int(by.scales))
        operation.set(TRANSPOSE_LEFT, c_int(TRANSPOSED if b.transposed else AS_STORED))
        operation.set(TRANSPOSE_RIGHT, c_int(TRANSPOSED if a.transposed else AS_STORED))
        if product.is_biased:
            epilogue = ADD_BIAS_AND_RELU if product.is_rectified else ADD_BIAS
            operation.set(EPILOGUE, c_int(epilogue))
            operation.set(BIAS, c_void_p(bias))
        sums, stride, row = by.sums, m * n, n
        if product.result is not None:
            sums, (_, stride, row) = ARITHMETIC[product.result.dtype].factors, product.result
        batch, right, left = product.batch, (n, k), (k, m)
        return (
            operation,
            self._describe_matrix(
                by.factors, right[:: -1 if b.transposed else 1], batch, b.stride, b.row
            ),
            self._describe_matrix(
                by.factors, left[:: -1 if a.transposed else 1], batch, a.stride, a.row
            ),
            self._describe_matrix(sums, (n, m), batch, stride, row),
        )

    def _describe_matrix(
        self, kind: int, shape: tuple[int, ...], batch: int, stride: int, row: int
    ) -> _Descriptor:
        length, count = shape
        lengths = c_uint64(length), c_uint64(count), c_int64(row or length)
        matrix = self._make("MatrixLayout", c_int(kind), *lengths)
        if batch > 1:
            matrix.set(COUNT, c_int32(batch))
            matrix.set(STRIDE, c_int64(stride))
        return matrix

    def _find_algorithm(
        self, product: Product, operation: _Descriptor, *matrices: _Descriptor
    ) -> Any:
        wanted = self._make("MatmulPreference")
        wanted.set(MOST_WORKSPACE, c_uint64(product.workspace_nbytes))
        wanted.set(REDUCTIONS, c_int(EXACT_SUMS))
        if product.alignment < ALIGNMENT:
            for attribute in ALIGNMENTS:
                wanted.set(attribute, c_uint32(product.alignment))
        found, count = HeuristicResult(), c_int()
        described = (each.value for each in (operation, *matrices, matrices[-1], wanted))
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, *described, c_int(1), byref(found), byref(count)
        )
        _check(status, "cublasLtMatmulAlgoGetHeuristic", REFUSED)
        if not count.value:
            raise RefusedError(f"cuBLAS has nothing that computes {product}")
        return found.algorithm

    def _make(self, kind: str, *given: Any) -> _Descriptor:
        return _Descriptor(self._library, kind, *given)


class _Descriptor:
    """A descriptor of cublasLt, destroyed with this object."""

    def __init__(self, library: Any, kind: str, *given: Any) -> None:
        self._set = getattr(library, f"cublasLt{kind}SetAttribute")
        self.value = c_void_p()
        create = getattr(library, f"cublasLt{kind}Create")
        _check(create(byref(self.value), *given), f"cublasLt{kind}Create")
        destroy = getattr(library, f"cublasLt{kind}Destroy")
        weakref.finalize(self, destroy, self.value).atexit = False

    def set(self, attribute: int, value: Any) -> None:
        nbytes = c_size_t(ctypes.sizeof(value))
        status = self._set(self.value, c_int(attribute), byref(value), nbytes)
        _check(status, f"setting attribute {attribute}")


def _check(status: int, what: str, refused: Container[int] = ()) -> None:
    if status != SUCCESS:
        kind = RefusedError if status in refused else DeviceError
        raise kind(
            f"{what} fails: {STATUS.get(status, f'status {status}')}",
            fix="report this, with the version of cuBLAS",
        )
