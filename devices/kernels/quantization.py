"""Quantization: real numbers to integers by a scale and a zero point, and back.

Quotients are rounded to the nearest integer, halves to even, before the zero point
is added. Kernels take ``(xp, inputs, outputs, attributes, scratch) -> Step``.
Source: ONNX QuantizeLinear-25.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.dtypes import dtype_of, get_largest, kind_of
from ...graph.values.tensor import Array, TensorSpec
from .arguments import get_optional, index_at, to_lines
from .precision import clamp, compute_dtype, find_limits
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order


def _choose_quotient_dtype(scale: np.dtype[Any], attributes: Attributes) -> np.dtype[Any]:
    if attributes["precision"] is not None:
        return dtype_of(attributes["precision"])
    return scale if kind_of(scale) == "f" else np.dtype(np.float64)


def _declare_quotients(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    dtype, shape = _choose_quotient_dtype(call.spec(1).dtype, call.attributes), call.spec(0).shape
    wide = compute_dtype(dtype)
    quotients = [TensorSpec(each, shape) for each in ((dtype,) if dtype == wide else (dtype, wide))]
    return [*quotients, *_declare_offsets(call, wide)]


def _declare_offsets(call: Call, dtype: np.dtype[Any]) -> Sequence[TensorSpec]:
    """Return the scratch for zero points of `call` in `dtype`, since integers would add slowly."""
    if not call.has(2) or call.spec(2).dtype.itemsize == 4:
        return ()
    return [TensorSpec(dtype, call.spec(2).shape)]


def _to_float_zero(
    xp: ArrayModule, inputs: Arrays, scratch: Arrays
) -> tuple[Array | None, Arrays, list[Step]]:
    zero = get_optional(inputs, 2)
    if zero is None or zero.dtype.itemsize == 4:
        return zero, scratch, []
    *others, copy = scratch
    return copy, others, [partial(xp.copyto, copy, zero)]


@kernel("QuantizeLinear", scratch=_declare_quotients, binds=True)
def quantize(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x, scale), (y,) = inputs[:2], outputs
    zero, buffers, steps = _to_float_zero(xp, inputs, scratch)
    parts = _iterate_granules(attributes, (x, y, *buffers), (scale, zero))
    for (source, target, quotient, *wide), (divisor, offset) in parts:
        if source.dtype != quotient.dtype:
            steps.append(partial(xp.copyto, quotient, source, casting="unsafe"))
            source = quotient
        steps.append(partial(xp.divide, source, divisor, out=quotient, casting="unsafe"))
        if wide:
            steps.append(partial(xp.copyto, wide[0], quotient))
        work = wide[0] if wide else quotient
        if kind_of(y.dtype) == "e":
            steps += _narrow(xp, work, target, attributes["saturate"])
        else:
            steps += round_to_integers(xp, work, offset, target)
    return run_in_order(steps)


def _narrow(xp: ArrayModule, work: Array, y: Array, saturate: bool) -> list[Step]:
    """Return the steps in `xp` that write `work` to `y`, floats of 8 bits; they may `saturate`."""
    write = partial(xp.copyto, y, work, casting="unsafe")
    most = get_largest(y.dtype)
    # Without saturation a cast turns too large values into the dtype's nan or infinity.
    return [partial(clamp, xp, work, -most, most, work), write] if saturate else [write]


def round_to_integers(xp: ArrayModule, work: Array, zero: Array | None, y: Array) -> list[Step]:
    """Return the steps in `xp` that write `work`, floats, rounded, plus `zero`, if any, to `y`.

    They saturate, and overwrite `work`. Sums are exact as far as they matter: in float32 up to 2²⁴.
    """
    steps: list[Step] = [partial(xp.rint, work, work)]
    if zero is not None:
        steps.append(partial(xp.add, work, zero, work))
    return [
        *steps,
        partial(clamp, xp, work, *find_limits(y.dtype), work),
        partial(xp.copyto, y, work, casting="unsafe"),
    ]


def _declare_differences(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    wide = compute_dtype(outputs[0].dtype)
    copies = [] if wide == outputs[0].dtype else [TensorSpec(wide, outputs[0].shape)]
    return [*copies, *_declare_offsets(call, wide)]


@kernel("DequantizeLinear", scratch=_declare_differences, binds=True)
def dequantize(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = (x - zero point) · scale; the difference is an integer's.
    (x, scale), (y,) = inputs[:2], outputs
    zero, buffers, steps = _to_float_zero(xp, inputs, scratch)
    parts = _iterate_granules(attributes, (x, y, *buffers), (scale, zero))
    for (source, target, *wide), (factor, offset) in parts:
        work = wide[0] if wide else target
        if offset is None:
            steps.append(partial(xp.copyto, work, source, casting="unsafe"))
        else:
            steps.append(partial(subtract_zero, xp, source, offset, work))
        steps.append(partial(xp.multiply, work, factor, out=work, casting="unsafe"))
        if wide:
            steps.append(partial(xp.copyto, target, work, casting="unsafe"))
    return run_in_order(steps)


def subtract_zero(xp: ArrayModule, x: Array, zero: Array, y: Array) -> None:
    """Write `x` - `zero` to float `y` in `xp`, exact where y's dtype has all of x's values.

    int32 numbers are subtracted as int32.
    """
    if x.dtype.itemsize < 4:
        xp.copyto(y, x)
        xp.subtract(y, zero, out=y)
    else:
        xp.copyto(y, x - zero, casting="unsafe")


def _iterate_granules(
    attributes: Attributes, tensors: Arrays, parameters: Sequence[Array | None]
) -> Iterator[tuple[list[Array], list[Array | None]]]:
    """Yield parts of `tensors`, and `parameters`, the scale first, shaped to repeat over them.

    There is one part, unless the last block along the axis in `attributes` is shorter than others.
    """
    scale, shape = parameters[0], tensors[0].shape
    assert scale is not None
    if scale.ndim < 2 and scale.size == 1:
        yield list(tensors), [_reshape(parameter, ()) for parameter in parameters]
        return
    axis, block = attributes["axis"] % len(shape), attributes["block_size"]
    if not block:
        lines = [to_lines(tensor, axis) for tensor in tensors]
        yield lines, [_reshape(parameter, (-1, 1)) for parameter in parameters]
        return
    # Two parts, for the last block may be shorter, and then they have no common shape.
    full = shape[axis] // block
    for cells, size, places in (
        (slice(full * block), block, slice(full)),
        (slice(full * block, None), shape[axis] - full * block, slice(full, None)),
    ):
        if size:
            by_block = (*shape[:axis], places.indices(scale.shape[axis])[1] - (places.start or 0))
            split = (*by_block, size, *shape[axis + 1 :])
            yield (
                [tensor[index_at(axis, cells)].reshape(split) for tensor in tensors],
                [_repeat_blocks(parameter, axis, places) for parameter in parameters],
            )


def _reshape(parameter: Array | None, shape: Sequence[int]) -> Array | None:
    return None if parameter is None else parameter.reshape(shape)


def _repeat_blocks(parameter: Array | None, axis: int, places: slice) -> Array | None:
    if parameter is None:
        return None
    chosen = parameter[index_at(axis, places)]
    return chosen.reshape(*chosen.shape[: axis + 1], 1, *chosen.shape[axis + 1 :])


def _declare_range_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    return [TensorSpec(np.float32, call.spec(0).shape), *[TensorSpec(np.float32, ())] * 2]


@kernel("DynamicQuantizeLinear", scratch=_declare_range_scratch, binds=True)
def dynamic_quantize(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = x quantized to uint8 by the scale and zero point that just cover its range and 0. Where
    # all is 0 the scale may be anything but 0; it is 1, as ONNX Runtime has it.
    (x,), (y, scale, zero), (work, low, offset) = inputs, outputs, scratch
    if not x.size:
        return run_in_order((partial(scale.fill, 1), partial(zero.fill, 0)))

    def measure() -> None:
        # The range has 0 in it, so that zeros, as padding is, are exact.
        xp.minimum(x.min(out=low), 0, out=low)
        xp.maximum(x.max(out=scale), 0, out=scale)
        xp.subtract(scale, low, out=scale)
        xp.divide(scale, 255, out=scale)
        xp.copyto(scale, 1, where=scale == 0)
        xp.divide(low, scale, out=offset)
        xp.negative(offset, out=offset)

    divide = partial(xp.divide, x, scale, out=work)
    return run_in_order(
        (
            measure,
            *round_to_integers(xp, offset, None, zero),
            divide,
            *round_to_integers(xp, work, zero, y),
        )
    )
