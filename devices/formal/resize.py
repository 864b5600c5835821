"""Definition of Resize, in exact fractions: places and weights are never rounded.

Where ONNX leaves a choice, plait's is that of its shape rule: a scale that maps a length to
a whole number in float32 is exactly that ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ...graph.values.tensor import Array, TensorSpec
from .ieee import sum_exactly
from .registry import at, definition, indices, table

_HALF = Fraction(1, 2)


class _Axis(NamedTuple):
    """How an axis is resized: lengths of input and output, that before rounding, and the region."""

    length: int
    resized: int
    width: Fraction
    start: Fraction
    end: Fraction

    def origin(self, i: int, transformation: str) -> Fraction:
        """Return where element `i` of the output lies in the input, by a `transformation`."""
        centred = (i + _HALF) * self.length / self.width - _HALF
        last = self.length - 1
        match transformation:
            case "half_pixel_symmetric":
                return Fraction(self.length, 2) * (1 - self.resized / self.width) + centred
            case "pytorch_half_pixel":
                return centred if self.resized > 1 else Fraction(0)
            case "align_corners":
                return i * Fraction(last) / (self.width - 1) if self.width != 1 else Fraction(0)
            case "asymmetric":
                return i * self.length / self.width
            case "tf_crop_and_resize" if self.resized > 1:
                return (self.start + i * (self.end - self.start) / (self.resized - 1)) * last
            case "tf_crop_and_resize":
                return (self.start + self.end) / 2 * last
        return centred


@definition("Resize")
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    outputs: Sequence[TensorSpec],
    **attributes: Any,
) -> Array:
    # y[i, …] = Σ weight(c - origin(i))·…·x[c, …] over the cells c; or the nearest x[c, …].
    # Cells before the first or after the last are copies of these.
    how = attributes["coordinate_transformation_mode"]
    shape = outputs[0].static_shape
    axes = _list_axes(x, shape, roi, _drop_empty(scales), _drop_empty(sizes), attributes)
    origins = [
        [axes[a].origin(i, how) if a in axes else Fraction(i) for i in range(length)]
        for a, length in enumerate(shape)
    ]
    taps = [
        [
            _list_taps(place, axes[a], attributes) if a in axes else {i: 1}
            for i, place in enumerate(row)
        ]
        for a, row in enumerate(origins)
    ]

    def element(*index: int) -> Any:
        crossed = [origins[axis][i] for axis, i in enumerate(index)]
        if how == "tf_crop_and_resize" and _is_outside(crossed, x.shape):
            return attributes["extrapolation_value"]
        return _sample(x, [taps[axis][i] for axis, i in enumerate(index)])

    return _round(table(shape, element), x.dtype)


def _drop_empty(array: Array | None) -> Array | None:
    return None if array is None or array.size == 0 else array


def _list_axes(
    x: Array,
    shape: Sequence[int],
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    attributes: Mapping[str, Any],
) -> dict[int, _Axis]:
    listed = attributes["axes"]
    named = [axis % x.ndim for axis in (range(x.ndim) if listed is None else listed)]
    lengths = [x.shape[axis] for axis in named]
    if scales is not None:
        widths = [_scale(n, scale) for n, scale in zip(lengths, scales, strict=True)]
    else:
        assert sizes is not None
        widths = _fit_lengths(lengths, sizes.tolist(), attributes["keep_aspect_ratio_policy"])
    region = [Fraction(0)] * len(named) + [Fraction(1)] * len(named)
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        assert roi is not None
        region = [Fraction(bound) for bound in roi.tolist()]
    return {
        axis: _Axis(lengths[i], shape[axis], widths[i], region[i], region[i + len(named)])
        for i, axis in enumerate(named)
    }


def _scale(length: int, scale: np.float32) -> Fraction:
    rounded = float(np.float32(length) * scale)
    return Fraction(rounded) if rounded.is_integer() else length * Fraction(float(scale))


def _fit_lengths(lengths: Sequence[int], sizes: Sequence[int], policy: str) -> list[Fraction]:
    if policy == "stretch":
        return [Fraction(size) for size in sizes]
    ratios = [Fraction(size, length) for size, length in zip(sizes, lengths, strict=True)]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [ratio * length for length in lengths]


def _is_outside(places: Sequence[Fraction], lengths: Sequence[int]) -> bool:
    return any(not 0 <= place <= n - 1 for place, n in zip(places, lengths, strict=True))


def _list_taps(place: Fraction, axis: _Axis, attributes: Mapping[str, Any]) -> dict[int, Any]:
    """Return the cells of `axis` around `place` that are read, with their weights, which sum to 1.

    The `attributes` are those of Resize.
    """
    if attributes["mode"] == "nearest":
        return {_clamp(_find_nearest(place, attributes["nearest_mode"]), axis.length): 1}
    stretch = max(axis.length / axis.width, Fraction(1)) if attributes["antialias"] else Fraction(1)
    reach = math.ceil(2 * stretch)
    taps: dict[int, Any] = {}
    for cell in range(math.floor(place) - reach, math.ceil(place) + reach + 1):
        weight = _compute_weight(abs(cell - place) / stretch, attributes)
        if weight and not (attributes["exclude_outside"] and not 0 <= cell < axis.length):
            inside = _clamp(cell, axis.length)
            taps[inside] = taps.get(inside, 0) + weight
    total = sum(taps.values())
    return {cell: weight / total for cell, weight in taps.items()} if total else {}


def _clamp(cell: int, length: int) -> int:
    return min(max(cell, 0), length - 1)


def _find_nearest(place: Fraction, rounding: str) -> int:
    match rounding:
        case "floor":
            return math.floor(place)
        case "ceil":
            return math.ceil(place)
        case "round_prefer_floor":
            return math.ceil(place - _HALF)
    return math.floor(place + _HALF)


def _compute_weight(distance: Fraction, attributes: Mapping[str, Any]) -> Fraction:
    """Return the filter of `attributes` at `distance`: a triangle, or the cubic of Keys (1981)."""
    if attributes["mode"] == "linear":
        return max(1 - distance, Fraction(0))
    a, d = Fraction(attributes["cubic_coeff_a"]), distance
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else Fraction(0)


def _sample(x: Array, taps: Sequence[Mapping[int, Any]]) -> Any:
    """Return the sum of the cells of `x`, weighted by `taps` of each axis; exact if x is whole."""
    cells = [list(along) for along in taps]
    terms = []
    for choice in indices([len(along) for along in cells]):
        place = [along[i] for along, i in zip(cells, choice, strict=True)]
        weight = math.prod(along[cell] for along, cell in zip(taps, place, strict=True))
        value = at(x, *place)
        if weight == 1:
            return value
        terms.append(float(weight) * value if isinstance(value, float) else weight * value)
    return sum(terms) if x.dtype.kind in "iu" else sum_exactly(terms)


def _round(y: Array, dtype: np.dtype[Any]) -> Array:
    """Return `y`, as whole numbers that `dtype` holds if it is one of integers."""
    if dtype.kind not in "iu":
        return y
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    return table(y.shape, lambda *index: min(max(round(y[index]), low), high))
