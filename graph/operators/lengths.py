"""Rules for lists of lengths: the dimensions that a Shape lists, and lists that are made of it.

Exported models compute the shapes of a Reshape or an Expand from those of other tensors. With the
lengths followed, their results keep the names of axes: rows stay rows, and bounds can be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeAlias

from ..core.infer import length_rules
from ..core.operator import Call
from ..values.dims import add, floordiv, mul, subtract, take_larger
from ..values.tensor import Dim
from .reshaping import list_shape_axes

Lengths: TypeAlias = Sequence[Dim] | None


def _read_shape(call: Call) -> Lengths:
    shape = call.spec(0).shape
    return shape and [shape[axis] for axis in list_shape_axes(len(shape), call.attributes)]


def _keep(call: Call) -> Lengths:
    return call.lengths(0) if call.attributes.get("to") in (None, "int32", "int64") else None


def _gather(call: Call) -> Lengths:
    data, chosen = call.lengths(0), call.value(1)
    if data is None or chosen is None or not all(-len(data) <= i < len(data) for i in chosen.flat):
        return None
    return [data[i] for i in chosen.flat]


def _slice(call: Call) -> Lengths:
    data, *bounds = (call.lengths(index) for index in (0, 1, 2, 4))
    numbers = [one[0] for one in bounds if one and isinstance(one[0], int)]
    if data is None or len(numbers) < 2 + call.has(4) or numbers[2:] == [0]:
        return None
    return data[slice(*numbers)]


def _concat(call: Call) -> Lengths:
    parts = [call.lengths(index) for index in range(len(call.inputs))]
    return None if None in parts else [*chain(*filter(None, parts))]


def _combine(compute: Callable[[Dim, Dim], Dim | None], call: Call) -> Lengths:
    a, b = call.lengths(0) or (), call.lengths(1) or ()
    count = max(len(a), len(b))
    if not a or not b or min(len(a), len(b)) not in (1, count):
        return None
    pairs = zip(a * (count // len(a)), b * (count // len(b)), strict=True)
    known = [dim for one, other in pairs if (dim := compute(one, other)) is not None]
    return known if len(known) == count else None


def _divide(a: Dim, b: Dim) -> Dim | None:
    # Division rounds to 0, `//` down.
    is_negative = "-" in a if isinstance(a, str) else a < 0
    return None if is_negative or isinstance(b, str) or b < 1 else floordiv(a, b)


_rules: dict[str, Callable[[Call], Lengths]] = {
    "Shape": _read_shape,
    **dict.fromkeys(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _keep),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Add": partial(_combine, add),
    "Relu": lambda call: [take_larger(dim, 0) for dim in call.lengths(0) or ()] or None,
    "Sub": partial(_combine, subtract),
    "Max": lambda call: _combine(take_larger, call) if len(call.inputs) == 2 else None,
    "Mul": partial(_combine, mul),
    "Div": partial(_combine, _divide),
}
for _op, _rule in _rules.items():
    length_rules.register(_op, _rule)
