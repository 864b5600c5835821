"""Definitions of cvm's operators that choose elements by the values of others."""

from __future__ import annotations

from typing import Any

from ....devices.formal.indices import at, indices, table
from ....devices.formal.registry import definition
from ....graph.values.tensor import Array


def _clamp(index: int, length: int) -> int:
    return min(max(index, 0), length - 1)


@definition("cvm.take")
def take(x: Array, places: Array, *, axis: int | None, **_: Any) -> Array:
    if axis is None:
        elements = [at(x, *index) for index in indices(x.shape)]
        return table(places.shape, lambda *i: elements[_clamp(at(places, *i), x.size)])
    d = axis % x.ndim
    after = d + places.ndim

    def element(*index: int) -> int:
        place = _clamp(at(places, *index[d:after]), x.shape[d])
        return int(at(x, *index[:d], place, *index[after:]))

    return table((*x.shape[:d], *places.shape, *x.shape[d + 1 :]), element)


@definition("cvm.lut")
def lut(places: Array, values: Array, **_: Any) -> Array:
    """Return y[i] = `values`[`places`[i]]; places are clamped to the table."""
    elements = [at(values, *index) for index in indices(values.shape)]
    return table(places.shape, lambda *i: elements[_clamp(at(places, *i), len(elements))])


@definition("cvm.where")
def where(condition: Array, x: Array, y: Array) -> Array:
    """Return z[i] = `x`[i] where `condition` is not 0, else `y`[i].

    A condition of one axis, unless x has only one itself, is about whole rows.
    """

    def element(*index: int) -> int:
        chosen = at(condition, *index[: condition.ndim]) != 0
        return int(at(x, *index) if chosen else at(y, *index))

    return table(x.shape, element)
