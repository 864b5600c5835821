"""Depthwise convolutions as small matrix products, one per channel.

A tile of the output is the input cells within its reach, times a Toeplitz matrix (reach, tile): it
holds each tap once per output cell, and zeros elsewhere. Multiplying the zeros costs less than
leaving them out: a matrix product is an order of magnitude faster than any other arithmetic here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import mul
from typing import NamedTuple

from ...graph.values.tensor import Array
from .blocks import count_in_block, iterate_blocks
from .frames import Frame
from .geometry import Geometry, Operands, WeightPacking, add_bias
from .registry import ArrayModule, Step
from .views import copy, make_strided

BLOCK = 1 << 17
"""Most gathered cells that are made and multiplied at a time, to stay in cache."""

MAX_MATRIX = 1 << 14
"""Elements; no larger Toeplitz matrix is made for a channel."""

SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16)
"""Tile sizes that are tried along an axis, besides the whole axis."""


class Axis(NamedTuple):
    """How one axis is cut into tiles."""

    number: int
    size: int
    """The number of tiles, and the output cells of each."""
    reach: int
    """The input cells that a tile sees. A lone tile sees the input without its border."""


@dataclass(frozen=True, slots=True)
class ToeplitzTiling:
    """How the output of a convolution is cut into tiles, one entry per spatial axis."""

    conv: Geometry
    axes: tuple[Axis, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(axis.number for axis in self.axes)

    @property
    def tile(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def reach(self) -> tuple[int, ...]:
        return tuple(axis.reach for axis in self.axes)

    @property
    def begins(self) -> tuple[int, ...]:
        """The cells of border that the first tile of each axis begins with."""
        pads = zip(self.axes, self.conv.window.pads_begin, strict=True)
        return tuple(begin if axis.number > 1 else 0 for axis, begin in pads)

    @property
    def frame(self) -> Frame:
        """The border that all tiles together see."""
        strides, spatial = self.conv.window.strides, self.conv.spatial
        ends = [
            max(0, (axis.number - 1) * axis.size * stride + axis.reach - begin - size)
            for axis, stride, begin, size in zip(
                self.axes, strides, self.begins, spatial, strict=True
            )
        ]
        return Frame(spatial, self.begins, tuple(ends))

    @property
    def keeps_order(self) -> bool:
        """Return whether the tiles' cells, in order, are the output's in its order."""
        cells = self.axes[0].number * self.axes[0].size
        return math.prod(self.counts[1:]) == 1 and cells == self.conv.outputs[0]

    @property
    def cost_ns(self) -> float:
        """The modelled time of a channel; measured rates, of which only the ratios matter."""
        tiles, reach, tile = map(math.prod, (self.counts, self.reach, self.tile))
        # A lone tile along the last axis sees whole rows, so that two axes are copied as one run.
        run = math.prod(self.reach[-2:]) if self.axes[-1].number == 1 else self.reach[-1]
        gather = tiles * (2 * reach / run + 0.06 * reach)
        scatter = 0 if self.keeps_order else tiles * (2 * tile / self.tile[-1] + 0.06 * tile)
        product = 150 + tiles * reach * (tile + -tile % 16 / 4) / 60 + 0.1 * reach * tile
        return gather + product + scatter


class Toeplitz:
    """Any depthwise convolution: gather the tiles' reaches, multiply, scatter the tiles."""

    def __init__(self, conv: Geometry) -> None:
        self.conv = conv
        tiling = choose_tiling(conv)
        assert tiling is not None
        self.tiling = tiling
        self.frame = self.tiling.frame
        self.tiles = math.prod(self.tiling.counts)
        reach, tile = math.prod(self.tiling.reach), math.prod(self.tiling.tile)
        self.block = count_in_block(BLOCK, self.tiles * max(reach, tile), conv.channels)
        matrices = conv.spec(conv.channels, *tiling.reach, *tiling.tile)
        self.packing = WeightPacking(matrices, self._pack, self._order())
        gathered = conv.spec(self.block, self.tiles, reach)
        products = conv.spec(self.block, self.tiles, tile)
        framed = conv.spec(self.block, self.frame.length)
        self.scratch = [gathered]
        if not self.tiling.keeps_order:
            self.scratch.append(products)
        if not self.frame.trivial:
            self.scratch.append(framed)

    def _order(self) -> tuple[object, ...]:
        """Return the identity of the matrices: the places of taps in each tile's cells."""
        window, axes = self.conv.window, range(len(self.tiling.axes))
        tiles = ((axis.size, axis.reach) for axis in self.tiling.axes)
        borders = map(self._border, axes)
        return "toeplitz", window.kernel, window.strides, window.dilations, *tiles, *borders

    def _border(self, axis: int) -> int:
        return self.conv.window.pads_begin[axis] if self.tiling.axes[axis].number == 1 else 0

    def _pack(self, xp: ArrayModule, w: Array, packed: Array) -> list[Step]:
        """Return steps in `xp` that write taps of `w` into `packed`, once per cell of a tile."""
        steps: list[Step] = [partial(packed.fill, 0)]
        axes = range(len(self.tiling.axes))
        for cell in itertools.product(*map(range, self.tiling.tile)):
            seen = [self._seen(axis, cell[axis]) for axis in axes]
            # Cells with only border in reach stay zero.
            if all(seen):
                taps, places = zip(*(_to_slices(pairs) for pairs in seen), strict=True)
                every = slice(None)
                steps.append(
                    partial(xp.copyto, packed[(every, *places, *cell)], w[(every, 0, *taps)])
                )
        return steps

    def bind(self, xp: ArrayModule, on: Operands) -> list[Step]:
        """Return steps in `xp` for `on`: gather, product and scatter of each block of channels."""
        conv, steps = self.conv, []
        parts = list(iterate_blocks(conv.channels, self.block))
        for image, block in itertools.product(range(conv.batch), parts):
            source, target = on.x[image, block], on.y[image, block]
            gathered, *others = (buffer[: len(source)] for buffer in on.scratch)
            if not self.frame.trivial:
                steps += self.frame.fill(xp, others[-1], source)
                source = others[-1]
            matrices = on.w[block].reshape(len(source), gathered.shape[-1], -1)
            keeps_order = self.tiling.keeps_order
            shape = (*gathered.shape[:2], matrices.shape[-1])
            products = target.reshape(shape) if keeps_order else others[0]
            steps.append(self._gather(xp, source, gathered))
            steps.append(partial(xp.matmul, gathered, matrices, products))
            if not keeps_order:
                steps += self._scatter(xp, products, target)
            steps += add_bias(xp, target[None], None if on.bias is None else on.bias[block])
        return steps

    def _seen(self, axis: int, cell: int) -> list[tuple[int, int]]:
        """Return (tap, place) pairs of the taps of `cell` on `axis` in its reach."""
        tiles, window = self.tiling.axes[axis], self.conv.window
        first = cell * window.strides[axis] - self._border(axis)
        places = (first + tap * window.dilations[axis] for tap in range(window.kernel[axis]))
        return [(tap, place) for tap, place in enumerate(places) if 0 <= place < tiles.reach]

    def _gather(self, xp: ArrayModule, source: Array, gathered: Array) -> Step:
        tiling, cells = self.tiling, self.frame.steps
        moves = map(mul, cells, self.conv.window.strides)
        # One view of all reaches, which overlap: a tile's cells times the stride apart.
        apart = map(mul, moves, tiling.tile)
        shape = (len(source), *tiling.counts, *tiling.reach)
        steps = (self.frame.length, *apart, *cells)
        reaches = make_strided(xp, source, shape, steps, self.frame.origin)
        return copy(xp, gathered.reshape(shape), reaches)

    def _scatter(self, xp: ArrayModule, products: Array, target: Array) -> Iterator[Step]:
        """Yield steps in `xp` that copy `products` of tiles, full ones and cropped, to `target`."""
        tiling, rank = self.tiling, len(self.tiling.axes)
        tiles = products.reshape(len(products), *tiling.counts, *tiling.tile)
        by_axis = [(1 + d, 1 + rank + d) for d in range(rank)]
        tiles = tiles.transpose(0, *itertools.chain(*by_axis))
        every, parts = slice(None), map(_iterate_parts, tiling.axes, self.conv.outputs)
        for part in itertools.product(*parts):
            source = tiles[(every, *itertools.chain(*(kept for kept, _ in part)))]
            cells = target[(every, *(place for _, place in part))]
            steps = zip(map(mul, cells.strides[1:], tiling.tile), cells.strides[1:], strict=True)
            strides = (cells.strides[0], *itertools.chain(*steps))
            view = xp.lib.stride_tricks.as_strided(cells, source.shape, strides)
            yield copy(xp, view, source)


