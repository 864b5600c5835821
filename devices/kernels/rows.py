"""Sums and extrema over the last axes of numpy arrays, where numpy's own reductions are slow.

Measured on float32, one thread, numpy 2.4 (µs by ndarray.sum or max, then here):

    rows × length   sum          max
    100000 × 4      1673, 117    6984, 150    column by column
    6304 × 64       347, 75      2203, 306    einsum, reduceat
    1024 × 768      246, 87      314, 160     einsum, reduceat

Products with a vector of ones are faster still, until BLAS wakes its threads for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.tensor import Array
from .steps import Step

_SUMMED = 4096
"""Rows up to here are added one after the other in each SIMD lane; longer ones pairwise."""
_NARROW_SUM = 8
_NARROW_EXTREMUM = 24
"""Rows up to here are combined column by column, if there are many."""


def bind_sum(x: Array, axes: Sequence[int], y: Array) -> Step:
    """Return a step that writes the sums over `axes`, accumulated in y's dtype.

    y has the reduced axes kept with length 1.
    """
    rows = _rows(x, axes)
    if rows is not None and x.dtype == y.dtype and x.dtype.kind == "f":
        if _is_narrow(rows, _NARROW_SUM):
            return partial(_by_columns, np.add, list(rows.T), y.reshape(-1))
        if x.size >= 1024 and rows.shape[1] <= _SUMMED:
            return partial(np.einsum, "ij->i", rows, out=y.reshape(-1))
    return partial(x.sum, tuple(axes), y.dtype, y, True)


def bind_extremum(name: str, x: Array, axes: Sequence[int], y: Array) -> Step:
    """Return a step that writes the ``"max"`` or ``"min"`` over `axes`, kept with length 1."""
    rows = _rows(x, axes)
    if rows is None:
        return partial(getattr(x, name), tuple(axes), y, True)
    combine = np.maximum if name == "max" else np.minimum
    if _is_narrow(rows, _NARROW_EXTREMUM):
        return partial(_by_columns, combine, list(rows.T), y.reshape(-1))
    starts = np.arange(0, x.size, rows.shape[1])
    return partial(combine.reduceat, rows.reshape(-1), starts, out=y.reshape(-1))


def _rows(x: Array, axes: Sequence[int]) -> Array | None:
    """Return x as a matrix whose rows are to be reduced, None where it is not laid out so."""
    last = range(x.ndim - len(axes), x.ndim)
    if not isinstance(x, np.ndarray) or sorted(axes) != list(last) or not axes or not x.size:
        return None
    if x.dtype == np.float16 or not x.flags.c_contiguous:
        return None
    rows: Array = x.reshape(-1, int(np.prod(x.shape[last.start :], dtype=np.int64)))
    return rows if rows.shape[1] > 1 else None


def _is_narrow(rows: Array, width: int) -> bool:
    count, length = rows.shape
    return bool(length <= width and count >= 8 * length)


def _by_columns(combine: Any, columns: Sequence[Array], y: Array) -> None:
    combine(columns[0], columns[1], out=y)
    for column in columns[2:]:
        combine(y, column, out=y)
