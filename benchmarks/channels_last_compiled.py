"""Prototypes with channels last in machine code: loops over channels, which vectors are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numba
import numpy as np
from channels_last import Last, framed
from plait.devices.kernels.registry import Step
from plait.graph.values.tensor import Array

_njit: Any = numba.njit


@cache
def taps_of(kernel: tuple[int, int]) -> Callable[..., None]:
    """Return the loops for a kernel, whose taps are unrolled: a channel's sum is a register."""
    kh, kw = kernel

    def taps(x: Array, w: Array, bias: Array, y: Array, moves: tuple[int, int, int, int]) -> None:
        down, across, below, beside = moves
        rows, columns, channels = y.shape
        for r in range(rows):
            for q in range(columns):
                for c in range(channels):
                    total = bias[c]
                    for i in range(kh):
                        for j in range(kw):
                            cell = x[r * down + i * below, q * across + j * beside, c]
                            total += cell * w[i, j, c]
                    y[r, q, c] = total

    compiled: Callable[..., None] = _njit(nogil=True, fastmath=True)(taps)
    return compiled


def depthwise(on: Last) -> Iterator[Step]:
    """Y = Σ over taps of w·x, for all channels of a cell together."""
    window = on.conv.window
    source, steps = framed(on)
    yield from steps
    w = np.ascontiguousarray(on.w[:, 0].transpose(1, 2, 0))
    (down, across), (below, beside) = window.strides, window.dilations
    (kh, kw), moves = window.kernel, (down, across, below, beside)
    yield partial(taps_of((kh, kw)), source, w, on.bias, on.y, moves)
