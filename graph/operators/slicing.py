"""Operators that return parts of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Alias, Call, define, free
from ..core.traits import FIRST_FOLLOWS, FOLLOWS, PRIMITIVE, SELECTS
from ..values.dims import UNKNOWN, ceildiv, normalize_axes, normalize_axis, slice_range
from ..values.errors import ShapeError
from ..values.tensor import D, Dim, Shape, TensorSpec
from .inputs import (
    INTEGERS,
    check_dtype,
    forget_shape,
    is_computed,
    read_integers,
    read_lengths,
    read_rank,
)
from .rules import alias_part

_END = 2**31 - 1
"""From here on an end means "to the end": exporters write INT_MAX."""

_LAST = 2**63 - 1


def list_slices(
    rank: int,
    starts: Sequence[D],
    ends: Sequence[D],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> dict[int, tuple[D, D, int]]:
    """Return (start, end, step) for each of `axes`, from `starts`, `ends` and `steps`.

    By default, axes are counted from 0 and steps are 1. Raises ShapeError if the lists differ in
    length, an axis is unknown or listed twice, or a step is 0.
    """
    listed = normalize_axes(range(len(starts)) if axes is None else axes, rank)
    paces = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(listed) == len(paces):
        raise ShapeError(
            "starts, ends, axes and steps differ in length", fix="give one of each per axis"
        )
    if 0 in paces:
        raise ShapeError("a step is 0", fix="use a positive or negative step")
    return dict(zip(listed, zip(starts, ends, paces, strict=True), strict=True))


def _slice_dim(dim: Dim, start: Dim, end: Dim, step: int) -> Dim:
    if isinstance(start, int) and isinstance(end, int):
        if isinstance(dim, int):
            return len(slice_range(dim, start, end, step))
        # Only slices of the whole axis, whatever its length, keep a symbol.
        forward = start == 0 and end >= _END and step == 1
        backward = (start == -1 or start >= _END) and end <= -_END and step == -1
        if forward or backward:
            return dim
        if end >= _END if step < 0 else end <= -_END:
            return 0  # it would have to run the other way
        end = _LAST if end >= _END else -_LAST if end <= -_END else end  # one text for each slice
    return f"slice({dim},{start},{end},{step})"


def _slice_parts(call: Call) -> Iterator[Alias]:
    data = call.spec(0)
    starts, ends, axes, steps = (read_integers(call, index, "") for index in range(1, 5))
    if starts is None or ends is None or is_computed(call, 3, 4):
        return
    taken = [range(length) for length in data.static_shape]
    for axis, bounds in list_slices(len(taken), starts, ends, axes, steps).items():
        taken[axis] = slice_range(len(taken[axis]), *bounds)
    # A run of bytes has its cells side by side; one cell is a run by any step.
    if all(places and (places.step == 1 or len(places) == 1) for places in taken):
        yield from alias_part(
            data, [places[0] for places in taken], [len(places) for places in taken]
        )


@define(
    "Slice",
    inputs="data starts ends axes? steps?",
    cost=free,
    parts=_slice_parts,
    traits=SELECTS,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_slice(call: Call) -> Sequence[TensorSpec]:
    data = call.spec(0)
    starts, ends = read_lengths(call, 1, "starts"), read_lengths(call, 2, "ends")
    axes, steps = read_integers(call, 3, "axes"), read_integers(call, 4, "steps")
    count = read_rank(call, 1)
    if data.rank is not None and count is not None and count > data.rank:
        raise ShapeError(f"{count} axes of {data} are sliced", fix="slice each axis once")
    if data.shape is None or is_computed(call, 3) or (axes is None and count is None):
        return (forget_shape(data, data.rank),)
    dims = list(data.shape)
    if starts is None or ends is None or is_computed(call, 4):
        # Which axes are sliced is known, and by how much is not.
        for axis in axes if axes is not None else range(count or 0):
            dims[normalize_axis(axis, len(dims))] = UNKNOWN
        return (TensorSpec(data.dtype, dims),)
    for axis, bounds in list_slices(len(dims), starts, ends, axes, steps).items():
        dims[axis] = _slice_dim(dims[axis], *bounds)
    return (TensorSpec(data.dtype, dims),)


def split_sizes(length: Dim, sizes: Sequence[int] | None, parts: int) -> tuple[Dim, ...]:
    """Split `length` into `parts`: of the `sizes` given, or equal ones, the last ones smaller.

    Raises ShapeError if the sizes given are negative, too few or too many, or do not add up.
    """
    if sizes is None:
        if isinstance(length, str):
            # Names for lengths that depend on a symbol: the later parts are shorter, or empty.
            rest = [f"split({length},{parts},{i})" for i in range(1, parts)]
            return (ceildiv(length, parts), *rest)
        size = -(-length // parts)
        return tuple(min(size, max(length - i * size, 0)) for i in range(parts))
    if len(sizes) != parts or min(sizes) < 0:
        raise ShapeError(
            f"split {list(sizes)} does not give the sizes of {parts} outputs",
            fix=f"give {parts} sizes ≥ 0",
        )
    if isinstance(length, int) and sum(sizes) != length:
        raise ShapeError(
            f"split {list(sizes)} does not add up to {length}",
            fix=f"make the sizes add up to {length}",
        )
    return tuple(sizes)


def _split_parts(call: Call) -> Iterator[Alias]:
    x, starts = call.spec(0), [0] * len(call.spec(0).static_shape)
    if is_computed(call, 1):
        return
    axis = normalize_axis(call.attributes["axis"], len(starts))
    sizes = split_sizes(x.static_shape[axis], read_integers(call, 1, "split"), call.n_outputs)
    for output, length in enumerate(map(int, sizes)):
        # A part without elements has no bytes to share.
        if length:
            lengths = [*x.static_shape[:axis], length, *x.static_shape[axis + 1 :]]
            yield from alias_part(x, starts, lengths, output)
        starts[axis] += length


@define(
    "Split",
    inputs="x split?",
    outputs="y+",
    attributes={"axis": Attribute(Kind.INT, 0), "num_outputs": Attribute(Kind.INT, None, 1)},
    cost=free,
    parts=_split_parts,
    float16=FOLLOWS,
)
def infer_split(call: Call) -> Sequence[TensorSpec]:
    x, parts = call.spec(0), call.attributes["num_outputs"] or call.n_outputs
    if parts != call.n_outputs:
        raise ShapeError(
            f"num_outputs is {parts}, but {call.n_outputs} outputs are asked for",
            fix="leave num_outputs out, or ask for as many outputs",
        )
    sizes = read_integers(call, 1, "split")
    if x.shape is None:
        return (x,) * parts
    axis = normalize_axis(call.attributes["axis"], len(x.shape))
    if is_computed(call, 1):
        return (TensorSpec(x.dtype, replace_axis(x.shape, axis, UNKNOWN)),) * parts
    lengths = split_sizes(x.shape[axis], sizes, parts)
    return tuple(TensorSpec(x.dtype, replace_axis(x.shape, axis, length)) for length in lengths)


def replace_axis(shape: Shape, axis: int, length: Dim) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _gather_parts(call: Call) -> Iterator[Alias]:
    """Yield the part of the data of `call` that its indices read, if these are known and a run."""
    data, indices = call.spec(0), call.value(1)
    if indices is None or indices.size == 0:
        return
    shape = data.static_shape
    axis = normalize_axis(call.attributes["axis"], len(shape))
    # Indices that count from the end may be a run, too.
    places = [i + shape[axis] if i < 0 else i for i in indices.reshape(-1).tolist()]
    first, end = places[0], places[0] + len(places)
    if first >= 0 and end <= shape[axis] and places == list(range(first, end)):
        starts = [first if i == axis else 0 for i in range(len(shape))]
        yield from alias_part(data, starts, [*shape[:axis], len(places), *shape[axis + 1 :]])


@define(
    "Gather",
    inputs="data indices",
    attributes={"axis": Attribute(Kind.INT, 0)},
    cost=free,
    parts=_gather_parts,
    traits=SELECTS,
    float16=FIRST_FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_gather(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the axes of the indices replace the axis."""
    data, indices = call.spec(0), call.spec(1)
    check_dtype(indices, INTEGERS, "indices")
    if data.shape is None:
        return (TensorSpec(data.dtype, None),)
    axis = normalize_axis(call.attributes["axis"], len(data.shape))
    if indices.shape is None:
        return (TensorSpec(data.dtype, None),)
    return (TensorSpec(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])),)


@define(
    "GatherElements",
    inputs="data indices",
    attributes={"axis": Attribute(Kind.INT, 0)},
    cost=free,
    traits=SELECTS,
    float16=FIRST_FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_gather_elements(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like the indices, which fit into data on all axes but `axis`."""
    data, indices = call.spec(0), call.spec(1)
    check_dtype(indices, INTEGERS, "indices")
    if data.shape is None or indices.shape is None:
        return (TensorSpec(data.dtype, indices.shape),)
    axis = normalize_axis(call.attributes["axis"], len(data.shape))
    fits = len(indices.shape) == len(data.shape) and all(
        i == axis or isinstance(a, str) or isinstance(b, str) or a <= b
        for i, (a, b) in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"indices {indices} do not fit into data {data} along axis {axis}",
            fix="make them of data's rank, and no longer than data along the other axes",
        )
    return (TensorSpec(data.dtype, indices.shape),)
