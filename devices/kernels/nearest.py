"""Copying cells to the outputs of a resized tensor: repeats, or gathers of any cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ...graph.values.tensor import Array
from .interpolation import Cells
from .registry import ArrayModule
from .steps import Step


class Repeat(NamedTuple):
    """Cells at equal distances, each shown a number of times in a row."""

    cells: slice
    times: int


def find_repeat(cells: Cells) -> Repeat | None:
    """Return the pattern of an axis's `cells`, or None if they have none."""
    if not len(cells):
        return Repeat(slice(0, 0), 1)
    changes = np.flatnonzero(np.diff(cells))
    times = int(changes[0]) + 1 if len(changes) else len(cells)
    if len(cells) % times:
        return None
    shown = cells[::times]
    step = int(shown[1] - shown[0]) if len(shown) > 1 else 1
    start = int(shown[0])
    if step < 1 or not np.array_equal(
        np.repeat(start + step * np.arange(len(shown)), times), cells
    ):
        return None
    return Repeat(slice(start, int(shown[-1]) + 1, step), times)


def repeat(xp: ArrayModule, x: Array, y: Array, repeats: Sequence[Repeat]) -> list[Step]:
    source = x[tuple(axis.cells for axis in repeats)]
    times = [axis.times for axis in repeats]
    spread = source[(..., *(slice(None), None) * source.ndim)]
    target = y.reshape(
        [number for pair in zip(source.shape, times, strict=True) for number in pair]
    )
    if xp is not np or not times or times[-1] == 1:
        return [partial(xp.copyto, target, spread)]
    # numpy's loop over a last axis of length 2 costs ten times a copy.
    if times[-1] == 2 and y.itemsize < 8:
        return _repeat_as_pairs(spread, target)
    return _repeat_last_first(spread, target)


def _repeat_as_pairs(spread: Array, target: Array) -> list[Step]:
    """Return the steps that repeat `spread` twice along the last axis of `target`.

    The same bits twice side by side are one product of an integer twice as wide.
    """
    bits = 8 * target.itemsize
    pairs = target.view(f"u{target.itemsize * 2}")
    factor = pairs.dtype.type(1 + (1 << bits))
    return [
        partial(np.copyto, pairs, spread.view(f"u{target.itemsize}")),
        partial(np.multiply, pairs, factor, out=pairs),
    ]


def _repeat_last_first(spread: Array, target: Array) -> list[Step]:
    firsts: list[slice] = [slice(0, 1) if size == 1 else slice(None) for size in spread.shape[:-1]]
    steps: list[Step] = [
        partial(np.copyto, target[(*firsts, index)], spread[..., 0])
        for index in range(target.shape[-1])
    ]
    for axis in reversed(range(1, target.ndim - 1, 2)):
        if target.shape[axis] > 1:
            made = target[tuple(firsts)]
            firsts[axis] = slice(1, None)
            steps.append(partial(np.copyto, target[tuple(firsts)], made))
            firsts[axis] = slice(None)
    return steps


def gather(xp: ArrayModule, source: Array, cells: Array, axis: int, target: Array) -> Step:
    if xp is np:  # the default mode would write to a buffer first; the cells are in range
        return partial(np.take, source, cells, axis, target, "clip")
    return partial(xp.take, source, cells, axis, target)
