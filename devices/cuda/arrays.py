"""CuPy as kernels see it: numpy's way of calling, where CuPy's is narrower."""

from __future__ import annotations

from typing import Any

from ...graph.tensor import Array
from .driver import CuPy


class CupyArrays:
    """The array module of kernels on CUDA devices; what is not defined here is CuPy's own."""

    def __init__(self, cupy: CuPy) -> None:
        self._cupy = cupy

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        setattr(self, name, found)  # this is not asked for twice
        return found

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return a · b; CuPy takes no `out` by position."""
        return self._cupy.matmul(a, b, out=out)

    def vecdot(self, a: Array, b: Array, out: Array) -> Array:
        """Return Σ aᵢbᵢ along the last axis, of real numbers; CuPy lacks it.

        As many products of a row and a column, which cuBLAS computes as one batch, without a
        temporary for all the products.
        """
        self._cupy.matmul(a[..., None, :], b[..., None], out=out[..., None, None])
        return out
