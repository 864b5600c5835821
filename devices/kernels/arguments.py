"""Arguments that kernels read when they are bound: optional arrays, and integers."""

from __future__ import annotations

import numpy as np

from ...graph.tensor import Array
from .registry import Arrays


def optional(arrays: Arrays, index: int) -> Array | None:
    """Return an input or output, None where it is absent."""
    return arrays[index] if index < len(arrays) else None


def integers(arrays: Arrays, index: int) -> list[int] | None:
    """Return the integers of an input, None where it is absent.

    Shapes depend on such inputs, so that they are constants by the time a plan is opened.
    """
    array = optional(arrays, index)
    return None if array is None else [int(number) for number in array.reshape(-1).tolist()]


def check_indices(indices: Array, length: int, axis: int) -> bool:
    """Return whether one may count from the end; raise IndexError for one outside of the axis.

    What the host cannot read is not looked at.
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
