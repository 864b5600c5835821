"""Nodes that turn numbers into bytes, and multiply bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from single_node import AnyArray

from .contraction import matmul_shapes
from .drawing import (
    FINITE,
    FLOATS,
    Draw,
    NodeCase,
    Strategy,
    an_axis,
    choose,
    few,
    flag,
    integer,
    ordinary,
    rng_of,
    shape,
    tensor,
    wide,
)
from .windows import Sliding, counts_of, sliding

BYTES = ("int8", "uint8")
QUANTIZED = (*BYTES, "int16", "uint16")


def scales(draw: Draw, dtype: str, of: Sequence[int]) -> AnyArray:
    """Draw powers of two, whose quotients and products are exact, so that halves stay halves."""
    return np.asarray(2.0 ** rng_of(draw).integers(-3, 3, tuple(of))).astype(dtype)


def granularity(draw: Draw, of: Sequence[int]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw the shape of scales for a tensor, and the attributes that go with it."""
    how = choose(draw, ("tensor", "axis", "block")) if of else "tensor"
    if how == "tensor":
        return choose(draw, ((), (1,))), {}
    axis = an_axis(draw, len(of))
    if how == "axis":
        return (of[axis],), {"axis": axis}
    size, blocked = integer(draw, 1, 3), list(of)
    blocked[axis] = math.ceil(of[axis] / size)
    return tuple(blocked), {"axis": axis, "block_size": size}


def quantize(draw: Draw) -> NodeCase:
    of = shape(draw)
    scale_shape, attributes = granularity(draw, of)
    to, source = choose(draw, QUANTIZED), choose(draw, (*FLOATS, "int32"))
    palettes = (few, ordinary, wide) if source in FLOATS else (few, ordinary)
    x = tensor(draw, source, of, palettes)
    precise = "float32" if source == "int32" else source
    scale = np.asarray(rng_of(draw).uniform(0.05, 3, scale_shape)).astype(precise)
    scale = scale if flag(draw) else scales(draw, precise, scale_shape)
    zero = tensor(draw, to, scale_shape) if flag(draw) else None
    if zero is None and flag(draw):
        attributes["output_dtype"] = to
    return NodeCase([x, scale, zero], attributes)


def dequantize(draw: Draw) -> NodeCase:
    of, source = shape(draw), choose(draw, (*QUANTIZED, "int32"))
    scale_shape, attributes = granularity(draw, of)
    palettes = (few, ordinary) if source == "int32" else FINITE
    zero = tensor(draw, source, scale_shape, palettes) if flag(draw) else None
    if flag(draw):
        attributes["output_dtype"] = choose(draw, FLOATS)
    scale = tensor(draw, choose(draw, FLOATS), scale_shape, (few, ordinary))
    x = tensor(draw, source, of, palettes)
    return NodeCase([x, scale, zero], attributes, ulps=2)


def dynamic_quantize(draw: Draw) -> NodeCase:
    x = tensor(draw, "float32", shape(draw, 1, least=1), (few, ordinary, wide))
    return NodeCase([x], n_outputs=3, ulps=1)


def _zero(draw: Draw, dtype: str, *shapes: Sequence[int]) -> AnyArray:
    return tensor(draw, dtype, choose(draw, ((), (1,), *map(tuple, shapes))), FINITE)


def _rows(of: Sequence[int]) -> list[tuple[int, ...]]:
    return [(of[-2],), (*of[:-1], 1)] if len(of) > 1 else []


def _columns(of: Sequence[int]) -> list[tuple[int, ...]]:
    return [(of[-1],), (*of[:-2], 1, of[-1])] if len(of) > 1 else []


def matmul_integer(draw: Draw) -> NodeCase:
    left, right = matmul_shapes(draw)
    dtypes = choose(draw, BYTES), choose(draw, BYTES)
    zeros = [
        _zero(draw, dtype, *of) if flag(draw) else None
        for dtype, of in zip(dtypes, (_rows(left), _columns(right)), strict=True)
    ]
    return NodeCase([tensor(draw, dtypes[0], left), tensor(draw, dtypes[1], right), *zeros])


def qlinear_matmul(draw: Draw) -> NodeCase:
    left, right = matmul_shapes(draw)
    dtypes, y = (choose(draw, BYTES), choose(draw, BYTES)), choose(draw, BYTES)
    scale = choose(draw, FLOATS[1:])
    inputs: list[AnyArray] = []
    sides = zip(dtypes, (left, right), (_rows(left), _columns(right)), strict=True)
    for dtype, of, lines in sides:
        form = choose(draw, ((), (1,), *lines))
        inputs += [tensor(draw, dtype, of), scales(draw, scale, form), tensor(draw, dtype, form)]
    inputs += [scales(draw, scale, ()) * 16, tensor(draw, y, ())]
    return NodeCase(inputs)


def _image_and_weights(
    draw: Draw, dtypes: Sequence[str]
) -> tuple[Sliding, dict[str, Any], AnyArray, AnyArray]:
    window, group = sliding(draw), choose(draw, (1, 1, 2))
    counts_of(window)
    channels, features = (group * integer(draw, 1, 2) for _ in range(2))
    x = tensor(draw, dtypes[0], (integer(draw, 0, 2), channels, *window.spatial))
    w = tensor(draw, dtypes[1], (features, channels // group, *window.kernel))
    return window, {**window.attributes, "group": group}, x, w


def conv_integer(draw: Draw) -> NodeCase:
    dtypes = choose(draw, BYTES), choose(draw, BYTES)
    _, attributes, x, w = _image_and_weights(draw, dtypes)
    zeros = [
        _zero(draw, dtypes[0]) if flag(draw) else None,
        _zero(draw, dtypes[1], w.shape[:1]) if flag(draw) else None,
    ]
    return NodeCase([x, w, *zeros], attributes)


def qlinear_conv(draw: Draw) -> NodeCase:
    dtypes, y = (choose(draw, BYTES), choose(draw, BYTES)), choose(draw, BYTES)
    _, attributes, x, w = _image_and_weights(draw, dtypes)
    form = choose(draw, ((), (1,), w.shape[:1]))
    bias = tensor(draw, "int32", w.shape[:1], (few, ordinary)) if flag(draw) else None
    inputs = [
        *(x, scales(draw, "float32", ()), tensor(draw, dtypes[0], ())),
        *(w, scales(draw, "float32", form), tensor(draw, dtypes[1], form)),
        *(scales(draw, "float32", ()) * 64, tensor(draw, y, ()), bias),
    ]
    return NodeCase(inputs, attributes)


STRATEGIES: dict[str, Strategy] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
}
