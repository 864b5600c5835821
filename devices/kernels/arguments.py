"""Arguments that kernels read when they are bound: optional arrays, and integers."""

from __future__ import annotations

import numpy as np

from ...graph.values.tensor import Array
from .registry import Arrays


def get_optional(arrays: Arrays, index: int) -> Array | None:
    return arrays[index] if index < len(arrays) else None


def get_integers(arrays: Arrays, index: int) -> list[int] | None:
    """Return the integers of the input at `index` of `arrays`, or None if it is absent.

    Shapes depend on such inputs, so they are constants when a plan is opened.
    """
    array = get_optional(arrays, index)
    return None if array is None else [int(number) for number in array.reshape(-1).tolist()]


def check_indices(indices: Array, length: int, axis: int) -> bool:
    """Return whether any of `indices` may be negative; raise IndexError if outside of `axis`.

    That axis has `length` places. Indices that the host cannot read are not checked.
    """
    if not isinstance(indices, np.ndarray):
        return True
    if indices.size == 0:
        return False
    lowest, highest = int(indices.min()), int(indices.max())
    if lowest < -length or highest >= length:
        wrong = lowest if lowest < -length else highest
        raise IndexError(f"index {wrong} is outside axis {axis} of length {length}")
    return lowest < 0
