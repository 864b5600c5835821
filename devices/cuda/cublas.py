"""cuBLAS, by seven of its functions.

CuPy's own way to it refuses to be captured in CUDA graphs and allocates on the way. Here the
workspace is memory that the plan owns, and nothing is allocated after `Cublas` is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from ctypes import byref, c_double, c_float, c_int, c_int32, c_longlong, c_size_t, c_void_p
from typing import Any, NamedTuple

from ..errors import DeviceError
from .libraries import RefusedError, load_library
from .products import Product

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
"""Of a product in itself: nothing was queued, and the library goes on working."""
EXACT_SUMS = 16
"""CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: partial sums of halves stay float32."""
AS_STORED, TRANSPOSED = 0, 1
"""cublasOperation_t."""
ANY_ALGORITHM = -1
"""CUBLAS_GEMM_DEFAULT."""
TF32 = 77
"""CUBLAS_COMPUTE_32F_FAST_TF32: float32 factors are rounded to 10 bits, sums are not."""


class Arithmetic(NamedTuple):
    """How products of a dtype are computed.

    Attributes
    ----------
    factors, sums : int
        cudaDataType_t of what is multiplied, and of the result.
    compute : int
        cublasComputeType_t.
    scale : ctypes type
        Of alpha and beta.
    """

    factors: int
    sums: int
    compute: int
    scale: Any


ARITHMETIC = {
    "float16": Arithmetic(2, 2, 68, c_float),
    "bfloat16": Arithmetic(14, 14, 68, c_float),
    "float32": Arithmetic(0, 0, 68, c_float),
    "float64": Arithmetic(1, 1, 70, c_double),
    "int8": Arithmetic(3, 10, 72, c_int32),
}


class Places(NamedTuple):
    """Addresses on the GPU: of the factors, of the result, and of the workspace."""

    a: int
    b: int
    y: int
    workspace: int


def find_cublas() -> Any:
    """Return the library, None where it is not installed."""
    return load_library("cublas")


class Cublas:
    """A handle of cuBLAS on the device that is current when it is made.

    Parameters
    ----------
    library : object
        Has cuBLAS's functions.
    tf32 : bool
        Multiply float32 with tensor cores, which round the factors to 10 bits.
    """

    def __init__(self, library: Any, *, tf32: bool = False) -> None:
        self._library = library
        self._tf32 = tf32
        self._lock = threading.Lock()  # a handle has one stream and one workspace at a time
        self._handle = c_void_p()
        _check(library.cublasCreate_v2(byref(self._handle)), "cublasCreate")
        _check(library.cublasSetMathMode(self._handle, c_int(EXACT_SUMS)), "cublasSetMathMode")

    def close(self) -> None:
        """Give the handle back, once all that used it has ended."""
        self._library.cublasDestroy_v2(self._handle)

    def bind(self, product: Product, places: Places, stream: int) -> Callable[[], None]:
        """Return a step that queues a product on a stream."""
        library, handle, lock = self._library, self._handle, self._lock
        workspace, nbytes = c_void_p(places.workspace), c_size_t(product.workspace_nbytes)
        on, arguments = c_void_p(stream), self._arguments(product, places)
        is_stack = product.batch > 1
        multiply = library.cublasGemmStridedBatchedEx if is_stack else library.cublasGemmEx

        def queue() -> None:
            with lock:
                _check(library.cublasSetStream_v2(handle, on), "cublasSetStream")
                # Setting a stream takes the workspace away (cuBLAS, cublasSetStream).
                _check(library.cublasSetWorkspace_v2(handle, workspace, nbytes), "its workspace")
                _check(multiply(handle, *arguments), "cublasGemm", REFUSED)

        return queue

    def _arguments(self, product: Product, places: Places) -> tuple[Any, ...]:
        """Return what cuBLAS is given. Its matrices lie column by column: yᵀ = bᵀ · aᵀ."""
        by = ARITHMETIC[product.dtype]
        a, b, m, n, k = product.a, product.b, product.m, product.n, product.k
        is_stack = product.batch > 1
        compute = TF32 if self._tf32 and product.dtype == "float32" else by.compute
        number = int if by.scale is c_int32 else float
        alpha, beta = (byref(by.scale(number(scale))) for scale in (product.alpha, product.beta))
        matrices = (
            (places.b, by.factors, k if b.transposed else n, b.stride),
            (places.a, by.factors, m if a.transposed else k, a.stride),
            (places.y, by.sums, n, m * n),
        )
        right, left, result = (_matrix(*matrix, is_stack) for matrix in matrices)
        return (
            *(c_int(TRANSPOSED if factor.transposed else AS_STORED) for factor in (b, a)),
            *(c_int(length) for length in (n, m, k)),
            alpha,
            *right,
            *left,
            beta,
            *result,
            *((c_int(product.batch),) if is_stack else ()),
            c_int(compute),
            c_int(ANY_ALGORITHM),
        )


def _matrix(address: int, kind: int, row: int, stride: int, is_stack: bool) -> tuple[Any, ...]:
    step = (c_longlong(stride),) if is_stack else ()
    return (c_void_p(address), c_int(kind), c_int(row), *step)


def _check(status: int, what: str, refused: Container[int] = ()) -> None:
    if status != SUCCESS:
        kind = RefusedError if status in refused else DeviceError
        raise kind(
            f"{what} fails: {STATUS.get(status, f'status {status}')}",
            fix="report this, with the version of cuBLAS",
        )
