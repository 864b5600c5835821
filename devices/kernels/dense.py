"""Convolutions that mix channels, each as matrix products.

`Pointwise` multiplies the input itself, `Columns` a copy of all windows (Chellapilla, Puri and
Simard 2006), `Shifted` the framed input once per tap: no copy of windows, but an addition per tap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import mul

from ...graph.values.tensor import Array, TensorSpec
from .blocks import count_in_block, iterate_blocks
from .frames import list_tap_offsets, make_frame
from .geometry import Geometry, Operands, WeightPacking, add_bias, copy_with_bias
from .registry import ArrayModule, Step
from .views import copy, make_strided

BLOCK = 1 << 18
"""Elements; more windows than this are copied and multiplied band by band, to stay in cache."""

SUMS = 1 << 19
"""Most elements of the products of a kernel's line with a band of rows, to stay in cache."""


class Pointwise:
    """Windows of one cell that move by one: y = W·x."""

    scratch: Sequence[TensorSpec] = ()
    packing = None

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        conv = self.conv
        cells = math.prod(conv.outputs)
        # Axes of length 1 are left out: matmul takes 2 µs longer for stacks of one matrix.
        groups = (conv.group,) if conv.group > 1 else ()
        stack = (conv.batch, *groups) if conv.batch > 1 else groups
        product = partial(
            xp.matmul,
            on.w.reshape(*groups, -1, conv.depth),
            on.x.reshape(*stack, conv.depth, cells),
            on.y.reshape(*stack, conv.features // conv.group, cells),
        )
        return [product, *add_bias(xp, on.y, on.bias)]


class Columns:
    """Any convolution: y = W·columns, where the columns are all windows side by side."""

    packing = None

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv
        self.frame = make_frame(conv)
        self.window_cells = conv.channels * conv.taps
        self.row_cells = math.prod(conv.outputs[1:])
        image = self.window_cells * self.row_cells * conv.outputs[0]
        self.images = count_in_block(BLOCK, image, conv.batch)
        self.rows = -(-conv.outputs[0] // max(1, -(-image // BLOCK)))
        columns = conv.spec(self.images * self.window_cells * self.row_cells * self.rows)
        framed = conv.spec(self.images * conv.channels, self.frame.length)
        self.scratch = (columns,) if self.frame.trivial else (columns, framed)

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        conv, steps = self.conv, []
        for images in iterate_blocks(conv.batch, self.images):
            source = on.x[images].reshape(-1, *conv.spatial)
            if not self.frame.trivial:
                framed = on.scratch[1][: len(source)]
                steps += self.frame.fill(xp, framed, source)
                source = framed
            for rows in iterate_blocks(conv.outputs[0], self.rows):
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
        windows = make_strided(xp, source, shape, (frame.length, *taps, *moves), offset)
        filled = on.scratch[0][: math.prod(shape)]
        stack = (images.stop - images.start, conv.group)
        out = on.y[images].reshape(*stack, conv.features // conv.group, -1)
        begin, end = rows.start * self.row_cells, rows.stop * self.row_cells
        product = partial(
            xp.matmul,
            on.w.reshape(conv.group, -1, conv.depth * conv.taps),
            filled.reshape(*stack, conv.depth * conv.taps, -1),
            out[..., begin:end],
        )
        return [copy(xp, filled.reshape(shape), windows), product]


class Shifted:
    """Strides of 1, one group: y = Σ over taps of W[tap]·x, x shifted by the tap.

    In the flat framed image a shift is an offset, so each operand is a plain matrix. The taps of a
    line of the kernel are one product, whose rows are shifted when they are added: BLAS is slow on
    few rows (76 GFLOP/s on 24, 95 on 72). The sums include columns for windows that cross a row's
    end; these are dropped at the end.
    """

    def __init__(self, conv: Geometry) -> None:
        assert conv.group == 1
        assert conv.moves_by_one
        self.conv = conv
        self.frame = make_frame(conv)
        self.line = conv.window.kernel[-1]
        self.reach = (self.line - 1) * conv.window.dilations[-1]
        row = conv.features * self.line * self.frame.steps[0]
        self.rows = count_in_block(SUMS, row, conv.outputs[0])
        cells = self._span(self.rows)
        sums = conv.spec(conv.features * cells)
        products = conv.spec(self.line * conv.features * (cells + self.reach))
        framed = conv.spec(conv.channels, self.frame.length)
        self.scratch = (sums, products) if self.frame.trivial else (sums, products, framed)
        by_tap = conv.spec(*conv.window.kernel, conv.features, conv.channels)
        self.packing = WeightPacking(by_tap, self._pack, "by tap")

    def _span(self, rows: int) -> int:
        """Return the number of flat cells of a band of `rows` rows."""
        return self.frame.span((rows, *self.conv.outputs[1:]))

    def _pack(self, xp: ArrayModule, w: Array, packed: Array) -> list[Step]:
        rank = len(self.conv.spatial)
        axes = (*range(2, 2 + rank), 0, 1)
        return [partial(xp.copyto, packed, w.transpose(axes))]

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        conv, frame, steps = self.conv, self.frame, []
        for image, result in zip(on.x, on.y, strict=True):
            source = image.reshape(conv.channels, -1)
            if not frame.trivial:
                source = on.scratch[2]
                steps += frame.fill(xp, source, image)
            for rows in iterate_blocks(conv.outputs[0], self.rows):
                steps += self._band(xp, on, source, result, rows)
        return steps

    def _band(
        self, xp: ArrayModule, on: Operands, source: Array, result: Array, rows: slice
    ) -> list[Step]:
        conv, frame, steps = self.conv, self.frame, list[Step]()
        number = rows.stop - rows.start
        cells, wide = self._span(number), self._span(number) + self.reach
        total = on.scratch[0][: conv.features * cells].reshape(-1, cells)
        products = on.scratch[1][: self.line * conv.features * wide].reshape(-1, wide)
        parts = self._shifted(products, cells)
        first = frame.origin + rows.start * frame.steps[0]
        lines = list_tap_offsets(conv, frame)[:: self.line]
        for tap, offset in lines:
            begin = first + offset
            weights = on.w[tap[:-1]].reshape(-1, conv.channels)
            alone = self.line == 1 and offset == 0
            target = total if alone else products
            steps.append(partial(xp.matmul, weights, source[:, begin : begin + wide], target))
            steps += [] if alone else _sum_into(xp, total, parts, begins=offset == 0)
        shape = (conv.features, number, *conv.outputs[1:])
        kept = make_strided(xp, total, shape, (cells, *frame.steps))
        return [*steps, copy_with_bias(xp, kept, on.bias, result[:, rows])]

    def _shifted(self, products: Array, cells: int) -> list[Array]:
        """Return the `products` of each tap of a line of `cells`, from the window's first cell."""
        apart, features = self.conv.window.dilations[-1], self.conv.features
        return [
            products[tap * features : (tap + 1) * features, tap * apart : tap * apart + cells]
            for tap in range(self.line)
        ]


def _sum_into(xp: ArrayModule, total: Array, parts: list[Array], *, begins: bool) -> list[Step]:
    """Return the steps in `xp` that add two or more `parts` to `total`, or overwrite it.

    They overwrite it if the sum `begins`.
    """
    if begins:
        first, second, *parts = parts
        steps = [partial(xp.add, first, second, total)]
    else:
        steps = []
    return [*steps, *(partial(xp.add, total, part, total) for part in parts)]
