"""Elementwise arithmetic: an output element from the elements at the same place."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, define, free
from ..core.traits import (
    ACTIVATION,
    COMMUTATIVE,
    ELEMENTWISE,
    FLAT,
    FOLLOWS,
    IN_POWERS,
    IN_QUOTIENTS,
    IN_SLOPES,
    IN_STEPS,
    IN_SUMS,
    MOVES,
    NEVER_NEGATIVE,
    NO_FLOATS,
    NO_SLOPE_OF_BITS,
    NO_TRAITS,
    NOTHING,
    OWN_DTYPES,
    PRIMITIVE,
    ROUNDS,
)
from ..values.errors import ShapeError
from ..values.tensor import TensorSpec
from .inputs import (
    ANY,
    BOOLS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    check_dtype,
    check_single,
    find_common_dtype,
    list_present,
)
from .rules import (
    EITHER,
    FIRST,
    TRANSCENDENTAL,
    broadcast_of,
    broadcast_shape,
    per_element,
    same,
    same_of,
)

for _op, _more, _float16 in (
    ("Add", COMMUTATIVE, FOLLOWS),
    ("Sub", NO_TRAITS, FOLLOWS),
    ("Mul", COMMUTATIVE, FOLLOWS),
    ("Div", NO_TRAITS, IN_QUOTIENTS),
):
    define(
        _op,
        inputs="a b",
        inplace=EITHER,
        traits=ELEMENTWISE | _more,
        float16=_float16,
        lacks=NOTHING if _op == "Sub" else PRIMITIVE,
    )(broadcast_of(NUMBERS))

for _op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    define(
        _op,
        inputs="a b",
        inplace=EITHER,
        traits=ELEMENTWISE | COMMUTATIVE,
        float16=NO_FLOATS,
        lacks=PRIMITIVE | NO_SLOPE_OF_BITS,
    )(broadcast_of(INTEGERS))

define(
    "BitShift",
    inputs="x y",
    attributes={"direction": Attribute(Kind.STRING, choices=("LEFT", "RIGHT"))},
    cost=per_element(3),
    traits=ELEMENTWISE,
    float16=NO_FLOATS,
    lacks=PRIMITIVE | NO_SLOPE_OF_BITS,
)(broadcast_of(INTEGERS))

define(
    "Mod",
    inputs="a b",
    attributes={"fmod": Attribute(Kind.BOOL, False)},
    inplace=EITHER,
    traits=ELEMENTWISE,
    float16=IN_STEPS,
    lacks=PRIMITIVE,
)(broadcast_of(NUMBERS))

for _op, _dtypes, _float16 in (
    ("Max", NUMBERS, FOLLOWS),
    ("Min", NUMBERS, FOLLOWS),
    ("Sum", FLOATS, FOLLOWS),
    ("Mean", FLOATS, IN_SUMS),
):
    define(
        _op,
        inputs="x+",
        cost=lambda call, outputs: len(call.inputs) * outputs[0].size,
        inplace=EITHER,
        traits=ELEMENTWISE,
        float16=_float16,
    )(broadcast_of(_dtypes))

for _op, _more, _float16 in (("Abs", NEVER_NEGATIVE, FOLLOWS), ("Sign", FLAT, IN_STEPS)):
    define(
        _op,
        inputs="x",
        inplace=FIRST,
        traits=ELEMENTWISE | _more,
        float16=_float16,
        lacks=PRIMITIVE,
    )(same_of(NUMBERS))

define("Neg", inputs="x", inplace=FIRST, traits=ELEMENTWISE, float16=FOLLOWS)(same_of(SIGNED))
define(
    "BitwiseNot",
    inputs="x",
    inplace=FIRST,
    traits=ELEMENTWISE,
    float16=NO_FLOATS,
    lacks=PRIMITIVE | NO_SLOPE_OF_BITS,
)(same_of(INTEGERS))

for _op in ("Sqrt", "Reciprocal"):
    define(
        _op,
        inputs="x",
        inplace=FIRST,
        traits=ELEMENTWISE,
        float16=IN_QUOTIENTS,
        lacks=NOTHING if _op == "Reciprocal" else PRIMITIVE,
    )(same_of(FLOATS))

for _op in ("Floor", "Ceil", "Round"):
    define(
        _op,
        inputs="x",
        inplace=FIRST,
        traits=ELEMENTWISE | ROUNDS | FLAT,
        float16=IN_STEPS,
        lacks=PRIMITIVE,
    )(same_of(FLOATS))

for _op, _traits, _float16 in (
    *((op, ELEMENTWISE, IN_POWERS) for op in ("Log", "Sinh")),
    *((op, ELEMENTWISE | NEVER_NEGATIVE, IN_POWERS) for op in ("Exp", "Cosh")),
    *((op, ELEMENTWISE, IN_SLOPES) for op in ("Sin", "Cos", "Tan", "Asin", "Atanh")),
    *((op, ELEMENTWISE | NEVER_NEGATIVE, IN_SLOPES) for op in ("Acos", "Acosh")),
    *((op, ELEMENTWISE, FOLLOWS) for op in ("Atan", "Asinh")),
    # The only one of these that devices finish a product with.
    ("Tanh", ACTIVATION, FOLLOWS),
):
    define(
        _op,
        inputs="x",
        cost=per_element(TRANSCENDENTAL),
        inplace=FIRST,
        traits=_traits,
        float16=_float16,
        lacks=NOTHING if _op == "Tanh" else PRIMITIVE,
    )(same_of(FLOATS))

define(
    "Erf",
    inputs="x",
    cost=per_element(24),
    inplace=FIRST,
    traits=ELEMENTWISE,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)(same_of(FLOATS))

define(
    "Identity",
    inputs="x",
    cost=free,
    views=FIRST,
    traits=ELEMENTWISE | MOVES,
    float16=FOLLOWS,
    lacks=PRIMITIVE,
)(same)


# Not in place: the kernel reads x again after it has written y.
@define(
    "Pow",
    inputs="x y",
    cost=per_element(2 * TRANSCENDENTAL),
    traits=ELEMENTWISE,
    float16=IN_POWERS,
    lacks=PRIMITIVE,
)
def infer_power(call: Call) -> Sequence[TensorSpec]:
    base, exponent = call.spec(0), call.spec(1)
    check_dtype(base, NUMBERS, "the base")
    check_dtype(exponent, NUMBERS, "the exponent")
    return (TensorSpec(base.dtype, broadcast_shape((base, exponent))),)


@define(
    "Clip",
    inputs="x min? max?",
    cost=per_element(2),
    inplace=FIRST,
    traits=ACTIVATION,
    float16=FOLLOWS,
)
def infer_clip(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like x; the bounds are scalars of its dtype."""
    x, *bounds = list_present(call)
    find_common_dtype((x, *bounds), NUMBERS)
    for bound in bounds:
        # Models have them as [1] too: any shape of one element will do.
        if bound.is_static and bound.size != 1:
            raise ShapeError(f"a bound is {bound}, but must be a scalar", fix="use Max and Min")
    return (x,)


