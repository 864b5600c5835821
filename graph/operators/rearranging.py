"""Operators that put elements into another order by blocks, sequences and diagonals."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, define, free
from ..core.traits import FIRST_FOLLOWS, FLAT, FOLLOWS, MOVES, NEVER_NEGATIVE, OWN_DTYPES, PRIMITIVE
from ..values.dims import floordiv, mul
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .inputs import INTEGERS, REALS, check_dtype, check_per_channel, check_rank

_BLOCKS = {
    "blocksize": Attribute(Kind.INT, minimum=1),
    "mode": Attribute(Kind.STRING, "DCR", choices=("DCR", "CRD")),
}


@define("DepthToSpace", inputs="x", attributes=_BLOCKS, cost=free, traits=MOVES, float16=FOLLOWS)
def infer_depth_to_space(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: channels become blocks of rows and columns."""
    x, size = call.spec(0), call.attributes["blocksize"]
    shape = _check_images(x)
    if shape is None:
        return (x,)
    batch, channels, height, width = shape
    blocks = _divide(x, channels, size * size)
    return (TensorSpec(x.dtype, (batch, blocks, mul(size, height), mul(size, width))),)


@define("SpaceToDepth", inputs="x", attributes=_BLOCKS, cost=free, traits=MOVES, float16=FOLLOWS)
def infer_space_to_depth(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: blocks of rows and columns become channels."""
    x, size = call.spec(0), call.attributes["blocksize"]
    shape = _check_images(x)
    if shape is None:
        return (x,)
    batch, channels, height, width = shape
    parts = _divide(x, height, size), _divide(x, width, size)
    return (TensorSpec(x.dtype, (batch, mul(size * size, channels), *parts)),)


def _check_images(x: TensorSpec) -> Shape | None:
    if x.shape is not None and len(x.shape) != 4:
        raise ShapeError(f"the input must have 4 dimensions, got {x}", fix="reshape it to NCHW")
    return x.shape


def _divide(x: TensorSpec, dim: Dim, parts: int) -> Dim:
    if isinstance(dim, int) and dim % parts:
        raise ShapeError(
            f"the length {dim} in {x} is not a multiple of {parts}",
            fix="use a blocksize that divides it, or pad first",
        )
    return floordiv(dim, parts)


@define(
    "EyeLike",
    inputs="x",
    attributes={"dtype": Attribute(Kind.DTYPE, None), "k": Attribute(Kind.INT, 0)},
    cost=free,
    traits=NEVER_NEGATIVE | FLAT,
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_eye_like(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: a matrix of x's shape, in the dtype given or else in x's."""
    x, dtype = call.spec(0), call.attributes["dtype"]
    if x.rank is not None and x.rank != 2:
        raise ShapeError(f"the input must be a matrix, got {x}", fix="reshape it")
    made = TensorSpec(x.dtype if dtype is None else dtype, x.shape)
    check_dtype(made, REALS, "the output")
    return (made,)


@define(
    "ReverseSequence",
    inputs="x sequence_lens",
    attributes={
        "batch_axis": Attribute(Kind.INT, 1, 0, 1),
        "time_axis": Attribute(Kind.INT, 0, 0, 1),
    },
    cost=free,
    traits=MOVES,
    float16=FIRST_FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_reverse_sequence(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x; there is a length for each sequence of the batch."""
    x, batch = call.spec(0), call.attributes["batch_axis"]
    check_rank(x, 2, "[time, batch, ...]")
    check_dtype(call.spec(1), INTEGERS, "sequence_lens")
    if batch == call.attributes["time_axis"]:
        raise ShapeError(f"batch_axis and time_axis are both {batch}", fix="make one 0, one 1")
    if x.shape is not None:
        check_per_channel(call, 1, x.shape[batch], "sequence_lens")
    return (x,)
