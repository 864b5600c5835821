"""Kernels of ``(xp, inputs, outputs, attributes)`` that move, repeat and join elements.

Transposition is numpy's copy, cut so that neither side is walked in long strides. Measured on
float32 (µs, numpy's single copy, then this): 1024 × 1024 5374, 1902; 12544 × 64 668, 298;
3 × 50176 476, 175; 4 × 10000 81, 14.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from ...graph.core.attribute import Attributes
from ...graph.core.operator import Call
from ...graph.operators.movement import to_axis_pads
from .arguments import get_integers, get_optional, index_at
from .blocks import iterate_blocks
from .registry import ArrayModule, Arrays, Step, kernel, run_in_order


@kernel("Concat", binds=True)
def concat(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    return partial(xp.concatenate, list(inputs), attributes["axis"], outputs[0])


@kernel("Expand", binds=True)
def expand(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    return partial(xp.copyto, outputs[0], inputs[0])


@kernel("Tile", binds=True)
def tile(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x, y = inputs[0], outputs[0]
    pairs = [(big // max(small, 1), small) for big, small in zip(y.shape, x.shape, strict=True)]
    if y.size == 0:
        return partial(y.fill, 0)
    source = x.reshape([length for _, small in pairs for length in (1, small)])
    target = y.reshape([length for pair in pairs for length in pair])
    return partial(xp.copyto, target, source)


def _refuse_computed_k(call: Call) -> str | None:
    return "its k is read by the host on each run" if call.has(1) else None


@kernel("Trilu", host=_refuse_computed_k)
def triangle(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    x, y, given = inputs[0], outputs[0], get_optional(inputs, 1)
    k = 0 if given is None else int(given.reshape(()))
    rows, columns = x.shape[-2:]
    k = min(max(k, -rows), columns)
    upper = attributes["upper"]
    below = xp.tri(rows, columns, k - 1 if upper else k, dtype=bool)
    xp.copyto(y, x)
    xp.copyto(y, False, where=below if upper else ~below)


@kernel("Pad", binds=True)
def pad(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    # y = x with a border, cropped for negative pads. The middle is copied first. Then the borders,
    # axis by axis: each is made from the cells between the two borders of its axis, so that corners
    # come out right.
    x, y, value = inputs[0], outputs[0], get_optional(inputs, 2)
    pads = to_axis_pads(x.ndim, get_integers(inputs, 1) or (), get_integers(inputs, 3))
    begins = [max(before, 0) for before, _ in pads]
    sources = [_slice_kept(length, *both) for length, both in zip(x.shape, pads, strict=True)]
    inner = [
        slice(begin, begin + part.stop - part.start)
        for begin, part in zip(begins, sources, strict=True)
    ]
    copies = [(y[(..., *inner)], x[(..., *sources)])]  # the dots keep a scalar an array
    fill = False if value is None else value.reshape(())
    for axis, length in enumerate(y.shape):
        after = inner[axis + 1 :]
        for target, source in _iterate_borders(attributes["mode"], inner[axis], length):
            cells = fill if source is None else y[(*index_at(axis, source), *after)]
            copies.append((y[(*index_at(axis, target), *after)], cells))
    return run_in_order(partial(xp.copyto, target, source) for target, source in copies)


def _slice_kept(length: int, before: int, after: int) -> slice:
    """Return the part of an axis of `length` that negative pads `before` and `after` leave."""
    begin = min(max(-before, 0), length)
    return slice(begin, max(min(length + after, length), begin))


def _iterate_borders(mode: str, middle: slice, length: int) -> Iterator[tuple[slice, slice | None]]:
    """Yield parts of the border around `middle`, up to `length`, and the cells they repeat.

    None stands for cells in `mode` "constant".
    """
    for begin, end in ((0, middle.start), (middle.stop, length)):
        if begin == end:
            continue
        if mode == "constant":
            yield slice(begin, end), None
            continue
        count = middle.stop - middle.start
        sources = [
            middle.start + _find_source(mode, i - middle.start, count) for i in range(begin, end)
        ]
        yield from _iterate_runs(begin, sources)


def _find_source(mode: str, position: int, count: int) -> int:
    if mode == "edge" or count == 1:
        return min(max(position, 0), count - 1)
    if mode == "wrap":
        return position % count
    period = 2 * (count - 1)
    return min(position % period, period - position % period)


def _iterate_runs(begin: int, sources: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Yield (target, source) slices of `sources` for cells from `begin` on, as few as possible."""
    start = 0
    while start < len(sources):
        stop, step = start + 1, 0
        if stop < len(sources):
            step = sources[stop] - sources[start]
            step = step if step in (-1, 0, 1) else 0
        while stop < len(sources) and sources[stop] - sources[stop - 1] == step:
            stop += 1
        first, last = sources[start], sources[stop - 1]
        if step < 0:
            source = slice(first, last - 1 if last else None, -1)
        else:
            source = slice(first, last + 1)
        yield slice(begin + start, begin + stop), source
        start = stop


STRIP = 64
"""Elements of the output's last axis that are written before the next strip begins."""


@kernel("Transpose", binds=True)
def transpose(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> Step:
    x, y = inputs[0], outputs[0]
    if xp is not np:
        return partial(xp.copyto, y, x.transpose(attributes["perm"]))
    perm = attributes["perm"] or range(x.ndim)[::-1]
    lengths, order = merge_axes(x.shape, perm)
    source = x.reshape(lengths).transpose(order)
    target = y.reshape(source.shape)
    return run_in_order(
        partial(np.copyto, target[..., part], source[..., part])
        for part in _split_last(lengths, order)
    )


def merge_axes(shape: Sequence[int], perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return lengths and order of the fewest axes by which to transpose `shape` as `perm` does.

    Axes of length 1 go, and neighbours that stay neighbours become one.
    """
    kept = [axis for axis, length in enumerate(shape) if length != 1]
    runs: list[list[int]] = []
    for axis in (kept.index(axis) for axis in perm if shape[axis] != 1):
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    in_source = sorted(runs)
    lengths = [math.prod(shape[kept[axis]] for axis in run) for run in in_source]
    return lengths or [1], [in_source.index(run) for run in runs] or [0]


def _split_last(lengths: Sequence[int], order: Sequence[int]) -> Sequence[slice]:
    """Return the parts of the output's last axis that are copied one by one.

    `lengths` are the input's, `order` its axes in the output.
    """
    last = lengths[order[-1]]
    if order[-1] == len(order) - 1:  # the last axis stays: whole rows are copied
        return [slice(None)]
    if last <= 4:
        return list(iterate_blocks(last, 1))
    if last >= 2 * STRIP and lengths[-1] >= STRIP // 2:
        return list(iterate_blocks(last, STRIP))
    return [slice(None)]
