"""y += a·b, in the BLAS that numpy brings along: `numpy.matmul` can only overwrite its output.

A product that is added to what is there needs no pass of its own for the addition. Measured on
float32 with one thread: (200, 32)·(32, 192) with a bias takes 29.3 µs as product and addition, 25.7
as a copy of the bias and a product that is added to it.

The functions are those that numpy's own wheels export. Where there are none of that name, or they
do not compute what they should, there is no such product, and callers go by `numpy.matmul`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...graph.tensor import Array
from .registry import ArrayModule
from .steps import Step

_NAMES = ("scipy_cblas_{}gemm64_", "cblas_{}gemm64_", "scipy_cblas_{}gemm")
"""OpenBLAS as numpy builds it; by convention the suffix says that integers have 64 bits."""

_TYPES = {np.dtype(np.float32): ("s", ctypes.c_float), np.dtype(np.float64): ("d", ctypes.c_double)}

_ROW_MAJOR, _AS_IT_IS = 101, 111
"""CBLAS's codes."""

_Product = Callable[[Array, Array, Array], Step]


def accumulate(xp: ArrayModule, a: Array, b: Array, y: Array) -> Step | None:
    """Return the step y += a·b for matrices; None where BLAS cannot do it on this machine.

    The rows of each matrix are contiguous or further apart. No operand may overlap y.
    """
    if xp is not np or y.dtype not in _TYPES or not a.dtype == b.dtype == y.dtype:
        return None
    product = _product(y.dtype)
    if product is None or not all(map(_has_rows, (a, b, y))):
        return None
    return product(a, b, y)


def _has_rows(matrix: Array) -> bool:
    rows, columns = matrix.shape
    apart, step = matrix.strides
    size = matrix.itemsize
    fits = step == size and apart % size == 0 and apart >= columns * size
    return bool(rows and columns and fits)


@lru_cache
def _product(dtype: np.dtype[Any]) -> _Product | None:
    """Return what binds a product of this dtype, if there is one and it is right."""
    letter, number = _TYPES[dtype]
    found = _find(letter)
    if found is None:
        return None
    product = partial(_bind, *found, number)
    a, b, y = np.ones((2, 3), dtype), np.ones((3, 4), dtype), np.ones((2, 4), dtype)
    product(a, b, y)()
    return product if np.array_equal(y, np.full((2, 4), 4, dtype)) else None


def _find(letter: str) -> tuple[Any, Any] | None:
    """Return the function and its type of integers, among all that numpy has loaded."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        function = getattr(library, name.format(letter), None)
        if function is not None:
            function.restype = None
            return function, ctypes.c_int64 if name.endswith("64_") else ctypes.c_int
    return None


def _bind(function: Any, integer: Any, number: Any, a: Array, b: Array, y: Array) -> Step:
    (rows, depth), columns = a.shape, b.shape[1]
    sizes = [integer(size) for size in (rows, columns, depth)]
    (at_a, by_a), (at_b, by_b), (at_y, by_y) = (
        (ctypes.c_void_p(x.ctypes.data), integer(x.strides[0] // x.itemsize)) for x in (a, b, y)
    )
    one = number(1)
    codes = (ctypes.c_int(_ROW_MAJOR), ctypes.c_int(_AS_IT_IS), ctypes.c_int(_AS_IT_IS))
    arguments = (*codes, *sizes, one, at_a, by_a, at_b, by_b, one, at_y, by_y)
    return partial(_run, function, arguments, (a, b, y))


def _run(function: Any, arguments: tuple[Any, ...], held: tuple[Array, ...]) -> None:
    """Call with addresses; the arrays are there to stay alive."""
    function(*arguments)
