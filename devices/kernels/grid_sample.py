"""GridSample and AffineGrid: an image sampled at the places of a grid.

Source: ONNX GridSample and AffineGrid. The reflection of places and the positions of cells follow
ONNX's reference implementation. The cubic weights are those of Keys, "Cubic convolution
interpolation for digital image processing" (1981), with a = -0.75.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from .precision import compute_dtype, declare_wide_ends, find_limits, widen
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order
from .sampling import Sampler, declare_sampler, hold_near, index_cells, write_linear_taps

_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_A = -0.75
_INNER = (_A + 2, -(_A + 3), 0.0, 1.0)
_OUTER = (_A, -5 * _A, 8 * _A, -4 * _A)
"""Polynomials of a cell's distance: up to 1, and from there to 2."""


def _declare_grid_sample_scratch(call: Call, outputs: Specs) -> Sequence[TensorSpec]:
    x, grid = call.spec(0), call.spec(1)
    _, channels, *spatial = x.static_shape
    points = math.prod(grid.static_shape[1:-1])
    places, dtype = compute_dtype(grid.dtype), _choose_work_dtype(x.dtype, call.attributes)
    total = [] if dtype == x.dtype else [TensorSpec(dtype, (channels, points))]
    return [
        *declare_sampler(dtype, places, channels, spatial, _TAPS[call.attributes["mode"]], points),
        *[TensorSpec(places, (points,))] * 3,
        TensorSpec(np.bool_, (points,)),
        *total,
    ]


def _choose_work_dtype(dtype: np.dtype[Any], attributes: Attributes) -> np.dtype[Any]:
    return dtype if attributes["mode"] == "nearest" else np.result_type(dtype, np.float32)


