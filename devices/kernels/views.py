"""Views over contiguous cells, and copies between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.values.tensor import Array
from .registry import ArrayModule, Step, run_in_order

MAX_RUN = 64
"""Elements; up to here copying a run as one opaque item beats copying its elements."""

UNROLLED = 4
"""Longest axis that is copied item by item along the axis before it."""


def make_strided(
    xp: ArrayModule, array: Array, shape: Sequence[int], steps: Sequence[int], offset: int = 0
) -> Array:
    strides = [step * array.itemsize for step in steps]
    cells = array.reshape(-1)[offset:]
    return xp.lib.stride_tricks.as_strided(cells, tuple(shape), tuple(strides))


def copy(xp: ArrayModule, target: Array, source: Array) -> Step:
    """Return the step in `xp` that copies the view `source` to the view `target`.

    numpy copies a short run of elements in 4 ns, and as one opaque item in 2 (measured on 12
    floats): trailing axes that are one run in both views are copied as such items. Each row of the
    axis that is then the last costs 4 ns more: one that is short is unrolled.
    """
    run, axes = 1, 0
    while axes < target.ndim and target.shape[-axes - 1] * run <= MAX_RUN:
        if not target.strides[-axes - 1] == source.strides[-axes - 1] == run * target.itemsize:
            break
        axes, run = axes + 1, run * target.shape[-axes - 1]
    if xp is not np or run <= 1:
        return partial(xp.copyto, target, source)
    item = np.dtype((np.void, run * target.itemsize))
    target, source = (
        array.reshape(*array.shape[: array.ndim - axes], run).view(item)[..., 0]
        for array in (target, source)
    )
    rows, count = (1, 1, *target.shape)[-2:]
    if count <= UNROLLED and rows >= 2 * count:
        steps = (partial(np.copyto, target[..., i], source[..., i]) for i in range(count))
        return run_in_order(steps)
    return partial(np.copyto, target, source)
