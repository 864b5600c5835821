"""Infinities and NaNs in convolutions by a method that would spread them.

Toeplitz matrices multiply cells by zeros that the convolution does not have, and Winograd's
transforms add cells and subtract them again: one infinity or NaN makes NaN of its neighbours.
Features with such values afterwards are recomputed by the definition, in their own memory.
Looking for them takes 2 to 5 % of the time of a depthwise convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...graph.values.tensor import Array
from .geometry import Geometry, Operands

BLOCK = 1 << 18
"""Elements of windows that are gathered at a time."""


def is_finite(values: Array) -> bool:
    """Return whether all `values` are finite, and none is so large that its square is not.

    BLAS adds the squares up three times as fast as numpy adds values.
    """
    flat = values.reshape(-1)
    if flat.dtype not in (np.float32, np.float64):
        return bool(np.isfinite(flat).all())
    return math.isfinite(np.dot(flat, flat))


def repair_convolution(conv: Geometry, on: Operands) -> None:
    """Compute the features of `on.y` again that hold infinities or NaNs; `conv` has the sizes."""
    if is_finite(on.y):
        return
    sums = on.y.reshape(conv.batch, conv.features, -1).sum(-1)
    per_group = conv.features // conv.group
    for image, group in np.argwhere(~np.isfinite(sums).reshape(conv.batch, conv.group, -1).all(-1)):
        features = slice(group * per_group, (group + 1) * per_group)
        bad = features.start + np.flatnonzero(~np.isfinite(sums[image, features]))
        weights = on.w[bad].reshape(len(bad), -1)
        source = on.x[image, group * conv.depth : (group + 1) * conv.depth]
        for rows, windows in _gather_windows(conv, source):
            found = weights @ windows
            if on.bias is not None:
                found += on.bias[bad, None]
            on.y[image, bad, rows] = found.reshape(len(bad), -1, *conv.outputs[1:])


def _gather_windows(conv: Geometry, source: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows of outputs of `conv`, and the cells of `source` in their windows.

    The cells are (depth · taps, places).
    """
    window, rank = conv.window, len(conv.spatial)
    pads = zip(window.pads_begin, window.pads_end, strict=True)
    padded = np.pad(source, [(0, 0), *pads])
    extents = [(n - 1) * step + 1 for n, step in zip(window.kernel, window.dilations, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(padded, extents, tuple(range(1, rank + 1)))
    places = [slice(None, None, stride) for stride in window.strides]
    cells = [slice(None, None, dilation) for dilation in window.dilations]
    views = views[(slice(None), *places, *cells)]
    # From (depth, places, cells) to (depth, cells, places).
    views = views.transpose(0, *range(rank + 1, 2 * rank + 1), *range(1, rank + 1))
    row = conv.depth * conv.taps * math.prod(conv.outputs[1:])
    count = max(1, BLOCK // max(row, 1))
    for start in range(0, conv.outputs[0], count):
        rows = slice(start, min(start + count, conv.outputs[0]))
        part = views[(slice(None),) * (rank + 1) + (rows,)]
        yield rows, part.reshape(conv.depth * conv.taps, -1)
