"""Normalizations in reductions and arithmetic.  Sources: ONNX's operators of these names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dims import normalise_axis
from .rules import Draft, expands


@expands("LayerNormalization")
def layer_normalization(draft: Draft, x: str, scale: str, bias: str = "") -> tuple[str, ...] | None:
    """(x - mean) / √(variance + epsilon) · scale + bias, over the axes from `axis` on."""
    axes = _axes_from(draft, x)
    if axes is None:
        return None
    centred, mean, inverse = _standard(draft, x, axes)
    y = draft("Mul", draft("Mul", centred, inverse), scale)
    statistics = (draft.cast(one, "float32") for one in (mean, inverse))
    return (draft("Add", y, bias) if bias else y, *list(statistics)[: draft.n_outputs - 1])


@expands("RMSNormalization")
def rms_normalization(draft: Draft, x: str, scale: str) -> str | None:
    """X / √(mean of squares + epsilon) · scale."""
    axes = _axes_from(draft, x)
    if axes is None:
        return None
    square = draft("ReduceMean", draft("Mul", x, x), axes, keepdims=True)
    root = draft("Sqrt", draft("Add", square, float(draft.attributes["epsilon"])))
    dtype = draft.spec(scale).dtype
    return draft("Mul", draft.cast(draft("Div", x, root), dtype), scale)


@expands("InstanceNormalization")
def instance_normalization(draft: Draft, x: str, scale: str, bias: str) -> str | None:
    """As LayerNormalization, over each plane of a channel."""
    shape = draft.dims(x)
    if shape is None:
        return None
    centred, _, inverse = _standard(draft, x, range(2, len(shape)))
    return _per_channel(draft, draft("Mul", centred, inverse), scale, bias)


@expands("GroupNormalization")
def group_normalization(draft: Draft, x: str, scale: str, bias: str) -> str | None:
    """As LayerNormalization, over the planes of each group of channels."""
    if draft.dims(x) is None:
        return None
    lines = draft("Reshape", x, (0, draft.attributes["num_groups"], -1))
    centred, _, inverse = _standard(draft, lines, [2])
    y = draft("Reshape", draft("Mul", centred, inverse), draft.lengths(x))
    return _per_channel(draft, y, scale, bias)


@expands("BatchNormalization")
def batch_normalization(
    draft: Draft, x: str, scale: str, bias: str, mean: str, variance: str
) -> str | None:
    """(x - mean) / √(variance + epsilon) · scale + bias, by channel."""
    dtypes = {draft.spec(name).dtype for name in (x, scale, bias, mean, variance)}
    if draft.attributes["training_mode"] or len(dtypes) > 1:
        return None
    root = draft("Sqrt", draft("Add", variance, float(draft.attributes["epsilon"])))
    centred = draft("Sub", x, _aligned(draft, x, mean))
    return _per_channel(draft, centred, draft("Div", scale, root), bias)


@expands("LpNormalization")
def lp_normalization(draft: Draft, x: str) -> str | None:
    """X by the sum of |x|, or by the root of the sum of squares; 0 where that is 0."""
    shape = draft.dims(x)
    if shape is None:
        return None
    axes = [normalise_axis(draft.attributes["axis"], len(shape))]
    norm = draft(f"ReduceL{draft.attributes['p']}", x, axes, keepdims=True)
    empty = draft("Equal", norm, 0.0)
    return draft("Where", empty, draft.zero(x), draft("Div", x, norm))


@expands("MeanVarianceNormalization")
def mean_variance_normalization(draft: Draft, x: str) -> str | None:
    """(x - mean) / (√variance + 10⁻⁹), as ONNX writes it out."""
    shape = draft.dims(x)
    if shape is None:
        return None
    axes = tuple(normalise_axis(axis, len(shape)) for axis in draft.attributes["axes"])
    centred = draft("Sub", x, draft("ReduceMean", x, axes, keepdims=True))
    variance = draft("ReduceMean", draft("Mul", centred, centred), axes, keepdims=True)
    return draft("Div", centred, draft("Add", draft("Sqrt", variance), 1e-9))


@expands("LRN")
def local_response_normalization(draft: Draft, x: str) -> str | None:
    """X / (bias + alpha · mean of the squares of neighbouring channels) ^ beta."""
    shape, size = draft.dims(x), draft.attributes["size"]
    if shape is None or not isinstance(shape[1], int):
        return None
    squares = draft("Reshape", draft("Mul", x, x), (0, 1, shape[1], -1))
    before = (size - 1) // 2
    mean = draft(
        "AveragePool",
        squares,
        kernel_shape=(size, 1),
        pads=(before, 0, size - 1 - before, 0),
        count_include_pad=True,
    )
    scaled = draft(
        "Mul", draft("Reshape", mean, draft.lengths(x)), float(draft.attributes["alpha"])
    )
    base = draft("Add", scaled, float(draft.attributes["bias"]))
    return draft("Div", x, draft("Pow", base, float(draft.attributes["beta"])))


def _axes_from(draft: Draft, x: str) -> list[int] | None:
    """Return the axes from `axis` on; None where x has no elements, or may have none."""
    shape = draft.dims(x)
    if shape is None:
        return None
    return list(range(normalise_axis(draft.attributes["axis"], len(shape)), len(shape)))


def _standard(draft: Draft, x: str, axes: Sequence[int]) -> tuple[str, str, str]:
    """Return x less its mean, the mean, and 1 / √(variance + epsilon)."""
    if not axes:  # each element is its own mean
        centred, mean = draft("Sub", x, x), x
        variance = centred
    else:
        mean = draft("ReduceMean", x, tuple(axes), keepdims=True)
        centred = draft("Sub", x, mean)
        variance = draft("ReduceMean", draft("Mul", centred, centred), tuple(axes), keepdims=True)
    root = draft("Sqrt", draft("Add", variance, float(draft.attributes["epsilon"])))
    return centred, mean, draft("Reciprocal", root)


def _per_channel(draft: Draft, x: str, scale: str, bias: str) -> str:
    return draft("Add", draft("Mul", x, _aligned(draft, x, scale)), _aligned(draft, x, bias))


def _aligned(draft: Draft, x: str, vector: str) -> str:
    """Return a vector with one number for each channel so that it broadcasts to x."""
    rank = draft.spec(x).rank or 2
    return vector if rank < 2 else draft("Reshape", vector, np.array([-1, *(1,) * (rank - 2)]))
