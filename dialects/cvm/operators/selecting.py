"""Exact operators that take parts of a tensor, or elements by index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....graph.core.attribute import Attribute, Attributes, Kind
from ....graph.core.operator import Alias, Call, free
from ....graph.operators.rules import alias_part
from ....graph.values.dims import normalize_axis
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Shape
from .rules import MAX_SIZE, declare, make_int, make_ints


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
