"""Comparisons, boolean algebra and selection."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, InferRule, define
from ..core.traits import (
    COMMUTATIVE,
    ELEMENTWISE,
    FOLLOWS,
    IN_STEPS,
    NO_FLOATS,
    NO_SLOPE_OF_TRUTH,
    NOTHING,
    PRIMITIVE,
)
from ..values.tensor import TensorSpec
from .inputs import BOOLS, FLOATS, NUMBERS, REALS_OR_TEXT, check_dtype, find_common_dtype
from .rules import EITHER, FIRST, broadcast_of, broadcast_shape, same_of


def _to_bool(kinds: str) -> InferRule:
    """Return the rule for a bool output of the shape of an input, which has a dtype of `kinds`."""

    def infer(call: Call) -> Sequence[TensorSpec]:
        check_dtype(call.spec(0), kinds)
        return (TensorSpec("bool", call.spec(0).shape),)

    return infer


# Overwriting an input is only considered where the dtypes agree: for Equal, on booleans.
define(
    "Equal",
    inputs="a b",
    inplace=EITHER,
    traits=ELEMENTWISE | COMMUTATIVE,
    float16=IN_STEPS,
    lacks=PRIMITIVE | NO_SLOPE_OF_TRUTH,
)(broadcast_of(REALS_OR_TEXT, "bool"))

for _op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
    define(_op, inputs="a b", traits=ELEMENTWISE, float16=IN_STEPS)(broadcast_of(NUMBERS, "bool"))

for _op in ("And", "Or", "Xor"):
    define(
        _op,
        inputs="a b",
        inplace=EITHER,
        traits=ELEMENTWISE | COMMUTATIVE,
        float16=NO_FLOATS,
        lacks=NOTHING if _op == "Xor" else PRIMITIVE | NO_SLOPE_OF_TRUTH,
    )(broadcast_of(BOOLS))

define(
    "Not",
    inputs="x",
    inplace=FIRST,
    traits=ELEMENTWISE,
    float16=NO_FLOATS,
    lacks=PRIMITIVE | NO_SLOPE_OF_TRUTH,
)(same_of(BOOLS))
define("IsNaN", inputs="x", traits=ELEMENTWISE, float16=IN_STEPS)(_to_bool(FLOATS))
define(
    "IsInf",
    inputs="x",
    attributes={
        "detect_negative": Attribute(Kind.BOOL, True),
        "detect_positive": Attribute(Kind.BOOL, True),
    },
    traits=ELEMENTWISE,
    float16=IN_STEPS,
)(_to_bool(FLOATS))


@define(
    "Where",
    inputs="condition x y",
    inplace=((0, 1),),
    traits=ELEMENTWISE,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)
def infer_where(call: Call) -> Sequence[TensorSpec]:
    condition, x, y = (call.spec(index) for index in range(3))
    check_dtype(condition, BOOLS, "the condition")
    return (TensorSpec(find_common_dtype((x, y)), broadcast_shape((condition, x, y))),)
