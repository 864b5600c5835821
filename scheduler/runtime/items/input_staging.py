"""Inputs of items that wait: copied, for the source may use its arrays again for the next item.

Once a stream runs, nothing is allocated for that: the arrays of items that wait no more are used
for those that come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np

from ....devices.exchange import Loan
from ....graph.values.errors import PlaitError
from ....graph.values.tensor import Array
from ...plans.plan import Plan
from ..large_copies import copy_array
from ..opened.feeds import ItemFeeds, to_array

_Kind: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]


class InputStagingPool:
    """Arrays to copy inputs into; used on one thread only.

    One array serves all shapes of an input within the bounds of the `plan`. At most `most` arrays
    are kept; the least recently used ones are dropped first.
    """

    def __init__(self, plan: Plan) -> None:
        self.most = 0
        specs = plan.graph.tensors if plan.bounds else {}
        self._nbytes = {name: specs[name].nbytes for name in plan.graph.inputs if name in specs}
        self._by_reference = plan.graph.object_inputs
        self._count = 0
        self._free: OrderedDict[_Kind, list[Array]] = OrderedDict()

    def room_for(self, inputs: Any) -> dict[str, Array]:
        """Return arrays, by name, to which those among the unchecked `inputs` can be copied."""
        if type(inputs) is ItemFeeds and inputs.are_own:
            return {}
        return {
            name: self._like(name, array)
            for name, array in find_arrays(inputs)
            if name not in self._by_reference
        }

    def copy_into(self, inputs: Any, room: Mapping[str, Array]) -> Any:
        if type(inputs) is ItemFeeds and inputs.are_own:
            return inputs
        return copy_inputs(inputs, room, self._by_reference)

    def take_back(self, arrays: Iterable[Array]) -> None:
        for view in arrays:
            array = view if view.base is None else view.base
            kind = array.shape, array.dtype
            self._free.setdefault(kind, []).append(array)
            self._free.move_to_end(kind)
            self._count += 1
        while self._count > self.most:
            self._pop(next(iter(self._free)))

    def _like(self, name: str, array: Array) -> Array:
        most = self._nbytes.get(name, -1)
        if array.nbytes > most or array.dtype.hasobject:
            return self._of(array.shape, array.dtype)
        room = self._of((most,), np.dtype(np.uint8))
        return room[: array.nbytes].view(array.dtype).reshape(array.shape)

    def _of(self, *kind: Any) -> Array:
        return self._pop(kind) if kind in self._free else np.empty(*kind)

    def _pop(self, kind: _Kind) -> Array:
        alike = self._free[kind]
        array = alike.pop()
        self._count -= 1
        if not alike:
            del self._free[kind]
        return array


def copy_inputs(inputs: Any, room: Mapping[str, Array], by_reference: Container[str]) -> Any:
    """Return the inputs with arrays copied, to those of the same names in `room` or to new ones.

    Values that cannot become arrays stay as they are, to be refused in their turn, and so do those
    of inputs that `by_reference` names.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    own = ItemFeeds(inputs)
    own.graph = inputs.graph if type(inputs) is ItemFeeds else None
    for name, value in inputs.items():
        if name in room:
            copy_array(room[name], value)
            own[name] = room[name]
        elif name not in by_reference:
            own[name] = _own(value)
    return own


def _own(value: Any) -> Any:
    if isinstance(value, Loan | PlaitError):
        return value
    if isinstance(value, bool | int | float | list | tuple):  # of a dtype that the input decides
        return deepcopy(value)
    try:
        array = to_array(value)
        return array if _is_constant(array) else np.array(array)
    except Exception:
        return value


def _is_constant(value: Any) -> bool:
    """Return whether `value` is an array in immutable bytes, as of a file that was read.

    Arrays that come from another process lie in bytes, too: numpy lets these be changed.
    """
    while isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.base
    return isinstance(value, bytes)


def find_arrays(inputs: Any) -> Iterator[tuple[str, Array]]:
    """Yield name and value of those `inputs` that are arrays and may be changed later."""
    if isinstance(inputs, Mapping):
        yield from (
            (name, value)
            for name, value in inputs.items()
            if isinstance(value, np.ndarray) and not _is_constant(value)
        )
