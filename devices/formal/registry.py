"""The registry of definitions, and the tables of elements that they return.

A definition computes an operator's outputs in the most obvious way: from the formula, element
by element, in Python's exact integers and double floats. It is called as
``function(*inputs, **attributes)`` with read-only numpy arrays (None for an absent optional
input) and all of the operator's attributes. One with a parameter ``outputs`` also gets the specs
of the node's outputs. It returns an array or nested lists, or a tuple of these, one per output.
Its source is ONNX's operator of that name, if no other is given.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ...graph.values.installed import DEFINITIONS
from ...graph.values.registry import Registry
from ...graph.values.tensor import Array

DefiningFunction: TypeAlias = Callable[..., Any]
_Function = TypeVar("_Function", bound=DefiningFunction)


@dataclass(frozen=True, slots=True)
class Definition:
    op: str
    function: DefiningFunction
    wants_outputs: bool
    """Whether the function gets the output specs, as ``outputs=``."""


_definitions: Registry[str, Definition] = Registry(
    "two definitions of {!r}", group=DEFINITIONS, function_of=lambda entry: entry.function
)


def definition(op: str) -> Callable[[_Function], _Function]:
    """Return the decorator that registers the definition of `op`.

    It is called as ``function(*inputs, **attributes)``. Raises GraphError if there is one already.
    """

    def decorate(function: _Function) -> _Function:
        wants_outputs = "outputs" in inspect.signature(function).parameters
        _definitions.register(op, Definition(op, function, wants_outputs))
        return function

    return decorate


def find_definition(op: str) -> Definition | None:
    return _definitions.find(op)


def list_definitions() -> tuple[str, ...]:
    return tuple(sorted(_definitions.all()))


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
