"""Convolutions that mix channels, each as matrix products.

`Pointwise` multiplies the input itself, `Columns` a copy of all windows (Chellapilla, Puri and
Simard 2006), `Shifted` the framed input once per tap: no copy of windows, but an addition per tap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import mul

from ...graph.tensor import Array, TensorSpec
from .blocks import blocks, count_in_block
from .frames import frame_of, tap_offsets
from .geometry import Geometry, Operands, Packing, add_bias, biased
from .registry import ArrayModule
from .steps import Step
from .views import copy, strided

BLOCK = 1 << 18
"""Elements; more windows than this are copied and multiplied band by band, to stay in cache."""


class Pointwise:
    """Windows of one cell that move by one: y = W·x."""

    scratch: Sequence[TensorSpec] = ()
    packing = None

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        """Return one product for all images and groups."""
        conv = self.conv
        cells = math.prod(conv.outputs)
        # Axes of length 1 are left out: matmul takes 2 µs longer for stacks of one matrix.
        groups = (conv.group,) if conv.group > 1 else ()
        stack = (conv.batch, *groups) if conv.batch > 1 else groups
        product = partial(
            xp.matmul,
            on.w.reshape(*groups, -1, conv.depth),
            on.x.reshape(*stack, conv.depth, cells),
            out=on.y.reshape(*stack, conv.features // conv.group, cells),
        )
        return [product, *add_bias(xp, on.y, on.bias)]


class Columns:
    """Any convolution: y = W·columns, where the columns are all windows side by side."""

    packing = None

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv
        self.frame = frame_of(conv)
        self.window_cells = conv.channels * conv.taps
        self.row_cells = math.prod(conv.outputs[1:])
        image = self.window_cells * self.row_cells * conv.outputs[0]
        self.images = count_in_block(BLOCK, image, conv.batch)
        self.rows = -(-conv.outputs[0] // max(1, -(-image // BLOCK)))
        columns = conv.spec(self.images * self.window_cells * self.row_cells * self.rows)
        framed = conv.spec(self.images * conv.channels, self.frame.length)
        self.scratch = (columns,) if self.frame.trivial else (columns, framed)

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        """Return, for each few images or band of rows of one, a copy and a product."""
        conv, steps = self.conv, []
        for images in blocks(conv.batch, self.images):
            source = on.x[images].reshape(-1, *conv.spatial)
            if not self.frame.trivial:
                framed = on.scratch[1][: len(source)]
                steps += self.frame.fill(xp, framed, source)
                source = framed
            for rows in blocks(conv.outputs[0], self.rows):
                steps += self._band(xp, on, source, images, rows)
        return [*steps, *add_bias(xp, on.y, on.bias)]

    def _band(
        self, xp: ArrayModule, on: Operands, source: Array, images: slice, rows: slice
    ) -> list[Step]:
        conv, frame = self.conv, self.frame
        window, cells = conv.window, frame.steps
        taps, moves = map(mul, cells, window.dilations), tuple(map(mul, cells, window.strides))
        shape = (len(source), *window.kernel, rows.stop - rows.start, *conv.outputs[1:])
        offset = frame.origin + rows.start * moves[0]
        windows = strided(xp, source, shape, (frame.length, *taps, *moves), offset)
        filled = on.scratch[0][: math.prod(shape)]
        stack = (images.stop - images.start, conv.group)
        out = on.y[images].reshape(*stack, conv.features // conv.group, -1)
        begin, end = rows.start * self.row_cells, rows.stop * self.row_cells
        product = partial(
            xp.matmul,
            on.w.reshape(conv.group, -1, conv.depth * conv.taps),
            filled.reshape(*stack, conv.depth * conv.taps, -1),
            out=out[..., begin:end],
        )
        return [copy(xp, filled.reshape(shape), windows), product]


class Shifted:
    """Strides of 1, one group: y = Σ over taps of W[tap]·x, x shifted by the tap.

    In the flat framed image a shift is an offset, so each operand is a plain matrix. The sums
    also have columns where a window would run over a row's end; they are left out at last.
    """

    def __init__(self, conv: Geometry) -> None:
        assert conv.group == 1
        assert conv.moves_by_one
        self.conv = conv
        self.frame = frame_of(conv)
        self.cells = self.frame.span(conv.outputs)
        sums = conv.spec(conv.features, self.cells)
        framed = conv.spec(conv.channels, self.frame.length)
        self.scratch = (sums, sums) if self.frame.trivial else (sums, sums, framed)
        by_tap = conv.spec(*conv.window.kernel, conv.features, conv.channels)
        self.packing = Packing(by_tap, self._pack)

    def _pack(self, xp: ArrayModule, w: Array, packed: Array) -> list[Step]:
        """Return the step that makes each tap's weights one matrix."""
        rank = len(self.conv.spatial)
        axes = (*range(2, 2 + rank), 0, 1)
        return [partial(xp.copyto, packed, w.transpose(axes))]

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        """Return, for each image, a product and an addition per tap."""
        conv, frame, steps = self.conv, self.frame, []
        total, part = on.scratch[:2]
        kept = strided(xp, total, (conv.features, *conv.outputs), (self.cells, *frame.steps))
        for image, result in zip(on.x, on.y, strict=True):
            source = image.reshape(conv.channels, -1)
            if not frame.trivial:
                source = on.scratch[2]
                steps += frame.fill(xp, source, image)
            for index, (tap, offset) in enumerate(tap_offsets(conv, frame)):
                begin = frame.origin + offset
                shifted = source[:, begin : begin + self.cells]
                target = part if index else total
                steps.append(partial(xp.matmul, on.w[tap], shifted, out=target))
                if index:
                    steps.append(partial(xp.add, total, part, out=total))
            steps.append(biased(xp, kept, on.bias, result))
        return steps
