"""Arrays as functions of their index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...graph.values.tensor import Array


def indices(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the indices of an array of `shape`, the last one moving fastest."""
    return itertools.product(*(range(length) for length in shape))


def table(shape: Sequence[int], function: Callable[..., Any]) -> Array:
    """Return the object array of `shape` with element `function(i, j, …)` at (i, j, …)."""
    array = np.empty(tuple(shape), dtype=object)
    for index in indices(shape):
        array[index] = function(*index)
    return array


def at(array: Array, *index: int) -> Any:
    """Return the element of `array` at `index` as a Python number, which is exact.

    Numpy's own scalars would round after each operation, and overflow.
    """
    return array[index].item()


def broadcast_at(array: Array, index: Sequence[int]) -> Any:
    """Return the element at `index` of `array`, as if broadcast to that rank, as a Python number.

    Axes are matched from the last one backwards; an axis of length 1 is read at 0 everywhere.
    """
    own = index[len(index) - array.ndim :]
    places = (0 if length == 1 else i for i, length in zip(own, array.shape, strict=True))
    return at(array, *places)


def per_element(function: Callable[..., Any], *arrays: Array) -> Array:
    """Return the table of `function` of elements of `arrays` at the same place, all broadcast."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return table(shape, lambda *index: function(*(broadcast_at(a, index) for a in arrays)))
