"""Exact operators that put elements into another shape or order, repeat them, or take some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....graph.core.attribute import Attribute, Attributes, Kind
from ....graph.core.operator import Alias, Call, free
from ....graph.operators.inputs import may_equal
from ....graph.operators.rules import FIRST, alias_joined, alias_part
from ....graph.values.dims import add, normalize_axes, normalize_axis
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Shape
from .rules import MAX_SIZE, declare, get_known_shape, has_ranks, make_int, make_ints

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


def _slice_parts(call: Call) -> Iterator[Alias]:
    ranges = slice_ranges(call.spec(0).static_shape, call.attributes)
    if all(places.step == 1 or len(places) == 1 for places in ranges):
        yield from alias_part(call.spec(0), [places[0] for places in ranges], [*map(len, ranges)])


@declare(
    "strided_slice",
    attributes={
        "begin": make_ints((0,), None, None),
        "end": make_ints((1,), None, None),
        "stride": make_ints((), None, None),
    },
    cost=free,
    parts=_slice_parts,
)
def infer_strided_slice(call: Call) -> Sequence[Shape | None]:
    return (tuple(map(len, slice_ranges(call.spec(0).static_shape, call.attributes))),)


def slice_ranges(shape: Sequence[int], attributes: Attributes) -> list[range]:
    """Return the places that `attributes` take along each axis of `shape`; ShapeError if none."""
    begins, ends, strides = (attributes[name] for name in ("begin", "end", "stride"))
    if max(len(begins), len(ends), len(strides)) > len(shape):
        raise ShapeError(
            f"the slice describes more axes than {list(shape)} has", fix="give one each per axis"
        )
    return [
        _slice_range(
            length,
            begins[axis] if axis < len(begins) else 0,
            ends[axis] if axis < len(ends) else length,
            strides[axis] if axis < len(strides) else 1,
        )
        for axis, length in enumerate(shape)
    ]


def _slice_range(length: int, begin: int, end: int, stride: int) -> range:
    low, high = (0, length) if stride > 0 else (-1, length - 1)
    first, last = (
        min(max(bound + length if bound < 0 else bound, low), high) for bound in (begin, end)
    )
    if stride == 0 or not range(first, last, stride):
        raise ShapeError(
            f"the slice from {begin} to {end} by {stride} takes nothing of {length} places",
            fix="use a stride other than 0, and an end behind the begin in its direction",
        )
    return range(first, last, stride)


@declare("slice_like", inputs="x like", attributes={"axis": make_ints((), None, None)}, cost=free)
def infer_slice_like(call: Call) -> Sequence[Shape | None]:
    shape, like = call.spec(0).static_shape, call.spec(1).static_shape
    listed = call.attributes["axis"]
    if not listed and len(shape) != len(like):
        raise ShapeError(
            f"{list(shape)} and {list(like)} have different ranks", fix="list the axes to slice"
        )
    axes = {normalize_axis(axis, len(shape)) for axis in listed} or set(range(len(shape)))
    wrong = [axis for axis in sorted(axes) if axis >= len(like) or like[axis] > shape[axis]]
    if wrong:
        raise ShapeError(
            f"axis {wrong[0]} of {list(shape)} cannot be cut to that of {list(like)}",
            fix="slice like a tensor that has the axis, and is no longer along it",
        )
    return (tuple(like[axis] if axis in axes else dim for axis, dim in enumerate(shape)),)


@declare("take", inputs="x indices", attributes={"axis": Attribute(Kind.INT, None)}, cost=free)
def infer_take(call: Call) -> Sequence[Shape | None]:
    shape, indices = call.spec(0).static_shape, call.spec(1).static_shape
    if call.attributes["axis"] is None:
        return (indices,)
    axis = normalize_axis(call.attributes["axis"], len(shape))
    return ((*shape[:axis], *indices, *shape[axis + 1 :]),)


@declare("lut", inputs="indices table", attributes={"in_dim": make_int(1, MAX_SIZE)}, cost=free)
def infer_lut(call: Call) -> Sequence[Shape | None]:
    table, size = call.spec(1), call.attributes["in_dim"]
    if table.size != size:
        raise ShapeError(
            f"the table {table} has {table.size} elements, in_dim says {size}",
            fix="set in_dim to the table's size",
        )
    return (call.spec(0).shape,)
