"""Normalizations as reductions and arithmetic. Sources: ONNX's operators of these names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..values.dims import normalize_axis
from .rules import DecompositionBuilder, decomposition


@decomposition("LayerNormalization")
def layer_normalization(
    builder: DecompositionBuilder, x: str, scale: str, bias: str = ""
) -> tuple[str, ...] | None:
    axes = _list_axes(builder, x)
    if axes is None:
        return None
    centred, mean, inverse = _standardize(builder, x, axes)
    y = builder("Mul", builder("Mul", centred, inverse), scale)
    statistics = (builder.cast(one, "float32") for one in (mean, inverse))
    return (builder("Add", y, bias) if bias else y, *list(statistics)[: builder.n_outputs - 1])


@decomposition("RMSNormalization")
def rms_normalization(builder: DecompositionBuilder, x: str, scale: str) -> str | None:
    axes = _list_axes(builder, x)
    if axes is None:
        return None
    square = builder("ReduceMean", builder("Mul", x, x), axes, keepdims=True)
    root = builder("Sqrt", builder("Add", square, float(builder.attributes["epsilon"])))
    dtype = builder.spec(scale).dtype
    return builder("Mul", builder.cast(builder("Div", x, root), dtype), scale)


@decomposition("InstanceNormalization")
def instance_normalization(
    builder: DecompositionBuilder, x: str, scale: str, bias: str
) -> str | None:
    shape = builder.dims(x)
    if shape is None:
        return None
    centred, _, inverse = _standardize(builder, x, range(2, len(shape)))
    return _scale_channels(builder, builder("Mul", centred, inverse), scale, bias)


@decomposition("GroupNormalization")
def group_normalization(builder: DecompositionBuilder, x: str, scale: str, bias: str) -> str | None:
    if builder.dims(x) is None:
        return None
    lines = builder("Reshape", x, (0, builder.attributes["num_groups"], -1))
    centred, _, inverse = _standardize(builder, lines, [2])
    y = builder("Reshape", builder("Mul", centred, inverse), builder.lengths(x))
    return _scale_channels(builder, y, scale, bias)


@decomposition("BatchNormalization")
def batch_normalization(
    builder: DecompositionBuilder, x: str, scale: str, bias: str, mean: str, variance: str
) -> str | None:
    dtypes = {builder.spec(name).dtype for name in (x, scale, bias, mean, variance)}
    if builder.attributes["training_mode"] or len(dtypes) > 1:
        return None
    root = builder("Sqrt", builder("Add", variance, float(builder.attributes["epsilon"])))
    centred = builder("Sub", x, _align(builder, x, mean))
    return _scale_channels(builder, centred, builder("Div", scale, root), bias)


@decomposition("LpNormalization")
def lp_normalization(builder: DecompositionBuilder, x: str) -> str | None:
    shape = builder.dims(x)
    if shape is None:
        return None
    axes = [normalize_axis(builder.attributes["axis"], len(shape))]
    norm = builder(f"ReduceL{builder.attributes['p']}", x, axes, keepdims=True)
    empty = builder("Equal", norm, 0.0)
    return builder("Where", empty, builder.zero(x), builder("Div", x, norm))


@decomposition("MeanVarianceNormalization")
def mean_variance_normalization(builder: DecompositionBuilder, x: str) -> str | None:
    shape = builder.dims(x)
    if shape is None:
        return None
    axes = tuple(normalize_axis(axis, len(shape)) for axis in builder.attributes["axes"])
    centred = builder("Sub", x, builder("ReduceMean", x, axes, keepdims=True))
    variance = builder("ReduceMean", builder("Mul", centred, centred), axes, keepdims=True)
    return builder("Div", centred, builder("Add", builder("Sqrt", variance), 1e-9))


@decomposition("LRN")
def local_response_normalization(builder: DecompositionBuilder, x: str) -> str | None:
    shape, size = builder.dims(x), builder.attributes["size"]
    if shape is None or not isinstance(shape[1], int):
        return None
    squares = builder("Reshape", builder("Mul", x, x), (0, 1, shape[1], -1))
    before = (size - 1) // 2
    mean = builder(
        "AveragePool",
        squares,
        kernel_shape=(size, 1),
        pads=(before, 0, size - 1 - before, 0),
        count_include_pad=True,
    )
    scaled = builder(
        "Mul", builder("Reshape", mean, builder.lengths(x)), float(builder.attributes["alpha"])
    )
    base = builder("Add", scaled, float(builder.attributes["bias"]))
    return builder("Div", x, builder("Pow", base, float(builder.attributes["beta"])))


def _list_axes(builder: DecompositionBuilder, x: str) -> list[int] | None:
    """Return the axes of `x` from the axis of `builder` to the last; None if `x` may be empty."""
    shape = builder.dims(x)
    if shape is None:
        return None
    return list(range(normalize_axis(builder.attributes["axis"], len(shape)), len(shape)))


def _standardize(
    builder: DecompositionBuilder, x: str, axes: Sequence[int]
) -> tuple[str, str, str]:
    """Write `x` minus its mean over `axes`, the mean, and 1 / √(variance + ε) with `builder`."""
    if not axes:  # each element is its own mean
        centred, mean = builder("Sub", x, x), x
        variance = centred
    else:
        mean = builder("ReduceMean", x, tuple(axes), keepdims=True)
        centred = builder("Sub", x, mean)
        variance = builder(
            "ReduceMean", builder("Mul", centred, centred), tuple(axes), keepdims=True
        )
    root = builder("Sqrt", builder("Add", variance, float(builder.attributes["epsilon"])))
    return centred, mean, builder("Reciprocal", root)


def _scale_channels(builder: DecompositionBuilder, x: str, scale: str, bias: str) -> str:
    return builder("Add", builder("Mul", x, _align(builder, x, scale)), _align(builder, x, bias))


def _align(builder: DecompositionBuilder, x: str, vector: str) -> str:
    rank = builder.spec(x).rank or 2
    return vector if rank < 2 else builder("Reshape", vector, np.array([-1, *(1,) * (rank - 2)]))
