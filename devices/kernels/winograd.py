"""3x3 convolutions with strides of 1 by Winograd's F(2x2, 3x3): 16 products in place of 36.

Source: Lavin and Gray 2016, "Fast algorithms for convolutional neural networks", section 4.1. An
output tile of 2x2 cells is A'[(G w G') ∘ (B' d B)]A of its input tile d of 4x4 cells; summed over
channels, each of the 16 places is a matrix product over all tiles. In float32 the error is that of
a direct sum. An infinity in the input makes NaN of a whole tile: see `special_values`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.values.tensor import Array
from .blocks import count_in_block, iterate_blocks
from .frames import zero_borders
from .geometry import Geometry, Operands, WeightPacking, add_bias
from .registry import ArrayModule, Step
from .views import make_strided

BLOCK = 1 << 19
"""Most transformed cells that are made at a time, to stay in cache."""

WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
"""G: from 3 taps to 4 places."""


class Winograd:
    """y = A'[Σ over channels of U ∘ V]A, with U the weights' and V the input's transform.

    The framed input is held as even and odd columns apart, each row with one cell to spare: so the
    transforms are sums of whole rows, shifted by a cell, and the last cell of a row is of no use.
    """

    def __init__(self, conv: Geometry) -> None:
        assert fits(conv)
        self.conv = conv
        self.tiles = (-(-conv.outputs[0] // 2), -(-conv.outputs[1] // 2))
        self.pitch = self.tiles[1] + 1
        row = 16 * max(conv.channels, conv.features) * self.pitch
        self.rows = count_in_block(BLOCK, row, self.tiles[0])
        cells = self.rows * self.pitch
        framed = conv.spec(2, conv.channels, 2 * self.tiles[0] + 2, self.pitch)
        first = conv.spec(8 * max(conv.channels, 2 * conv.features) * cells)
        second = conv.spec(8 * max(2 * conv.channels, conv.features) * cells)
        self.scratch = (framed, first, second)
        transformed = conv.spec(16, conv.features, conv.channels)
        self.packing = WeightPacking(transformed, self._pack, "winograd")

    def _pack(self, xp: ArrayModule, w: Array, packed: Array) -> list[Step]:
        # G w G', row by row, is (G ⊗ G) w: one product transforms the weights of all channels.
        both_axes = xp.asarray(np.kron(WEIGHTS, WEIGHTS).astype(w.dtype))
        taps = w.reshape(-1, 9).T
        return [partial(xp.matmul, both_axes, taps, packed.reshape(16, -1))]

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        """Return steps in `xp` for `on`: transforms and products by image and band of tile rows."""
        steps: list[Step] = []
        framed, first, second = on.scratch
        for image, result in zip(on.x, on.y, strict=True):
            steps += self._frame(xp, framed, image)
            for part in iterate_blocks(self.tiles[0], self.rows):
                rows = part.stop - part.start
                band = framed[:, :, 2 * part.start : 2 * part.stop + 2]
                steps += self._transform(xp, band, first, second)
                steps += self._multiply(xp, on.w, second, first, rows)
                steps += self._transform_back(xp, first, second, result[:, 2 * part.start :], rows)
        return [*steps, *add_bias(xp, on.y, on.bias)]

    def _frame(self, xp: ArrayModule, framed: Array, image: Array) -> list[Step]:
        steps: list[Step] = []
        top, left = self.conv.window.pads_begin
        for parity in (0, 1):
            start = (parity - left) % 2
            source = image[:, :, start::2]
            begins = (top, (start + left) // 2)
            borders, cells = zero_borders(framed[parity], begins, source.shape[1:])
            steps += [*borders, partial(xp.copyto, cells, source)]
        return steps

    def _transform(
        self, xp: ArrayModule, band: Array, vertical: Array, places: Array
    ) -> list[Step]:
        """Return the steps in `xp` for `places` = B' d B, where d are the tiles of `band`.

        Columns are transformed to `vertical` first, then rows.
        """
        channels, rows = band.shape[1], band.shape[2] // 2 - 1
        down = _take_shaped(vertical, (4, 2, channels, rows, self.pitch))
        cells = rows * self.pitch - 1
        across = _take_shaped(places, (4, 4, channels, cells))
        # Tiles overlap by two cells: the rows of all tiles that are first, second, third and fourth
        # in theirs are four shifted views, and so are the columns, even and odd ones apart.
        d = [band[:, :, start : start + 2 * rows : 2] for start in range(4)]
        flat = down.reshape(4, 2, channels, -1)
        even, odd = flat[:, 0], flat[:, 1]
        e = [even[..., :cells], odd[..., :cells], even[..., 1:], odd[..., 1:]]
        return [
            step
            for source, target in ((d, down), (e, across.swapaxes(0, 1)))
            for step in (
                partial(xp.subtract, source[0], source[2], target[0]),
                partial(xp.add, source[1], source[2], target[1]),
                partial(xp.subtract, source[2], source[1], target[2]),
                partial(xp.subtract, source[1], source[3], target[3]),
            )
        ]

    def _multiply(
        self, xp: ArrayModule, w: Array, places: Array, products: Array, rows: int
    ) -> list[Step]:
        conv, cells = self.conv, rows * self.pitch - 1
        transformed = _take_shaped(places, (16, conv.channels, cells))
        sums = _take_shaped(products, (16, conv.features, cells))
        return [partial(xp.matmul, w, transformed, sums)]

    def _transform_back(
        self, xp: ArrayModule, products: Array, vertical: Array, y: Array, rows: int
    ) -> list[Step]:
        """Return the steps in `xp` for `y` = A' `products` A in `rows` of tiles.

        Columns are transformed to `vertical` first, then rows.
        """
        conv, cells = self.conv, rows * self.pitch - 1
        m = _take_shaped(products, (4, 4, conv.features, cells))
        s = _take_shaped(vertical, (2, 4, conv.features, cells))
        half = m[0, :2]  # free by then
        steps: list[Step] = [
            partial(xp.add, m[0], m[1], s[0]),
            partial(xp.add, s[0], m[2], s[0]),
            partial(xp.subtract, m[1], m[2], s[1]),
            partial(xp.subtract, s[1], m[3], s[1]),
        ]
        for column, last, combine in ((0, s[:, 2], xp.add), (1, s[:, 3], xp.subtract)):
            steps.append(partial(combine, s[:, column], s[:, column + 1], half))
            for row in (0, 1):
                target = y[:, row : 2 * rows : 2, column::2]
                # Sums cover whole rows with their spare cells; only cells in the output are kept.
                kept = (conv.features, *target.shape[1:])
                apart = (cells, self.pitch, 1)
                a, b = (make_strided(xp, x[row], kept, apart) for x in (half, last))
                steps.append(partial(combine, a, b, target))
        return steps


def fits(conv: Geometry) -> bool:
    """Return whether Winograd's algorithm computes a convolution like `conv`."""
    window = conv.window
    plain = window.kernel == (3, 3) and window.dilations == (1, 1) and conv.moves_by_one
    return plain and conv.group == 1


def _take_shaped(buffer: Array, shape: Sequence[int]) -> Array:
    return buffer[: math.prod(shape)].reshape(shape)
