"""CuPy with numpy's calling conventions, where CuPy's are narrower."""

from __future__ import annotations

from typing import Any

from ...graph.values.tensor import Array
from .driver import CuPy


class CupyArrays:
    """The array module of kernels on CUDA devices; other attributes are CuPy's."""

    def __init__(self, cupy: CuPy) -> None:
        self._cupy = cupy

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cupy, name)
        setattr(self, name, found)  # avoids later look-ups
        return found

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Return `a` · `b`, in `out` if given; CuPy's `out` is keyword-only."""
        return self._cupy.matmul(a, b, out=out)

    def vecdot(self, a: Array, b: Array, out: Array) -> Array:
        """Return Σ aᵢbᵢ of `a` and `b` along the last axis, real numbers, in `out`; CuPy lacks it.

        A batch of products of a row and a column in cuBLAS, without a temporary for all products.
        """
        self._cupy.matmul(a[..., None, :], b[..., None], out=out[..., None, None])
        return out
