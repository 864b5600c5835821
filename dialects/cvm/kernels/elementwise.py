"""Exact elementwise kernels: int32 ufuncs that wrap where the operator does, else wider dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....devices.kernels.blocks import register_blockwise
from ....devices.kernels.elementwise import bind_ufunc, relu
from ....devices.kernels.precision import clamp
from ....devices.kernels.registry import ArrayModule, Arrays, Step, kernel, run_in_order
from ....graph.core.attribute import Attributes
from ....graph.core.operator import Call, Specs
from ....graph.values.tensor import Array, TensorSpec
from ..precision import compute_limit

UFUNCS = {
    "cvm.broadcast_add": "add",
    "cvm.broadcast_sub": "subtract",
    "cvm.broadcast_mul": "multiply",
    "cvm.broadcast_greater": "greater",
    "cvm.elemwise_add": "add",
    "cvm.elemwise_sub": "subtract",
    "cvm.abs": "absolute",
    "cvm.negative": "negative",
}
"""Operators that are one ufunc modulo 2³²: |-2³¹| is -2³¹."""


for _op, _name in UFUNCS.items():
    kernel(_op, binds=True)(partial(bind_ufunc, _name))


@kernel("cvm.broadcast_max", binds=True)
def maximum(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    return partial(xp.maximum, *inputs, out=outputs[0])


def _list_division_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    # Divisors, masks of divisors 0, quotients, masks of quotients 2³¹.
    divisors, quotients = call.spec(1).shape, outputs[0].shape
    return [
        TensorSpec("float64", divisors),
        TensorSpec("bool", divisors),
        TensorSpec("float64", quotients),
        TensorSpec("bool", quotients),
    ]


@kernel("cvm.broadcast_div", scratch=_list_division_scratch, binds=True)
def divide(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # Truncating the rounded quotient of doubles is exact: another quotient of such integers is at
    # least 1/|b| away from the next whole number, and the rounding error is under 2⁻²¹/|b|. a / 0
    # is 0, and -2³¹ / -1 is -2³¹.
    (a, b), (y,) = inputs, outputs
    divisors, is_zero, quotients, is_over = scratch
    return run_in_order(
        (
            partial(xp.equal, b, 0, out=is_zero),
            partial(xp.copyto, divisors, b),
            partial(xp.copyto, divisors, np.inf, where=is_zero),
            partial(xp.divide, a, divisors, out=quotients),
            partial(xp.trunc, quotients, out=quotients),
            partial(xp.equal, quotients, 2.0**31, out=is_over),
            partial(xp.copyto, quotients, -(2.0**31), where=is_over),
            partial(xp.copyto, y, quotients, casting="unsafe"),
        )
    )


kernel("cvm.relu", binds=True)(relu)


@kernel("cvm.clip", binds=True)
def clip(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    return partial(clamp, xp, inputs[0], attributes["a_min"], attributes["a_max"], outputs[0])


@kernel("cvm.cvm_clip", binds=True)
def clip_to_bits(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    bound = compute_limit(attributes["precision"])
    return partial(clamp, xp, inputs[0], -bound, bound, outputs[0])


@register_blockwise("cvm.right_shift", temporaries=1)
def shift_right(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, odd: Array) -> None:
    # y = x / 2ᵇ rounded, halves up, is ⌊(t + 1) / 2⌋ = ⌊t / 2⌋ + (t mod 2) with t = ⌊x / 2ᵇ⁻¹⌋,
    # which never overflows.
    bound = compute_limit(attributes["precision"])
    xp.right_shift(x, attributes["shift_bit"] - 1, out=y)
    xp.bitwise_and(y, 1, out=odd)
    xp.right_shift(y, 1, out=y)
    xp.add(y, odd, out=y)
    xp.clip(y, -bound, bound, out=y)


@register_blockwise("cvm.left_shift", temporaries=1, temporary="int64")
def shift_left(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, wide: Array) -> None:
    bound = compute_limit(attributes["precision"])
    xp.copyto(wide, x)
    xp.left_shift(wide, attributes["shift_bit"], out=wide)
    xp.clip(wide, -bound, bound, out=wide)
    xp.copyto(y, wide, casting="unsafe")


@register_blockwise("cvm.precision", temporaries=1, temporary="float64")
def count_bits(xp: ArrayModule, x: Array, y: Array, attributes: Attributes, wide: Array) -> None:
    # The bit length of |x| is the exponent of |x| = m·2ᵉ with ½ ≤ m < 1.
    xp.copyto(wide, x)
    xp.absolute(wide, out=wide)
    xp.frexp(wide, wide, out=y)
    xp.maximum(y, 1, out=y)


def _list_condition_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return [TensorSpec("bool", call.spec(0).shape)]


@kernel("cvm.where", scratch=_list_condition_scratch, binds=True)
def where(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (condition, x, other), (y,), (chosen,) = inputs, outputs, scratch
    each = chosen.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
    return run_in_order(
        (
            partial(xp.not_equal, condition, 0, out=chosen),
            partial(xp.copyto, y, other),
            partial(xp.copyto, y, x, where=each),
        )
    )
