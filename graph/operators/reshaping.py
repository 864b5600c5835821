"""Operators that keep the bytes and change the shape, or return it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.attribute import Attribute, Attributes, Kind
from ..core.operator import Call, define, free
from ..core.traits import FLAT, FOLLOWS, LENGTHS, MOVES, NO_FLOATS, PRIMITIVE
from ..values.dims import UNKNOWN, floordiv, mul, multiply_all, normalize_axes
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import (
    ANY,
    check_dtype,
    forget_shape,
    is_computed,
    read_integers,
    read_lengths,
    read_rank,
)
from .rules import FIRST


def infer_reshaped(shape: Shape, target: Sequence[Dim], allowzero: bool) -> Shape:
    """Reshape `shape` to `target`: 0 keeps a length, unless `allowzero`, and -1 is the rest."""
    numbers = [length for length in target if isinstance(length, int)]
    if min(numbers, default=0) < -1 or numbers.count(-1) > 1:
        raise ShapeError(f"{list(target)} is not a shape", fix="use -1 at most once")
    if allowzero and 0 in target and -1 in target and 0 in shape:
        # PyTorch exports this for batches, which may be empty: as in ONNX Runtime, zeros are out.
        rest = iter(infer_reshaped(tuple(filter(None, shape)), [n for n in target if n], False))
        return tuple(next(rest) if n else 0 for n in target)
    if allowzero and 0 in target and -1 in target:
        raise ShapeError(f"-1 is ambiguous in {list(target)}", fix="with allowzero, avoid 0 or -1")
    kept = [i for i, length in enumerate(target) if length == 0 and not allowzero]
    if kept and kept[-1] >= len(shape):
        raise ShapeError(
            f"0 in {list(target)} keeps dimension {kept[-1]}, but the input has {len(shape)}",
            fix="write the length, or -1",
        )
    wanted = math.prod(length for length in numbers if length != -1 and (length or allowzero))
    others = [dim for i, dim in enumerate(shape) if i not in kept]
    is_known = -1 in target or 0 not in [shape[i] for i in kept]  # else both have no elements
    for length in target:
        if length in others and isinstance(length, str):
            others.remove(length)
        else:
            is_known &= isinstance(length, int)
    left = _divide_dims(others, wanted, -1 in target) if is_known else UNKNOWN
    if left is None:
        raise ShapeError(
            f"{list(shape)} cannot be reshaped to {list(target)}: the element counts differ",
            fix="make the lengths multiply to the same number, or write -1 for one of them",
        )
    return tuple(
        shape[i] if i in kept else left if length == -1 else length
        for i, length in enumerate(target)
    )


def _divide_dims(dims: Sequence[Dim], wanted: int, any_quotient: bool) -> Dim | None:
    """Return the quotient of `dims` by `wanted` if it is a length, or 1 unless `any_quotient`."""
    number = math.prod(dim for dim in dims if isinstance(dim, int))
    symbols = [dim for dim in dims if isinstance(dim, str)]
    if not symbols or number == 0:
        if not any_quotient:
            return 1 if number == wanted else None
        return None if wanted == 0 or number % wanted else number // wanted
    common = math.gcd(number, wanted)
    if wanted == 0 or not any_quotient:
        return 1
    return floordiv(mul(number // common, multiply_all(symbols)), wanted // common)


@define(
    "Reshape",
    inputs="data shape",
    attributes={"allowzero": Attribute(Kind.BOOL, False)},
    cost=free,
    views=FIRST,
    traits=MOVES,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_reshape(call: Call) -> Sequence[TensorSpec]:
    data, target = call.spec(0), read_lengths(call, 1, "the shape")
    if target is None:
        return (forget_shape(data, read_rank(call, 1)),)
    if data.shape is None:
        return (
            TensorSpec(data.dtype, [n if isinstance(n, str) or n > 0 else UNKNOWN for n in target]),
        )
    return (
        TensorSpec(data.dtype, infer_reshaped(data.shape, target, call.attributes["allowzero"])),
    )


@define(
    "Flatten",
    inputs="x",
    attributes={"axis": Attribute(Kind.INT, 1)},
    cost=free,
    views=FIRST,
    traits=MOVES,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_flatten(call: Call) -> Sequence[TensorSpec]:
    """Infer the matrix of `call`: rows from the axes before `axis`, columns from the others."""
    x = call.spec(0)
    if x.shape is None:
        return (TensorSpec(x.dtype, None),)
    axis, rank = call.attributes["axis"], len(x.shape)
    if not -rank <= axis <= rank:
        raise ShapeError(
            f"axis {axis} is outside a tensor of rank {rank}",
            fix=f"use a value in [{-rank}, {rank}]",
        )
    axis = axis + rank if axis < 0 else axis
    return (TensorSpec(x.dtype, (multiply_all(x.shape[:axis]), multiply_all(x.shape[axis:]))),)


@define(
    "Squeeze",
    inputs="data axes?",
    cost=free,
    views=FIRST,
    traits=MOVES,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_squeeze(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the input without the axes given, or all of length 1."""
    data = call.spec(0)
    if data.shape is None or is_computed(call, 1):
        return (TensorSpec(data.dtype, None),)
    axes = read_integers(call, 1, "axes")
    if axes is None:
        if not all(isinstance(dim, int) for dim in data.shape):
            return (TensorSpec(data.dtype, None),)
        return (TensorSpec(data.dtype, [dim for dim in data.shape if dim != 1]),)
    removed = normalize_axes(axes, len(data.shape))
    for axis in removed:
        if data.shape[axis] != 1 and isinstance(data.shape[axis], int):
            raise ShapeError(f"axis {axis} of {data} is not of length 1", fix="leave it out")
    return (TensorSpec(data.dtype, [d for i, d in enumerate(data.shape) if i not in removed]),)


@define(
    "Unsqueeze",
    inputs="data axes",
    cost=free,
    views=FIRST,
    traits=MOVES,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_unsqueeze(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: the input with axes of length 1 put in, counted in the output."""
    data, axes = call.spec(0), read_integers(call, 1, "axes")
    if data.shape is None or axes is None:
        rank, added = data.rank, read_rank(call, 1)
        return (forget_shape(data, None if rank is None or added is None else rank + added),)
    rank = len(data.shape) + len(axes)
    inserted, rest = normalize_axes(axes, rank), iter(data.shape)
    return (TensorSpec(data.dtype, [1 if i in inserted else next(rest) for i in range(rank)]),)


@define(
    "Shape",
    inputs="data",
    attributes={"start": Attribute(Kind.INT, 0), "end": Attribute(Kind.INT, None)},
    cost=free,
    traits=LENGTHS | FLAT,
    float16=NO_FLOATS,
    lacks=PRIMITIVE,
)
def infer_shape(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: one integer for each axis from `start` to `end`."""
    rank = call.spec(0).rank
    if rank is None:
        return (TensorSpec("int64", None),)
    return (TensorSpec("int64", (len(list_shape_axes(rank, call.attributes)),)),)


def list_shape_axes(rank: int, attributes: Attributes) -> range:
    return range(rank)[attributes["start"] : attributes["end"]]


@define("Size", inputs="data", cost=free, traits=LENGTHS | FLAT, float16=NO_FLOATS, lacks=PRIMITIVE)
def infer_size(call: Call) -> Sequence[TensorSpec]:
    check_dtype(call.spec(0), ANY)
    return (TensorSpec("int64", ()),)
