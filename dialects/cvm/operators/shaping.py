"""Exact operators that put elements into another shape or order, or repeat them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....graph.core.attribute import Attribute, Kind
from ....graph.core.operator import Call, free
from ....graph.operators.inputs import may_equal
from ....graph.operators.rules import FIRST, alias_joined
from ....graph.values.dims import add, normalize_axes, normalize_axis
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Shape
from .rules import declare, get_known_shape, has_ranks, make_int, make_ints

_AXIS = {"axis": Attribute(Kind.INT)}


@declare(
    "repeat", attributes={"repeats": make_int(1, None), "axis": Attribute(Kind.INT, 0)}, cost=free
)
def infer_repeat(call: Call) -> Sequence[Shape | None]:
    shape = list(call.spec(0).static_shape)
    shape[normalize_axis(call.attributes["axis"], len(shape))] *= call.attributes["repeats"]
    return (tuple(shape),)


@declare("tile", attributes={"reps": make_ints(None, 1)}, cost=free)
def infer_tile(call: Call) -> Sequence[Shape | None]:
    shape, reps = align(call.spec(0).static_shape, call.attributes["reps"])
    return (tuple(length * count for length, count in zip(shape, reps, strict=True)),)


def align(shape: Sequence[int], reps: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `shape` and `reps`, with ones before the shorter one; ShapeError for empty `reps`."""
    if not reps:
        raise ShapeError("reps is empty", fix="give one number per axis, counted from the last")
    rank = max(len(shape), len(reps))
    ones = (1,) * rank
    return (ones + tuple(shape))[-rank:], (ones + tuple(reps))[-rank:]


@declare("flatten", cost=free, views=FIRST, batched=True)
def infer_flatten(call: Call) -> Sequence[Shape | None]:
    first, *others = call.spec(0).static_shape
    return ((first, math.prod(others)),)


@declare(
    "concatenate",
    inputs="x+",
    attributes={"axis": Attribute(Kind.INT, 1)},
    cost=free,
    joins=alias_joined,
    ready=has_ranks,
)
def infer_concatenate(call: Call) -> Sequence[Shape | None]:
    first, *others = (get_known_shape(call, index) for index in range(len(call.inputs)))
    axis = normalize_axis(call.attributes["axis"], len(first))
    joined = list(first)
    for shape in others:
        fits = len(shape) == len(first) and all(
            place == axis or may_equal(a, b)
            for place, (a, b) in enumerate(zip(joined, shape, strict=True))
        )
        if not fits:
            raise ShapeError(
                f"{list(first)} and {list(shape)} cannot be joined along axis {axis}",
                fix="make all other lengths equal",
            )
        length = add(joined[axis], shape[axis])
        joined = [b if isinstance(b, int) else a for a, b in zip(joined, shape, strict=True)]
        joined[axis] = length
    return (tuple(joined),)


@declare(
    "expand_dims",
    attributes={**_AXIS, "num_newaxis": Attribute(Kind.INT, 1, minimum=1, maximum=4096)},
    cost=free,
    views=FIRST,
    ready=has_ranks,
)
def infer_expand_dims(call: Call) -> Sequence[Shape | None]:
    shape = get_known_shape(call)
    place = normalize_axis(call.attributes["axis"], len(shape) + 1)
    return ((*shape[:place], *(1,) * call.attributes["num_newaxis"], *shape[place:]),)


@declare("squeeze", attributes={"axis": make_ints((), None, None)}, cost=free, views=FIRST)
def infer_squeeze(call: Call) -> Sequence[Shape | None]:
    shape = call.spec(0).static_shape
    listed = {normalize_axis(axis, len(shape)) for axis in call.attributes["axis"]}
    longer = sorted(axis for axis in listed if shape[axis] != 1)
    if longer:
        raise ShapeError(
            f"axis {longer[0]} of {list(shape)} is not of length 1", fix="leave it out"
        )
    removed = listed or {axis for axis, length in enumerate(shape) if length == 1}
    return (tuple(dim for axis, dim in enumerate(shape) if axis not in removed) or (1,),)


@declare("transpose", attributes={"axes": make_ints((), None, None)}, cost=free, ready=has_ranks)
def infer_transpose(call: Call) -> Sequence[Shape | None]:
    shape = get_known_shape(call)
    return (tuple(shape[axis] for axis in get_permutation(len(shape), call.attributes["axes"])),)


def get_permutation(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the input axis of each of `rank` output axes: `axes`, or if empty in reverse."""
    if not axes:
        return tuple(reversed(range(rank)))
    listed = normalize_axes(axes, rank)
    if len(listed) != rank:
        raise ShapeError(f"axes {list(axes)} do not order {rank} axes", fix="list each once")
    return listed


@declare("reshape", attributes={"shape": make_ints(None, -4, None)}, cost=free, views=FIRST)
def infer_reshape(call: Call) -> Sequence[Shape | None]:
    return (apply_target(call.spec(0).static_shape, call.attributes["shape"]),)


def apply_target(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that `target` describes, read along the axes of `shape`.

    A positive number is a length; 0 keeps the axis, -1 infers the length (once), -2 keeps all
    remaining axes, -3 merges two axes, -4 splits one into the next two, one of which may be -1.
    Raises ShapeError if the target is invalid, or its element count differs.
    """
    try:
        lengths = list(_read_target(shape, iter(target)))
    except (IndexError, StopIteration, ZeroDivisionError):
        lengths = []
    total, left = math.prod(shape), math.prod(length for length in lengths if length != -1)
    if lengths.count(-1) == 1 and left > 0 and total % left == 0:
        lengths[lengths.index(-1)] = total // left
    if not lengths or min(lengths) < 1 or math.prod(lengths) != total:
        raise ShapeError(
            f"{list(shape)} cannot be reshaped to {list(target)}",
            fix="give lengths that multiply to the same number of elements",
        )
    return tuple(lengths)


def _read_target(shape: Sequence[int], target: Iterator[int]) -> Iterator[int]:
    axis = 0
    for entry in target:
        if entry == -2:
            yield from shape[axis:]
            axis = len(shape)
        elif entry == -3:
            yield shape[axis] * shape[axis + 1]
            axis += 2
        elif entry == -4:
            yield from _split(shape[axis], next(target, 0), next(target, 0))
            axis += 1
        else:
            yield shape[axis] if entry == 0 else entry
            axis += 1


def _split(length: int, first: int, second: int) -> tuple[int, int]:
    """Return factors `first` and `second` of `length`, -1 as the rest; zeros if they do not fit."""
    first = length // second if first == -1 and second > 0 else first
    second = length // first if second == -1 and first > 0 else second
    return (first, second) if first * second == length and first > 0 else (0, 0)
