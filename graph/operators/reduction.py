"""Reductions over axes, and scans and softmax along one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, InferRule, define
from ..core.traits import (
    FLAT,
    FOLLOWS,
    IN_POWERS,
    IN_STEPS,
    IN_SUMS,
    NEVER_NEGATIVE,
    NO_TRAITS,
    NOTHING,
    PRIMITIVE,
)
from ..values.dims import normalize_axes, normalize_axis
from ..values.errors import ShapeError
from ..values.tensor import Dim, TensorSpec
from .inputs import (
    FLOATS,
    NUMBERS,
    REALS,
    check_dtype,
    check_rank,
    check_single,
    is_computed,
    read_integers,
)
from .rules import FIRST, TRANSCENDENTAL, per_element, per_input_element, same_along_axis

_LAST_AXIS = {"axis": Attribute(Kind.INT, -1)}
_SOFTMAX_COST = per_element(5)
"""Maximum, difference, exponential, sum and quotient."""


def list_reduced_axes(
    rank: int, axes: Sequence[int] | None, noop_with_empty_axes: bool
) -> tuple[int, ...]:
    """Return the sorted axes to reduce; without `axes`, all, or none if `noop_with_empty_axes`."""
    if axes:
        return tuple(sorted(normalize_axes(axes, rank)))
    return () if noop_with_empty_axes else tuple(range(rank))


def _reduce(kinds: str) -> InferRule:
    def infer(call: Call) -> Sequence[TensorSpec]:
        data = call.spec(0)
        check_dtype(data, kinds)
        if data.shape is None or is_computed(call, 1):
            return (TensorSpec(data.dtype, None),)
        axes = read_integers(call, 1, "axes")
        reduced = list_reduced_axes(len(data.shape), axes, call.attributes["noop_with_empty_axes"])
        kept: Sequence[Dim] = [1 if axis in reduced else d for axis, d in enumerate(data.shape)]
        if not call.attributes["keepdims"]:
            kept = [d for axis, d in enumerate(data.shape) if axis not in reduced]
        return (TensorSpec(data.dtype, kept),)

    return infer


REDUCE_ATTRIBUTES = {
    "keepdims": Attribute(Kind.BOOL, True),
    "noop_with_empty_axes": Attribute(Kind.BOOL, False),
}

_PRIMITIVE = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
_FLOAT16 = {"ReduceMax": FOLLOWS, "ReduceMin": FOLLOWS, "ReduceLogSumExp": IN_POWERS}

for _op, _kinds in {
    "ReduceSum": NUMBERS,
    "ReduceMean": NUMBERS,
    "ReduceProd": NUMBERS,
    "ReduceMax": REALS,
    "ReduceMin": REALS,
    "ReduceL1": NUMBERS,
    "ReduceL2": NUMBERS,
    "ReduceSumSquare": NUMBERS,
    "ReduceLogSum": FLOATS,
    "ReduceLogSumExp": FLOATS,
}.items():
    define(
        _op,
        inputs="data axes?",
        attributes=REDUCE_ATTRIBUTES,
        cost=per_input_element(2 + TRANSCENDENTAL if _op == "ReduceLogSumExp" else 1),
        traits=NEVER_NEGATIVE if _op in ("ReduceL1", "ReduceL2", "ReduceSumSquare") else NO_TRAITS,
        float16=_FLOAT16.get(_op, IN_SUMS),
        lacks=PRIMITIVE if _op in _PRIMITIVE else NOTHING,
    )(_reduce(_kinds))


def _infer_arg_extremum(call: Call) -> Sequence[TensorSpec]:
    data = call.spec(0)
    check_dtype(data, REALS)
    if data.shape is None:
        return (TensorSpec("int64", None),)
    shape = list(data.shape or (1,))
    axis = normalize_axis(call.attributes["axis"], len(shape))
    if shape[axis] == 0:
        raise ShapeError(
            f"axis {axis} of {data} has no elements to choose from", fix="feed a larger input"
        )
    if not data.shape:
        return (TensorSpec("int64", ()),)
    shape[axis : axis + 1] = [1] if call.attributes["keepdims"] else []
    return (TensorSpec("int64", shape),)


for _op in ("ArgMax", "ArgMin"):
    define(
        _op,
        inputs="data",
        attributes={
            "axis": Attribute(Kind.INT, 0),
            "keepdims": Attribute(Kind.BOOL, True),
            "select_last_index": Attribute(Kind.BOOL, False),
        },
        cost=per_input_element(1),
        traits=FLAT,
        float16=IN_STEPS,
        lacks=PRIMITIVE,
    )(_infer_arg_extremum)


def _infer_scan(call: Call) -> Sequence[TensorSpec]:
    data = call.spec(0)
    check_dtype(data, NUMBERS)
    check_rank(data, 1, "[n]")
    check_single(call, 1, "axis")
    axis = read_integers(call, 1, "axis")
    if axis is not None and data.shape is not None:
        normalize_axis(axis[0], len(data.shape))
    return (data,)


for _op in ("CumSum", "CumProd"):
    define(
        _op,
        inputs="x axis",
        attributes={
            "exclusive": Attribute(Kind.BOOL, False),
            "reverse": Attribute(Kind.BOOL, False),
        },
        float16=IN_SUMS,
        lacks=PRIMITIVE,
    )(_infer_scan)


def count_reduced(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


define(
    "Softmax",
    inputs="x",
    attributes=_LAST_AXIS,
    cost=_SOFTMAX_COST,
    inplace=FIRST,
    traits=NEVER_NEGATIVE,
    float16=IN_POWERS,
)(same_along_axis(FLOATS))
define("LogSoftmax", inputs="x", attributes=_LAST_AXIS, cost=_SOFTMAX_COST, float16=IN_POWERS)(
    same_along_axis(FLOATS)
)
define(
    "Hardmax",
    inputs="x",
    attributes=_LAST_AXIS,
    traits=NEVER_NEGATIVE | FLAT,
    float16=IN_STEPS,
    lacks=PRIMITIVE,
)(same_along_axis(FLOATS))
