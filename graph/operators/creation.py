"""Operators that make tensors from shapes and scalars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, define, free
from ..core.traits import FLAT, OWN_DTYPES, PRIMITIVE
from ..values.dims import UNKNOWN
from ..values.errors import ShapeError
from ..values.tensor import Array, TensorSpec
from .inputs import NUMBERS, find_common_dtype, forget_shape, read_lengths, read_rank


@define(
    "ConstantOfShape",
    inputs="shape",
    attributes={"value": Attribute(Kind.NUMBER, 0), "dtype": Attribute(Kind.DTYPE, "float32")},
    cost=free,
    traits=FLAT,
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_constant_of_shape(call: Call) -> Sequence[TensorSpec]:
    shape = read_lengths(call, 0, "the shape")
    if shape is not None and any(isinstance(length, int) and length < 0 for length in shape):
        raise ShapeError(f"{list(shape)} is not a shape", fix="use lengths ≥ 0")
    if shape is None:
        return (forget_shape(TensorSpec(call.attributes["dtype"]), read_rank(call, 0)),)
    return (TensorSpec(call.attributes["dtype"], shape),)


@define(
    "Range",
    inputs="start limit delta",
    attributes={"stash_type": Attribute(Kind.INT, 1)},
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_range(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: as many elements as steps of `delta` fit before the limit."""
    specs = [call.spec(index) for index in range(3)]
    dtype = find_common_dtype(specs, NUMBERS)
    for spec in specs:
        if spec.is_static and spec.size != 1:
            raise ShapeError(f"{spec} must be a scalar", fix="pass one number")
    start, limit, delta = call.values[:3]
    if start is None or limit is None or delta is None:
        return (TensorSpec(dtype, (UNKNOWN,)),)
    return (TensorSpec(dtype, (count_range(start, limit, delta),)),)


def count_range(start: Array, limit: Array, delta: Array) -> int:
    """Return max(⌈(`limit` - `start`) / `delta`⌉, 0), exact on integers, or raise ShapeError."""
    low, high, step = (x.reshape(()).item() for x in (start, limit, delta))
    if step == 0 or not all(map(math.isfinite, (low, high, step))):
        raise ShapeError(
            f"Range from {low} to {high} in steps of {step} has no length",
            fix="use finite numbers, and a step other than 0",
        )
    if start.dtype.kind == "f":
        return int(max(math.ceil((high - low) / step), 0))
    return int(max(-((low - high) // step), 0))
