"""Operators that move, repeat and join elements without computing on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Alias, Call, define, free
from ..core.traits import FOLLOWS, MOVES, PRIMITIVE, SELECTS
from ..values.dims import UNKNOWN, add, broadcast, mul, normalize_axes, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import D, Dim, Shape, TensorSpec
from .inputs import (
    check_rank,
    find_common_dtype,
    forget_shape,
    is_computed,
    list_present,
    read_integers,
    read_lengths,
    read_rank,
)
from .rules import alias_joined


@define(
    "Concat",
    inputs="x+",
    attributes={"axis": Attribute(Kind.INT)},
    cost=free,
    joins=alias_joined,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_concat(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the lengths along `axis` add up, all others agree."""
    specs = list_present(call)
    dtype = find_common_dtype(specs)
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    if len({len(shape) for shape in shapes}) > 1:
        raise ShapeError(
            f"inputs differ in rank: {', '.join(map(str, specs))}", fix="insert an Unsqueeze"
        )
    if len(shapes) < len(specs):
        return (TensorSpec(dtype, None),)
    # With all ranks known, the axis counts the same from the end in each.
    axis = normalize_axis(call.attributes["axis"], len(shapes[0]))
    dims = [
        _sum(dims) if i == axis else _find_common(dims, i, specs)
        for i, dims in enumerate(zip(*shapes, strict=True))
    ]
    return (TensorSpec(dtype, dims),)


