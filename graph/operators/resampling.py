"""Resampling: how long each axis of a resized tensor is, and which part of the input it shows.

Shared by Resize's shape rule and its kernels. Source: ONNX Resize-19. Two choices where texts and
implementations differ: a region of interest does not enter output lengths (ONNX's documentation
says so, but neither its own shape inference nor any runtime does it); a scale that takes a length
to a whole number in float32 stands for that very ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..core.attribute import Attributes
from ..values.dims import floordiv, mul, normalize_axes
from ..values.errors import ShapeError
from ..values.tensor import Array, Dim, Shape

CROP = "tf_crop_and_resize"
"""The one coordinate transformation that reads a region of interest."""

_CHOICES: dict[str, Callable[[Iterable[Any]], Any]] = {"not_larger": min, "not_smaller": max}


@dataclass(frozen=True, slots=True)
class Resampling:
    """How one axis is resized."""

    length: int
    resized: int
    """Cells of the input, and of the output."""
    width: Fraction
    """The output's length before rounding."""
    start: float = 0.0
    end: float = 1.0
    """The region of interest: 0 is the middle of the first cell, 1 that of the last."""


@dataclass(frozen=True, slots=True)
class Target:
    """Resize's inputs other than the tensor, for `axes`: scales or sizes, and a region.

    A region holds all starts, then all ends; None stands for the whole tensor.
    """

    scales: Sequence[float] | None = None
    sizes: Sequence[int] | None = None
    region: Sequence[float] | None = None


def read_target(values: Sequence[Array | None], attributes: Attributes) -> Target:
    """Return the target in `values` of Resize's inputs and `attributes`; empty ones are absent."""
    roi, scales, sizes = (*values[1:], None, None, None)[:3]
    crops = attributes["coordinate_transformation_mode"] == CROP
    return Target(_to_numbers(scales), _to_numbers(sizes), _to_numbers(roi) if crops else None)


def infer_resized_shape(shape: Shape, attributes: Attributes, target: Target) -> Shape:
    """Return `shape` resized to `target` by the rules in `attributes`, or raise ShapeError."""
    axes = list_resized_axes(attributes, len(shape))
    lengths = [shape[axis] for axis in axes]
    resized: list[Dim]
    if target.region is not None:
        _check(target.region, "roi", least=-math.inf)
    if target.scales is not None:
        _check(target.scales, "scales", least=math.ulp(0.0))
        resized = list(map(_scale, lengths, target.scales))
    else:
        assert target.sizes is not None
        _check(target.sizes, "sizes", least=0)
        resized = _fit(lengths, target.sizes, attributes["keep_aspect_ratio_policy"])
    by_axis = dict(zip(axes, resized, strict=True))
    for axis, length in by_axis.items():
        if shape[axis] == 0 and length != 0:
            raise ShapeError(
                f"axis {axis} has no cells to resize to {length}", fix="feed a larger input"
            )
    return tuple(by_axis.get(axis, length) for axis, length in enumerate(shape))


def resample_axes(
    shape: tuple[int, ...], attributes: Attributes, target: Target
) -> tuple[Resampling, ...]:
    """Return how each axis of `shape` is resized to `target`; raises like `infer_resized_shape`."""
    axes = list_resized_axes(attributes, len(shape))
    outputs = [int(length) for length in infer_resized_shape(shape, attributes, target)]
    widths = [Fraction(length) for length in outputs]
    policy = attributes["keep_aspect_ratio_policy"]
    if target.scales is not None:
        for axis, scale in zip(axes, target.scales, strict=True):
            widths[axis] = _scale_exactly(shape[axis], scale)
    elif target.sizes is not None and policy != "stretch":
        pairs = zip(axes, target.sizes, strict=True)
        ratio = _CHOICES[policy](Fraction(size, shape[axis]) for axis, size in pairs)
        for axis in axes:
            widths[axis] = ratio * shape[axis]
    regions = dict.fromkeys(range(len(shape)), (0.0, 1.0))
    if target.region is not None:
        starts, ends = target.region[: len(axes)], target.region[len(axes) :]
        regions.update(zip(axes, zip(starts, ends, strict=True), strict=True))
    return tuple(
        Resampling(length, outputs[axis], widths[axis], *regions[axis])
        for axis, length in enumerate(shape)
    )


def list_resized_axes(attributes: Attributes, rank: int) -> tuple[int, ...]:
    axes = attributes["axes"]
    return tuple(range(rank)) if axes is None else normalize_axes(axes, rank)


def _to_numbers(array: Array | None) -> list[Any] | None:
    numbers: list[Any] | None = None if array is None else array.tolist()
    return numbers or None


def _scale_exactly(length: int, scale: float) -> Fraction:
    # Converters write 10/6 as a float32, which makes 6 cells 9.9999998: 10 is meant.
    rounded = float(np.float32(length) * np.float32(scale))
    return Fraction(rounded) if rounded.is_integer() else length * Fraction(scale)


def _scale(length: Dim, scale: float) -> Dim:
    if isinstance(length, int):
        return math.floor(np.float32(length) * np.float32(scale))
    ratio = Fraction(scale).limit_denominator(1024)
    if np.float32(float(ratio)) != np.float32(scale):
        ratio = Fraction(scale)
    return floordiv(mul(length, ratio.numerator), ratio.denominator)


def _fit(lengths: Sequence[Dim], sizes: Sequence[int], policy: str) -> list[Dim]:
    """Return `sizes`, or, by `policy`, the nearest ones that keep the aspect ratio of `lengths`."""
    if policy == "stretch":
        return list(sizes)
    if 0 in lengths:
        raise ShapeError(
            f"lengths {list(lengths)} have no aspect ratio to keep", fix="feed a larger input"
        )
    return [_round_to_ratio(length, lengths, sizes, policy) for length in lengths]


def _round_to_ratio(length: Dim, lengths: Sequence[Dim], sizes: Sequence[int], policy: str) -> Dim:
    """Return `length` times the least or largest ratio of `sizes` to `lengths`, rounded half up."""
    candidates = [
        _round_proportion(length, size, of) for size, of in zip(sizes, lengths, strict=True)
    ]
    numbers = [number for number in candidates if isinstance(number, int)]
    if len(numbers) == len(candidates):
        return int(_CHOICES[policy](numbers))
    if len(candidates) == 1:
        return candidates[0]
    return f"{'min' if policy == 'not_larger' else 'max'}({','.join(map(str, candidates))})"


def _round_proportion(length: Dim, size: int, of: Dim) -> Dim:
    if length == of:
        return size
    if isinstance(length, int) and isinstance(of, int):
        return (2 * size * length + of) // (2 * of)
    return f"(2*{size}*{length}+{of})//(2*{of})"


def _check(numbers: Sequence[float], label: str, least: float) -> None:
    if not all(math.isfinite(number) and number >= least for number in numbers):
        raise ShapeError(f"{label} {list(numbers)} are out of range", fix="give positive numbers")
