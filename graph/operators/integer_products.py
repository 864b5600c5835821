"""Products of quantized tensors, as exact integers or requantized."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.attribute import Attribute, Kind
from ..core.operator import Call, Specs, define
from ..core.traits import IN_SCALES, NO_FLOATS, PRODUCT
from ..values.errors import ShapeError
from ..values.tensor import Dim, Shape, TensorSpec
from .convolution import infer_conv_shape
from .inputs import FLOATS, check_dtype, may_equal
from .linear_algebra import infer_product_shape
from .quantization import check_named, check_shape, check_zero_point, is_single
from .windows import WINDOW_ATTRIBUTES

BYTES = ("int8", "uint8")

_WINDOW = {**WINDOW_ATTRIBUTES, "group": Attribute(Kind.INT, 1, minimum=1)}


def _estimate_product(call: Call, outputs: Specs) -> int:
    return 2 * outputs[0].size * call.spec(0).static_shape[-1]


def _estimate_conv(call: Call, outputs: Specs, weights: int) -> int:
    return 2 * outputs[0].size * math.prod(call.spec(weights).static_shape[1:])


@define(
    "MatMulInteger",
    inputs="a b a_zero_point? b_zero_point?",
    cost=_estimate_product,
    traits=PRODUCT,
    float16=NO_FLOATS,
)
def infer_matmul_integer(call: Call) -> Sequence[TensorSpec]:
    """Infer the int32 product of `call` by numpy's rules; zero points may be per row or column."""
    _check_factors(call, 0, 1, 2, 3)
    _check_lines(call, (2,), call.spec(0), -2)
    _check_lines(call, (3,), call.spec(1), -1)
    return (TensorSpec("int32", infer_product_shape(call.spec(0), call.spec(1))),)


@define(
    "QLinearMatMul",
    inputs="a a_scale a_zero_point b b_scale b_zero_point y_scale y_zero_point",
    cost=_estimate_product,
    traits=PRODUCT,
    float16=IN_SCALES,
)
def infer_qlinear_matmul(call: Call) -> Sequence[TensorSpec]:
    """Infer the product of `call` by numpy's rules, in the dtype of its zero point."""
    _check_factors(call, 0, 3, 2, 5)
    _check_scales(call)
    _check_lines(call, (1, 2), call.spec(0), -2)
    _check_lines(call, (4, 5), call.spec(3), -1)
    made = TensorSpec(call.spec(7).dtype, infer_product_shape(call.spec(0), call.spec(3)))
    check_named(made, BYTES, "the output's zero point")
    _check_lines(call, (6, 7), made, -2)
    return (made,)


@define(
    "ConvInteger",
    inputs="x w x_zero_point? w_zero_point?",
    attributes=_WINDOW,
    cost=lambda call, outputs: _estimate_conv(call, outputs, 1),
    traits=PRODUCT,
    float16=NO_FLOATS,
)
def infer_conv_integer(call: Call) -> Sequence[TensorSpec]:
    """Infer the int32 output of `call`: like Conv; the weights' zero point may be per feature."""
    _check_factors(call, 0, 1, 2, 3)
    x, w = call.spec(0), call.spec(1)
    shape = infer_conv_shape(x, w, call.attributes)
    _check_tensor(call, (2,))
    _check_features(call, (3,), shape)
    return (TensorSpec("int32", shape),)


@define(
    "QLinearConv",
    inputs="x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point b?",
    attributes=_WINDOW,
    cost=lambda call, outputs: _estimate_conv(call, outputs, 3),
    traits=PRODUCT,
    float16=IN_SCALES,
)
def infer_qlinear_conv(call: Call) -> Sequence[TensorSpec]:
    """Infer the output of `call`: like Conv, in the dtype of its zero point; the bias is int32."""
    _check_factors(call, 0, 3, 2, 5)
    _check_scales(call)
    shape = infer_conv_shape(call.spec(0), call.spec(3), call.attributes)
    _check_tensor(call, (1, 2, 6, 7))
    _check_features(call, (4, 5), shape)
    if call.has(8):
        check_named(call.spec(8), ("int32",), "the bias")
        check_shape(call.spec(8), None if shape is None else shape[1:2], "the bias")
    made = TensorSpec(call.spec(7).dtype, shape)
    check_named(made, BYTES, "the output's zero point")
    return (made,)


def _check_factors(call: Call, left: int, right: int, left_zero: int, right_zero: int) -> None:
    """Raise ShapeError unless inputs `left` and `right` are bytes, as their zero points."""
    for index, zero in ((left, left_zero), (right, right_zero)):
        check_named(call.spec(index), BYTES, "a factor")
        check_zero_point(call, zero, call.spec(index), "a zero point")


def _check_scales(call: Call) -> None:
    for index in (1, 4, 6):
        check_dtype(call.spec(index), FLOATS, "a scale")


def _check_tensor(call: Call, indices: Sequence[int]) -> None:
    for index in indices:
        if call.has(index) and not is_single(call.spec(index).shape or ()):
            _refuse(call.spec(index), "one number")


def _check_features(call: Call, indices: Sequence[int], shape: Shape | None) -> None:
    for index in indices:
        _check_vector(call, index, None if shape is None else shape[1], "one number per feature")


def _check_lines(call: Call, indices: Sequence[int], factor: TensorSpec, axis: int) -> None:
    """Raise ShapeError unless inputs `indices` of `call` have one number, or one per line.

    Lines of `factor` are rows for `axis` -2, and columns for -1.
    """
    line = "row" if axis == -2 else "column"
    for index in indices:
        if factor.shape is None or not call.has(index):
            continue
        if len(factor.shape) < 2:
            _check_tensor(call, (index,))
        elif (call.spec(index).rank or 0) > 1:
            wanted = list(factor.shape)
            wanted[-3 - axis] = 1
            check_shape(call.spec(index), tuple(wanted), f"a {line}'s number")
        else:
            _check_vector(call, index, factor.shape[axis], f"one number per {line}")


def _check_vector(call: Call, index: int, length: Dim | None, wanted: str) -> None:
    if not call.has(index) or call.spec(index).shape is None:
        return
    shape = call.spec(index).shape or ()
    if is_single(shape):
        return
    if len(shape) != 1 or (length is not None and not may_equal(shape[0], length)):
        _refuse(call.spec(index), f"one number, or {wanted}")


def _refuse(spec: TensorSpec, wanted: str) -> None:
    raise ShapeError(f"a scale or zero point is {spec}, not {wanted}", fix="reshape it")
