"""Places of the outputs of a resized axis in the input, and the weights of the cells there.

Source: ONNX Resize; cubic: R. Keys, Cubic convolution interpolation for digital image
processing, IEEE Trans. ASSP 29 (1981), equation 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.core.attribute import Attributes
from ...graph.operators.resampling import CROP, Resampling

Floats = NDArray[np.float64]
Cells = NDArray[np.int64]


class Weighted(NamedTuple):
    """The first cell that each output reads along one axis, and (outputs, taps) weights from it."""

    first: Cells
    weights: Floats


def compute_places(axis: Resampling, transformation: str) -> Floats:
    """Return the place of each output of `axis`, in cells of the input, by `transformation`.

    Products come before quotients, so that exact ties and whole numbers are exact here, too.
    """
    x = np.arange(axis.resized, dtype=np.float64)
    length, resized = axis.length, axis.resized
    width, parts = axis.width.as_integer_ratio()
    if not resized:
        return x
    if transformation == "asymmetric":
        return x * length * parts / width
    if transformation == "align_corners":
        return x * (length - 1) * parts / (width - parts) if width != parts else x
    if transformation == CROP:
        if resized == 1:
            return np.full(1, 0.5 * (axis.start + axis.end) * (length - 1))
        step = (axis.end - axis.start) * (length - 1)
        return axis.start * (length - 1) + x * step / (resized - 1)
    if transformation == "pytorch_half_pixel" and resized == 1:
        return x
    if transformation == "half_pixel_symmetric":
        return length * ((2 * x + 1 - resized) * parts + width) / (2 * width) - 0.5
    return (x + 0.5) * length * parts / width - 0.5


_ROUNDINGS: dict[str, Callable[[Floats], Any]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
}


def round_to_cells(places: Floats, length: int, nearest_mode: str) -> Cells:
    rounded: Floats = np.clip(_ROUNDINGS[nearest_mode](places), 0, length - 1)
    return rounded.astype(np.int64)


def weigh(places: Floats, axis: Resampling, attributes: Attributes) -> Weighted:
    """Return the cells around each of `places` on `axis`, with linear or cubic weights.

    The `attributes` are those of Resize: with antialias, a filter for shrinking is as many times
    wider. Weights of cells outside the input go to the ones at its border, or with
    exclude_outside do not count.
    """
    cubic = attributes["mode"] == "cubic"
    widens = attributes["antialias"] and 0 < axis.width < axis.length
    stretch = float(axis.length / axis.width) if widens else 1.0
    radius = (2 if cubic else 1) * stretch
    first = np.floor(places - radius) + 1
    cells = first[:, None] + np.arange(np.ceil(2 * radius))
    distance = np.abs(cells - places[:, None]) / stretch
    if cubic:
        weights = _weigh_cubic(distance, attributes["cubic_coeff_a"])
    else:
        weights = np.maximum(1 - distance, 0)
    if widens:
        weights = _normalize(weights)
    if attributes["exclude_outside"]:
        weights = _normalize(np.where((cells < 0) | (cells >= axis.length), 0, weights))
    return _keep_inside(np.clip(cells, 0, axis.length - 1).astype(np.int64), weights, axis.length)


def _keep_inside(cells: Cells, weights: Floats, length: int) -> Weighted:
    taps = min(cells.shape[1], length)
    first = np.minimum(cells[:, 0], length - taps)
    inside = np.zeros((len(cells), taps))
    np.add.at(inside, (np.arange(len(cells))[:, None], cells - first[:, None]), weights)
    return Weighted(first, inside)


def _weigh_cubic(distance: Floats, a: float) -> Floats:
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    outer = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))


def _normalize(weights: Floats) -> Floats:
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total == 0, 1, total)
