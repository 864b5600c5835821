"""Inputs of items that wait: copied, for the source may use its arrays again for the next item.

Once a stream runs, nothing is allocated for that: the arrays of items that wait no more are used
for those that come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from ...graph.tensor import Array

_Kind: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]


class Spares:
    """Arrays to copy inputs into; used on one thread only.

    Attributes
    ----------
    most : int
        How many are kept; of more the ones that were used least recently are let go.
    """

    def __init__(self) -> None:
        self.most = 0
        self._count = 0
        self._free: OrderedDict[_Kind, list[Array]] = OrderedDict()

    def room_for(self, inputs: Any) -> dict[str, Array]:
        """Return an array for each one among what is fed, which may be anything yet."""
        return {name: self._like(array) for name, array in arrays_in(inputs)}

    def take_back(self, arrays: Iterable[Array]) -> None:
        """Keep arrays that nobody reads any more."""
        for array in arrays:
            kind = array.shape, array.dtype
            self._free.setdefault(kind, []).append(array)
            self._free.move_to_end(kind)
            self._count += 1
        while self._count > self.most:
            self._pop(next(iter(self._free)))

    def _like(self, array: Array) -> Array:
        kind = array.shape, array.dtype
        return self._pop(kind) if kind in self._free else np.empty(*kind)

    def _pop(self, kind: _Kind) -> Array:
        alike = self._free[kind]
        array = alike.pop()
        self._count -= 1
        if not alike:
            del self._free[kind]
        return array


def copied(inputs: Any, room: Mapping[str, Array]) -> Any:
    """Return what is fed, its arrays copied to where there is room, and whatever else is like one.

    What is no array at all stays as it is, to be refused in its turn.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    for name, array in room.items():
        np.copyto(array, inputs[name])
    others = {name: _own(value) for name, value in inputs.items() if name not in room}
    return {**others, **room}


def _own(value: Any) -> Any:
    try:
        return np.array(value)
    except Exception:
        return value


def arrays_in(inputs: Any) -> Iterator[tuple[str, Array]]:
    """Yield the names and arrays among what is fed."""
    if isinstance(inputs, Mapping):
        yield from ((n, value) for n, value in inputs.items() if isinstance(value, np.ndarray))
