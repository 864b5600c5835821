"""Depthwise convolutions as sums of shifted channels: best where a channel has many cells."""

from __future__ import annotations

import itertools
from functools import partial
from operator import mul

import numpy as np

from ...graph.values.tensor import Array
from .blocks import count_in_block, iterate_blocks
from .frames import list_tap_offsets, make_frame
from .geometry import Geometry, Operands, copy_with_bias
from .registry import ArrayModule, Step
from .views import make_strided

BLOCK = 1 << 16
"""Most framed cells of a block of channels, to stay in cache."""


class Taps:
    """Strides of 1: each channel's sum over taps of w[tap]·x, x shifted by the tap."""

    packing = None

    def __init__(self, conv: Geometry) -> None:
        assert conv.moves_by_one
        self.conv = conv
        self.frame = make_frame(conv)
        self.cells = self.frame.span(conv.outputs)
        self.block = count_in_block(BLOCK, self.frame.length, conv.channels)
        framed = conv.spec(self.block, self.frame.length)
        sums = conv.spec(self.block, self.cells)
        self.scratch = (sums, sums) if self.frame.trivial else (sums, sums, framed)

    @property
    def cost_ns(self) -> float:
        """The modelled time of a channel; measured rates, to compare with those of tiles."""
        return 2000 + 0.12 * self.conv.taps * self.cells

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        """Return steps in `xp` for `on`: sums of taps without row ends, by block of channels."""
        conv, frame, steps = self.conv, self.frame, []
        sum_taps = self._einsum if xp is np else self._multiply_add
        parts = list(iterate_blocks(conv.channels, self.block))
        for image, block in itertools.product(range(conv.batch), parts):
            source = on.x[image, block]
            sums, part, *framed = (buffer[: len(source)] for buffer in on.scratch)
            flat = framed[0] if framed else source.reshape(len(source), -1)
            if framed:
                steps += frame.fill(xp, flat, source)
            steps += sum_taps(xp, flat, on.w[block, 0], sums, part)
            kept = make_strided(xp, sums, (len(source), *conv.outputs), (self.cells, *frame.steps))
            bias = None if on.bias is None else on.bias[block]
            steps.append(copy_with_bias(xp, kept, bias, on.y[image, block]))
        return steps

    def _einsum(
        self, xp: ArrayModule, flat: Array, w: Array, sums: Array, part: Array
    ) -> list[Step]:
        """Return a step in `xp` that writes `w` · `flat` to `sums`; `part` is not used.

        Its loop over taps is outside, over cells inside. That order (Fortran's: the first label
        innermost) makes einsum's inner loop a vectorized multiply-add over contiguous cells: half
        the memory traffic of multiply, then add.
        """
        frame, window = self.frame, self.conv.window
        shape, steps = (self.cells, *window.kernel), (1, *map(mul, frame.steps, window.dilations))
        axes = list(range(len(shape)))
        return [
            partial(
                xp.einsum,
                make_strided(xp, row, shape, steps, frame.origin),
                axes,
                taps,
                axes[1:],
                axes[:1],
                out=total,
                order="F",
            )
            for row, taps, total in zip(flat, w, sums, strict=True)
        ]

    def _multiply_add(
        self, xp: ArrayModule, flat: Array, w: Array, sums: Array, part: Array
    ) -> list[Step]:
        steps: list[Step] = []
        for index, (tap, offset) in enumerate(list_tap_offsets(self.conv, self.frame)):
            begin = self.frame.origin + offset
            shifted, weights = flat[:, begin : begin + self.cells], w[(slice(None), *tap)][:, None]
            steps.append(partial(xp.multiply, shifted, weights, out=part if index else sums))
            if index:
                steps.append(partial(xp.add, sums, part, out=sums))
        return steps