@lru_cache(maxsize=1024)
def choose_tiling(conv: Geometry) -> ToeplitzTiling | None:
    """Return the tiling of `conv` with the lowest modelled cost; None if matrices are too large."""
    options = itertools.product(*(_iterate_options(conv, d) for d in range(len(conv.spatial))))
    tilings = (ToeplitzTiling(conv, axes) for axes in options)
    small = (t for t in tilings if math.prod(t.reach) * math.prod(t.tile) <= MAX_MATRIX)
    return min(small, key=lambda tiling: tiling.cost_ns, default=None)


def _iterate_options(conv: Geometry, d: int) -> Iterator[Axis]:
    outputs, stride, extent = conv.outputs[d], conv.window.strides[d], conv.window.extents[d]
    for size in SIZES:
        if size < outputs:
            yield Axis(-(-outputs // size), size, (size - 1) * stride + extent)
    # A single tile reads the input in place: taps on the border are not in its matrix, see `_seen`,
    # so that no frame is needed.
    yield Axis(1, outputs, conv.spatial[d])


def _to_slices(pairs: Sequence[tuple[int, int]]) -> tuple[slice, slice]:
    """Return evenly spaced `pairs` of (tap, place) as a slice of taps and one of places."""
    (tap, place), (last_tap, last_place) = pairs[0], pairs[-1]
    apart = (last_place - place) // max(1, last_tap - tap)
    return slice(tap, last_tap + 1), slice(place, last_place + 1, max(1, apart))


def _iterate_parts(axis: Axis, outputs: int) -> Iterator[tuple[tuple[slice, slice], slice]]:
    """Yield slices of the full tiles along `axis`, then of the cut one, for `outputs` cells."""
    full, rest = divmod(outputs, axis.size)
    if full:
        yield (slice(full), slice(None)), slice(full * axis.size)
    if rest:
        yield (slice(full, full + 1), slice(rest)), slice(full * axis.size, outputs)
