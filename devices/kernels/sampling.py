"""Reading an image at any places: weighted sums of the cells around each.

GridSample and DeformConv share this. Cells are gathered channel by channel, for a block
of points at a time, so that gathered cells are still in the cache when they are added up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.values.tensor import Array, TensorSpec
from .blocks import BLOCK, count_in_block, iterate_blocks
from .registry import ArrayModule


def declare_sampler(
    dtype: np.dtype[Any],
    place_dtype: np.dtype[Any],
    channels: int,
    spatial: Sequence[int],
    taps: int,
    points: int,
) -> list[TensorSpec]:
    """Return the scratch of a `Sampler` in the order of its fields, with `taps` per axis.

    Images have `dtype`, `channels` and lengths `spatial`; `points` have places of `place_dtype`.
    """
    listed = (len(spatial), taps, points)
    block = count_in_block(BLOCK, channels, points)
    return [
        TensorSpec(dtype, (channels, math.prod(spatial) + 1)),
        TensorSpec(np.int64, listed),
        TensorSpec(place_dtype, listed),
        TensorSpec(np.int64, (block,)),
        TensorSpec(place_dtype, (block,)),
        TensorSpec(dtype, (channels * block,)),
    ]


@dataclass(frozen=True, slots=True)
class Sampler:
    """Adds up the weighted cells of points: along each axis, each tap has a weight."""

    xp: ArrayModule
    image: Array
    """Shape (channels, cells + 1). The last cell is the outside: zero."""
    indices: Array
    """Shape (axes, taps, points). Cells along an axis, times its stride; `outside` for missing
    ones."""
    weights: Array
    """Shape (axes, taps, points). Not read with a single tap."""
    flat: Array
    weight: Array
    value: Array
    """Buffers for a block of points."""

    @property
    def outside(self) -> int:
        """The index of the outside; adding any other index to it stays outside."""
        return int(self.image.shape[1]) - 1

    def load(self, cells: Array) -> None:
        self.xp.copyto(self.image[:, :-1], cells)
        self.image[:, -1:].fill(0)

    def read(self, target: Array) -> None:
        """Write the points' sums to `target`, (channels, points)."""
        channels, points = target.shape
        axes, taps, _ = self.indices.shape
        for part in iterate_blocks(points, self.flat.size):
            count = part.stop - part.start
            value = self.value[: channels * count].reshape(channels, count)
            sums = target[:, part]
            for number, chosen in enumerate(itertools.product(range(taps), repeat=axes)):
                self._gather(chosen, part, value)
                if number:
                    self.xp.add(sums, value, out=sums)
                else:
                    self.xp.copyto(sums, value)

    def _gather(self, taps: Sequence[int], part: slice, value: Array) -> None:
        """Write the weighted cells of points `part` to `value`, for one of `taps` per axis."""
        xp, flat = self.xp, self.flat[: part.stop - part.start]
        first, *others = [self.indices[axis, tap, part] for axis, tap in enumerate(taps)]
        xp.copyto(flat, first)
        for index in others:
            xp.add(flat, index, out=flat)
        xp.minimum(flat, self.outside, out=flat)
        if isinstance(self.image, np.ndarray):
            self.image.take(flat, 1, value, "clip")
        else:
            xp.take(self.image, flat, 1, value)
        if self.indices.shape[1] == 1:
            return
        weight = self.weight[: flat.size]
        first, *others = [self.weights[axis, tap, part] for axis, tap in enumerate(taps)]
        xp.copyto(weight, first)
        for factor in others:
            xp.multiply(weight, factor, out=weight)
        xp.multiply(value, weight, out=value)


def write_linear_taps(
    xp: ArrayModule,
    places: Array,
    length: int,
    stride: int,
    outside: int,
    indices: Array,
    weights: Array,
    beyond: Array,
) -> None:
    """Write the two cells around each of `places` along an axis, and their weights, in `xp`.

    Places, (points,), are in cells, and are lost. The axis has `length` cells, `stride` apart;
    `outside` is the index of cells outside of it. `indices` and `weights` have a row for each of
    the two; `beyond` is a buffer.
    """
    before, after = weights
    hold_near(xp, places, length)
    xp.floor(places, out=before)
    xp.subtract(places, before, out=after)  # the fraction
    xp.copyto(places, before)
    index_cells(xp, places, length, stride, outside, indices[0], before, beyond)
    xp.add(places, 1, out=places)
    index_cells(xp, places, length, stride, outside, indices[1], before, beyond)
    xp.subtract(1, after, out=before)


def hold_near(xp: ArrayModule, places: Array, length: int) -> None:
    """Move `places` that are far outside of `length` to where their taps still are, in `xp`.

    Infinite places become finite.
    """
    xp.maximum(places, -4, out=places)
    xp.minimum(places, length + 3, out=places)


def index_cells(
    xp: ArrayModule,
    cells: Array,
    length: int,
    stride: int,
    outside: int | None,
    index: Array,
    clamped: Array,
    beyond: Array,
) -> None:
    """Write `cells` (whole numbers) times `stride` to `index`, or `outside` if not in `length`.

    If `outside` is None, the nearest cell is used. `clamped` and `beyond` are buffers; the first
    may be `cells` itself then. `xp` is the module.
    """
    xp.fmax(cells, 0, out=clamped)  # 0 in place of NaN
    xp.fmin(clamped, length - 1, out=clamped)
    xp.copyto(index, clamped, casting="unsafe")
    xp.multiply(index, stride, out=index)
    if outside is not None:
        xp.not_equal(clamped, cells, out=beyond)
        xp.copyto(index, outside, where=beyond)
