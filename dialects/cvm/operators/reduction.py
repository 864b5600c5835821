"""Exact sums and maxima over axes."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.core.attribute import Attribute, Attributes, Kind
from ....graph.core.operator import Call
from ....graph.operators.rules import per_input_element
from ....graph.values.dims import normalize_axes
from ....graph.values.tensor import Shape
from .rules import declare, get_known_shape, has_ranks, make_ints

_ATTRIBUTES = {
    "axis": make_ints((), None, None),
    "keepdims": Attribute(Kind.BOOL, False),
    "exclude": Attribute(Kind.BOOL, False),
}


def list_reduced_axes(rank: int, attributes: Attributes) -> tuple[int, ...]:
    """Return which of `rank` axes `attributes` reduce: all, some, or with exclude the others."""
    listed = normalize_axes(attributes["axis"], rank, "axis")
    if not listed:
        return tuple(range(rank))
    if attributes["exclude"]:
        return tuple(axis for axis in range(rank) if axis not in listed)
    return tuple(sorted(listed))


@declare("sum", attributes=_ATTRIBUTES, cost=per_input_element(1), ready=has_ranks)
@declare("max", attributes=_ATTRIBUTES, cost=per_input_element(1), ready=has_ranks)
def infer_reduction(call: Call) -> Sequence[Shape | None]:
    shape = get_known_shape(call)
    reduced = list_reduced_axes(len(shape), call.attributes)
    if call.attributes["keepdims"]:
        return (tuple(1 if axis in reduced else dim for axis, dim in enumerate(shape)),)
    return (tuple(dim for axis, dim in enumerate(shape) if axis not in reduced) or (1,),)