def _sum(dims: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for dim in dims:
        total = add(total, dim)
    return total


def _find_common(dims: Sequence[Dim], axis: int, specs: Sequence[TensorSpec]) -> Dim:
    """Return the common length of `dims`, along `axis` of `specs`; a number wins over symbols."""
    numbers = {dim for dim in dims if isinstance(dim, int)}
    if len(numbers) > 1:
        raise ShapeError(
            f"inputs differ along axis {axis}: {', '.join(map(str, specs))}",
            fix="make them equal along all axes but one, and concatenate along that",
        )
    return numbers.pop() if numbers else dims[0]


def _expand_parts(call: Call) -> Iterator[Alias]:
    (made,) = infer_expand(call)
    # As many cells as before: axes of length 1 were prepended, and none is repeated.
    if made.is_static and made.size == call.spec(0).size:
        yield Alias(0, 0)


@define(
    "Expand",
    inputs="x shape",
    cost=free,
    parts=_expand_parts,
    traits=SELECTS,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_expand(call: Call) -> Sequence[TensorSpec]:
    x, shape = call.spec(0), read_lengths(call, 1, "the shape")
    if x.shape is None or shape is None:
        return (TensorSpec(x.dtype, _broadcast_partly(x.shape, read_rank(call, 1))),)
    return (TensorSpec(x.dtype, broadcast((x.shape, shape))),)


def _broadcast_partly(shape: Shape | None, rank: int | None) -> Shape | None:
    """Return the known part of `shape` that is broadcast together with one of known `rank`."""
    if shape is None or rank is None:
        return None
    # A number above 1 stays, since it meets itself or 1; a 1, or a symbol, may be repeated.
    kept = (dim if isinstance(dim, int) and dim != 1 else UNKNOWN for dim in shape)
    return (*(UNKNOWN,) * (rank - len(shape)), *kept)


def _transpose_parts(call: Call) -> Iterator[Alias]:
    """Yield all of x in `call` if only axes of length 1 change their place among the others."""
    shape = call.spec(0).static_shape
    order = call.attributes["perm"] or range(len(shape))[::-1]
    # Axes of one cell may stand anywhere: the bytes stay in their order.
    moved = [axis for axis in order if shape[axis] != 1]
    if moved == sorted(moved):
        yield Alias(0, 0)


@define(
    "Transpose",
    inputs="x",
    attributes={"perm": Attribute(Kind.INTS, None)},
    cost=free,
    parts=_transpose_parts,
    traits=MOVES,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_transpose(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the axes in the order of `perm`, reversed if it is absent."""
    x, perm = call.spec(0), call.attributes["perm"]
    if x.shape is None:
        return (TensorSpec(x.dtype, None),)
    order = range(len(x.shape))[::-1] if perm is None else perm
    if sorted(order) != list(range(len(x.shape))):
        raise ShapeError(
            f"perm {list(order)} does not order the axes of {x}",
            fix=f"name each of 0 to {len(x.shape) - 1} once",
        )
    return (TensorSpec(x.dtype, [x.shape[axis] for axis in order]),)


@define("Tile", inputs="x repeats", cost=free, traits=SELECTS, float16=FOLLOWS, lacks=PRIMITIVE)
def infer_tile(call: Call) -> Sequence[TensorSpec]:
    x, repeats = call.spec(0), read_integers(call, 1, "repeats")
    if x.shape is None or repeats is None:
        return (forget_shape(x, x.rank),)
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        raise ShapeError(
            f"repeats {list(repeats)} does not give a count for each axis of {x}",
            fix=f"give {len(x.shape)} counts ≥ 0",
        )
    return (TensorSpec(x.dtype, [mul(d, n) for d, n in zip(x.shape, repeats, strict=True)]),)


PAD_MODES = ("constant", "reflect", "edge", "wrap")


@define(
    "Pad",
    inputs="data pads constant_value? axes?",
    attributes={"mode": Attribute(Kind.STRING, "constant", choices=PAD_MODES)},
    cost=free,
    float16=FOLLOWS,
)
def infer_pad(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: each axis is longer by its two pads, which may be negative."""
    data, pads = call.spec(0), read_lengths(call, 1, "pads")
    axes = read_integers(call, 3, "axes")
    if call.has(2):
        find_common_dtype((data, call.spec(2)))
    if data.shape is None or pads is None or is_computed(call, 3):
        return (forget_shape(data, data.rank),)
    listed = to_axis_pads(len(data.shape), pads, axes)
    padded = [
        add(dim, add(before, after))
        for dim, (before, after) in zip(data.shape, listed, strict=True)
    ]
    _check_padded(data, listed, padded, call.attributes["mode"])
    return (TensorSpec(data.dtype, padded),)


def to_axis_pads(rank: int, pads: Sequence[D], axes: Sequence[int] | None) -> list[tuple[D, D]]:
    """Return (before, after) for each of `rank` axes: the `pads` of those in `axes`, or of all."""
    listed = normalize_axes(range(rank) if axes is None else axes, rank)
    if len(pads) != 2 * len(listed):
        raise ShapeError(
            f"pads {list(pads)} do not give a begin and an end for {len(listed)} axes",
            fix="give all begins, then all ends: [begin..., end...]",
        )
    # All begins come first, then all ends: the second list is the first one, shifted by half.
    pairs = dict(zip(listed, zip(pads, pads[len(listed) :], strict=False), strict=True))
    return [pairs.get(axis, (0, 0)) for axis in range(rank)]


def _check_padded(
    data: TensorSpec, pads: Sequence[tuple[Dim, Dim]], padded: Shape | list[Dim], mode: str
) -> None:
    for axis, (before, after) in enumerate(pads):
        if isinstance(before, str) or isinstance(after, str):
            continue
        length = padded[axis]
        if isinstance(length, int) and length < 0:
            raise ShapeError(
                f"pads {(before, after)} cut more than axis {axis} of {data} has",
                fix="use larger pads",
            )
        # Mirrored or repeated cells are those that negative pads leave.
        source = add(data.shape[axis], min(before, 0) + min(after, 0)) if data.shape else 0
        grows = before > 0 or after > 0
        if mode != "constant" and grows and isinstance(source, int) and source <= 0:
            raise ShapeError(
                f"axis {axis} of {data} has nothing to {mode} from",
                fix="use mode='constant', or larger pads where they are negative",
            )


@define(
    "Trilu",
    inputs="x k?",
    attributes={"upper": Attribute(Kind.BOOL, True)},
    cost=free,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_trilu(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    check_rank(x, 2, "a matrix, or a stack of them")
    read_integers(call, 1, "k")
    return (x,)
