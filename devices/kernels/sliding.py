"""Windows along one axis, as one pair of strided slices per tap of the window.

Output o of a window reads the cells o·stride + tap·dilation - begin that lie in the input. Along
one axis at a time, a pooling over k×k cells costs 2k passes in place of k², and no padded copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...graph.operators.windows import Window
from ...graph.values.tensor import Array, Shape
from .arguments import index_at, to_lines
from .blocks import BLOCK, iterate_blocks
from .registry import ArrayModule, Step


@dataclass(frozen=True, slots=True)
class AxisWindow:
    length: int
    outputs: int
    """Cells of the input, and of the output."""
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    end: int = 0
    """See `Window`; those of this axis."""

    @property
    def is_identity(self) -> bool:
        """Return whether each output is the input at the same place."""
        return self.kernel == self.stride == 1 and self.begin == 0 and self.length == self.outputs

    @property
    def borders(self) -> tuple[int, int] | None:
        """The numbers of outputs at either end that lack cells, for one output per input cell.

        None if the window moves by more than one, the numbers differ, or all outputs lack some.
        """
        begin, end = self.begin, (self.kernel - 1) * self.dilation - self.begin
        one_each = self.stride == 1 and self.outputs == self.length and end >= 0
        return (begin, end) if one_each and begin + end < self.length else None

    def slices(self, tap: int) -> tuple[slice, slice]:
        """Return the outputs that `tap` reaches, and the cells they read; both may be empty."""
        offset = tap * self.dilation - self.begin
        first = max(0, -(offset // self.stride))
        last = min(self.outputs - 1, (self.length - 1 - offset) // self.stride)
        if first > last:
            return slice(0), slice(0)
        start, stop = first * self.stride + offset, last * self.stride + offset + 1
        return slice(first, last + 1), slice(start, stop, self.stride)

    def counts(self, *, padding: bool) -> Array:
        """Return the number of cells of each window, with `padding` or without."""
        low, high = (-self.begin, self.length + self.end) if padding else (0, self.length)
        starts = np.arange(self.outputs) * self.stride - self.begin
        cells = starts[:, None] + np.arange(self.kernel) * self.dilation
        return np.count_nonzero((low <= cells) & (cells < high), axis=1)


def list_axis_windows(window: Window, spatial: Shape, outputs: Shape) -> list[AxisWindow]:
    fields = (window.kernel, window.strides, window.dilations, window.pads_begin, window.pads_end)
    return list(map(AxisWindow, spatial, outputs, *fields))


def slide(
    xp: ArrayModule,
    combine: Callable[..., object],
    source: Array,
    target: Array,
    axis: int,
    window: AxisWindow,
    neutral: object,
) -> list[Step]:
    """Return the steps in `xp` that `combine` cells of `source` in windows on `axis` to `target`.

    `window` says how they slide. `combine` is an associative and commutative ufunc, as
    ``xp.maximum``; `neutral`, its neutral element, is the result of a window without cells.
    """
    into = partial(combine, dtype=target.dtype)
    if xp is np and window.borders is not None and source.dtype == target.dtype and source.size:
        return _slide_flat(into, to_lines(source, axis), to_lines(target, axis), window)
    slices = map(window.slices, range(window.kernel))
    pairs = [
        (target[index_at(axis, outputs)], source[index_at(axis, cells)])
        for outputs, cells in slices
    ]
    whole = [cells for outputs, cells in pairs if outputs.shape == target.shape]
    partly = [pair for pair in pairs if pair[0].shape != target.shape and pair[0].size]
    steps = _fold(xp, into, whole, target) if whole else [partial(target.fill, neutral)]
    return [*steps, *(partial(into, outputs, cells, out=outputs) for outputs, cells in partly)]


def _fold(xp: ArrayModule, into: Any, cells: Sequence[Array], target: Array) -> list[Step]:
    if len(cells) == 1:
        return [partial(xp.copyto, target, cells[0])]
    first = partial(into, cells[0], cells[1], out=target)
    return [first, *(partial(into, target, other, out=target) for other in cells[2:])]


def _slide_flat(into: Any, source: Array, target: Array, window: AxisWindow) -> list[Step]:
    """Return the steps for one output per cell, if `window` slides on the middle of three axes.

    `into` combines cells of `source` in `target`. A tap is then an offset in flat cells for any
    length of rows: numpy is slow on short rows (5×5 maxima of 64 planes of 20×20 cells: 39 µs, 109
    by rows). Offsets that read beyond the ends of a line spoil the outputs at its borders, which
    are written last.
    """
    assert window.borders is not None
    begin, end = window.borders
    inner, apart = source.shape[2], window.dilation * source.shape[2]
    cells, outputs = source.reshape(-1), target.reshape(-1)
    count = cells.size - (window.kernel - 1) * apart
    steps: list[Step] = []
    for part in iterate_blocks(count, BLOCK):
        taps = [
            cells[part.start + tap * apart : part.stop + tap * apart]
            for tap in range(window.kernel)
        ]
        found = outputs[part.start + begin * inner : part.stop + begin * inner]
        steps += _fold(np, into, taps, found)
    for place in range(begin):
        steps += _write_border(into, source, target, window, place, place - 1)
    for place in reversed(range(window.length - end, window.length)):
        steps += _write_border(into, source, target, window, place, place + 1)
    return steps


def _write_border(
    into: Any, source: Array, target: Array, window: AxisWindow, place: int, outside: int
) -> list[Step]:
    """Return the steps that write `target` at `place`, where `window` lacks cells.

    They combine cells of `source` by the ufunc `into`; most of them may be in `outside`, a
    neighbour.
    """
    first, last = place - window.begin, place + (window.kernel - 1) * window.dilation - window.begin
    if window.dilation == 1 and 0 <= outside < window.length:  # it sees one cell less
        cell = last if outside < place else first
        return [partial(into, target[:, outside], source[:, cell], out=target[:, place])]
    seen = range(max(first, first % window.dilation), window.length, window.dilation)
    inside = [source[:, cell] for cell in seen if cell <= last]
    return _fold(np, into, inside, target[:, place])
