"""Matrix products of quantized tensors: ``(xp, inputs, outputs, attributes, scratch) -> Step``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional
from .exactness import (
    Factors,
    center,
    declare_multiplier,
    find_exact_dtype,
    is_constant,
    requantize,
    to_int32,
)
from .linear_algebra import bind_product
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order


def _align_rows(shape: Sequence[int]) -> Sequence[int]:
    if math.prod(shape) == 1:
        return ()
    return (*shape, 1) if len(shape) == 1 else shape


def _align_columns(shape: Sequence[int]) -> Sequence[int]:
    return () if math.prod(shape) == 1 else shape


_INTEGER = Factors(0, 1, 2, 3, (-2,), _align_columns)
_LINEAR = Factors(0, 3, 2, 5, (-2,), _align_columns)


def _make_factors(call: Call, on: Factors) -> Factors:
    return on if len(call.spec(on.right).static_shape) > 1 else on._replace(axes=(0,))


def _declare_scratch(call: Call, output: TensorSpec, on: Factors) -> list[TensorSpec]:
    """Return the scratch of `call`: sums like `output`, and its factors as floats.

    `on` says which inputs are the factors.
    """
    dtype = find_exact_dtype(call, _make_factors(call, on))
    shapes = [output.shape, call.spec(on.left).shape]
    if not is_constant(call, on):
        shapes.append(call.spec(on.right).shape)
    return [TensorSpec(dtype, shape) for shape in shapes]


def _multiply(
    xp: ArrayModule, factors: Arrays, zeros: Sequence[Array | None], scratch: Arrays
) -> tuple[Array, list[Step]]:
    """Return the sums of two `factors` less `zeros`, as a stack of matrices, and steps in `xp`.

    A right factor without a buffer in `scratch` is constant: it becomes floats here, once.
    """
    (a, b), (total, wide_a, *computed) = factors, scratch
    wide_b = computed[0] if computed else xp.empty(b.shape, total.dtype)
    widen_b = center(xp, b, zeros[1], _align_columns, wide_b)
    if not computed:
        widen_b()
    left = wide_a if a.ndim > 1 else wide_a[None]
    right = wide_b if b.ndim > 1 else wide_b[:, None]
    sums = _to_matrices(total, a, b)
    steps = [center(xp, a, zeros[0], _align_rows, wide_a), bind_product(xp, left, right, sums)]
    return sums, [widen_b, *steps] if computed else steps


def _to_matrices(y: Array, a: Array, b: Array) -> Array:
    """Return `y`, the product of `a` and `b`, with axes of length 1 where these are vectors."""
    with_columns = y if b.ndim > 1 else y[..., None]
    return with_columns if a.ndim > 1 else with_columns[..., None, :]


def _declare_integer_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return _declare_scratch(call, outputs[0], _INTEGER)


@kernel("MatMulInteger", scratch=_declare_integer_scratch, binds=True)
def matmul_integer(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (y,), zeros = outputs, (get_optional(inputs, 2), get_optional(inputs, 3))
    _, steps = _multiply(xp, inputs[:2], zeros, scratch)
    return run_in_order([*steps, *to_int32(xp, scratch[0], y, inputs[0].shape[-1])])


def _declare_linear_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    """Return the scratch for `call` and `outputs`: multiplier, float32 sums, and the product's."""
    shapes = [_align_rows(call.spec(1).static_shape), _align_columns(call.spec(4).static_shape)]
    multiplier = declare_multiplier([*shapes, _align_rows(call.spec(6).static_shape)])
    product = _declare_scratch(call, outputs[0], _LINEAR)
    if product[0].dtype == np.float32:
        return [multiplier, *product]
    return [multiplier, TensorSpec(np.float32, outputs[0].shape), *product]


@kernel("QLinearMatMul", scratch=_declare_linear_scratch, binds=True)
def qlinear_matmul(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    multiplier, *buffers = scratch
    copies = [buffers.pop(0)] if buffers[0].dtype != buffers[1].dtype else []
    total, steps = _multiply(xp, (a, b), (a_zero, b_zero), buffers)
    by_row, by_column = (
        [array.reshape(align(array.shape)) for array in arrays]
        for align, arrays in (
            (_align_rows, (a_scale, y_scale, y_zero)),
            (_align_columns, (b_scale,)),
        )
    )
    again = requantize(
        xp,
        total,
        (by_row[0], *by_column, by_row[1]),
        by_row[2],
        _to_matrices(outputs[0], a, b),
        [multiplier, *(_to_matrices(copy, a, b) for copy in copies)],
    )
    return run_in_order([*steps, *again])