CAST_ATTRIBUTES = {
    "saturate": Attribute(Kind.BOOL, True),
    "round_mode": Attribute(Kind.STRING, "up", choices=("up", "down", "nearest")),
}
"""Both only matter for floats of 8 bits, the second one for a kind of which plait has none."""


@define(
    "Cast",
    inputs="x",
    attributes={"to": Attribute(Kind.DTYPE), **CAST_ATTRIBUTES},
    traits=ELEMENTWISE,
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_cast(call: Call) -> Sequence[TensorSpec]:
    check_dtype(call.spec(0), ANY)
    return (TensorSpec(call.attributes["to"], call.spec(0).shape),)


@define("CastLike", inputs="x target_type", attributes=CAST_ATTRIBUTES, float16=OWN_DTYPES)
def infer_cast_like(call: Call) -> Sequence[TensorSpec]:
    return (TensorSpec(call.spec(1).dtype, call.spec(0).shape),)


@define(
    "BitCast",
    inputs="x",
    attributes={"to": Attribute(Kind.DTYPE)},
    cost=free,
    views=FIRST,
    traits=ELEMENTWISE,
    float16=OWN_DTYPES,
    lacks=PRIMITIVE | NO_SLOPE_OF_BITS,
)
def infer_bit_cast(call: Call) -> Sequence[TensorSpec]:
    x = call.spec(0)
    made = TensorSpec(call.attributes["to"], x.shape)
    if made.dtype.itemsize != x.dtype.itemsize:
        raise ShapeError(
            f"the bits of {x} cannot be read as {made.dtype.name}",
            fix="use a dtype of the same size, or Cast",
        )
    return (made,)


@define(
    "Dropout",
    inputs="x ratio? training_mode?",
    outputs="y mask?",
    attributes={"seed": Attribute(Kind.INT, None)},
    cost=free,
    views=FIRST,  # where it drops something it is written with Philox before views matter
    draws=lambda inputs: len(inputs) > 2 and bool(inputs[2]),
    float16=OWN_DTYPES,
    lacks=PRIMITIVE,
)
def infer_dropout(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: like x, and a mask; nothing is dropped outside of training."""
    x = call.spec(0)
    check_dtype(x, FLOATS)
    check_single(call, 1, "the ratio")
    check_single(call, 2, "training_mode")
    if call.has(1):
        check_dtype(call.spec(1), FLOATS, "the ratio")
    if call.has(2):
        check_dtype(call.spec(2), BOOLS, "training_mode")
        ratio, training = call.value(1) if call.has(1) else None, call.value(2)
        # Where it only may train, a wrong ratio is a mistake all the same.
        drops = training is None or training.any()
        if ratio is not None and drops and not ((ratio >= 0) & (ratio <= 1)).all():
            raise ShapeError(
                f"the ratio is {ratio.item():g}, which is not a share of what there is",
                fix="use a number from 0 to 1",
            )
    return (x, TensorSpec("bool", x.shape))