@kernel("GridSample", scratch=_declare_grid_sample_scratch, binds=True)
def grid_sample(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    (x, grid), (y,) = inputs, outputs
    if not y.size:
        return run_in_order(())
    batch, channels, *spatial = x.shape
    images, targets = x.reshape(batch, channels, -1), y.reshape(batch, channels, -1)
    rank = len(spatial)
    sampler, (place, cell, buffer, beyond, *totals) = Sampler(xp, *scratch[:6]), scratch[6:]
    places = grid.reshape(batch, -1, rank)
    axes = [
        _Axis(
            xp,
            attributes,
            length,
            math.prod(spatial[axis + 1 :]),
            sampler.outside,
            sampler.indices[axis],
            sampler.weights[axis],
            place,
            cell,
            buffer,
            beyond,
        )
        for axis, length in enumerate(spatial)
    ]

    def step() -> None:
        for sample in range(batch):
            for axis, how in enumerate(axes):  # a place names the last axis first
                how.find(places[sample, :, rank - 1 - axis])
            sampler.load(images[sample])
            sampler.read(totals[0] if totals else targets[sample])
            if totals:
                _narrow(xp, totals[0], targets[sample])

    return step


def _narrow(xp: ArrayModule, total: Array, y: Array) -> None:
    """Write `total` to `y` in module `xp`; for integers fractions are cut and NaN becomes 0."""
    if y.dtype.kind in "iu":
        # The cast of NaN differs between machines.
        xp.copyto(total, 0, where=xp.isnan(total))
        lowest, highest = find_limits(y.dtype)
        # The largest integers of 64 bits are not floats: stay below.
        high = total.dtype.type(highest)
        high = np.nextafter(high, total.dtype.type(0)) if int(high) > highest else high
        xp.fmax(total, lowest, out=total)
        xp.fmin(total, high, out=total)
    xp.copyto(y, total, casting="unsafe")


@dataclass(frozen=True, slots=True)
class _Axis:
    """Finds the cells along one axis around each place, and their weights."""

    xp: ArrayModule
    attributes: Attributes
    length: int
    stride: int
    outside: int
    indices: Array
    weights: Array
    place: Array
    cell: Array
    buffer: Array
    beyond: Array

    @property
    def _bounds(self) -> tuple[float, float]:
        """Where the image ends: at the middle of its outermost cells, or at their far sides."""
        margin = 0.0 if self.attributes["align_corners"] else 0.5
        return -margin, self.length - 1 + margin

    def find(self, grid: Array) -> None:
        """Write indices and weights for the places in `grid`, which are in [-1, 1]."""
        xp, place, mode = self.xp, self.place, self.attributes["mode"]
        self._denormalize(grid)
        if mode == "nearest":
            xp.rint(place, out=place)
        padding = self.attributes["padding_mode"]
        if padding == "reflection":
            self._reflect(place)
        elif padding == "zeros" and mode == "linear":
            index, beyond = self.indices, self.beyond
            write_linear_taps(
                xp, place, self.length, self.stride, self.outside, index, self.weights, beyond
            )
            return
        else:
            # Farther outside nothing changes, and numbers beyond those of indices must not be cast.
            hold_near(xp, place, self.length)
        self._weigh()

    def _denormalize(self, grid: Array) -> None:
        """Convert coordinates in `grid` to places, counted in cells."""
        xp, place, length = self.xp, self.place, self.length
        xp.add(grid, 1, out=place, dtype=place.dtype)
        if self.attributes["align_corners"]:
            xp.multiply(place, 0.5, out=place)
            xp.multiply(place, length - 1, out=place)
        else:
            xp.multiply(place, length, out=place)
            xp.subtract(place, 1, out=place)
            xp.multiply(place, 0.5, out=place)

    def _reflect(self, places: Array) -> None:
        """Mirror `places` at the bounds until they are between them."""
        xp, (low, high) = self.xp, self._bounds
        # An image of one cell, with both bounds at its middle: mirroring does nothing.
        if low == high:
            places.fill(low)
            return
        xp.subtract(places, low, out=places)
        # There and back again: twice the width is the period.
        xp.remainder(places, 2 * (high - low), out=places)
        xp.subtract(2 * (high - low), places, out=self.buffer)
        xp.minimum(places, self.buffer, out=places)
        xp.add(places, low, out=places)

    def _weigh(self) -> None:
        """Write the cells from the first tap on, and their weights."""
        xp, place, taps = self.xp, self.place, len(self.indices)
        first = taps // 2 - 1 if taps > 1 else 0
        for tap, index in enumerate(self.indices):
            xp.floor(place, out=self.cell)
            xp.add(self.cell, tap - first, out=self.cell)
            # The neighbours of a place may lie beyond a bound that the place itself is inside of.
            if self.attributes["padding_mode"] == "reflection":
                self._reflect(self.cell)
            outside = self.outside if self.attributes["padding_mode"] == "zeros" else None
            index_cells(
                xp, self.cell, self.length, self.stride, outside, index, self.buffer, self.beyond
            )
        if taps > 1:
            xp.floor(place, out=self.cell)
            xp.subtract(place, self.cell, out=place)
            for tap, weight in enumerate(self.weights):
                self._weight(tap - first, weight)

    def _weight(self, offset: int, weight: Array) -> None:
        """Write to `weight` the weight of the cell `offset` after the one before the place."""
        xp, distance = self.xp, self.cell
        if offset > 0:
            xp.subtract(offset, self.place, out=distance)
        else:
            xp.subtract(self.place, offset, out=distance)
        if len(self.weights) == 2:
            xp.subtract(1, distance, out=weight)
            return
        highest, *coefficients = _INNER if offset in (0, 1) else _OUTER
        weight.fill(highest)
        for coefficient in coefficients:
            xp.multiply(weight, distance, out=weight)
            xp.add(weight, coefficient, out=weight)


@kernel("AffineGrid", scratch=declare_wide_ends, binds=True)
def affine_grid(
    xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes, scratch: Arrays
) -> Step:
    # y = the image under each affine map of a grid over [-1, 1] along each axis. An axis of one
    # cell lies at 0, as in PyTorch.
    wide = widen(xp, inputs[:1], outputs, scratch)
    (theta,), (y,) = wide.inputs, wide.outputs
    assert theta is not None
    batch, *spatial, rank = y.shape
    homogeneous = np.ones((*spatial, rank + 1), y.dtype)
    for axis, length in enumerate(spatial):
        places = _space_evenly(length, attributes["align_corners"])
        homogeneous[..., rank - 1 - axis] = places.reshape(-1, *[1] * (rank - 1 - axis))
    points = xp.asarray(homogeneous.reshape(-1, rank + 1))
    target = y.reshape(batch, len(points), rank)
    return wide.around([partial(xp.matmul, points, theta.swapaxes(1, 2), out=target)])


def _space_evenly(length: int, align_corners: bool) -> Array:
    if align_corners:
        return (2 * np.arange(length) - (length - 1)) / max(length - 1, 1)
    return (2 * np.arange(length) - (length - 1)) / max(length, 1)
