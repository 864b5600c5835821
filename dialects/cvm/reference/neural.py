"""Definitions of cvm's convolution, dense product, pooling and upsampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....devices.formal.registry import at, definition, indices, table
from ....graph.values.tensor import Array

LOWEST = -(2**31)
"""The value of padding of a max pool."""


@definition("cvm.conv2d")
def conv2d(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    **_: Any,
) -> Array:
    """Return y[n, o, i, j] = `b`[o] + Σ over c, k, m of `x`[n, f + c, i', j'] · `w`[o, c, k, m].

    i' = i · stride - pad + k · gap with `strides`, `padding` and `dilation`, j' likewise with m;
    outside x counts as 0. f is the first channel of the group, one of `groups`, that o belongs to.
    """
    batch, _channels, height, width = x.shape
    out_channels, per_group, rows, columns = w.shape
    outputs_per_group = out_channels // groups

    def element(n: int, o: int, i: int, j: int) -> int:
        first = o // outputs_per_group * per_group
        value = at(b, o) if b is not None else 0
        for c, k, m in indices((per_group, rows, columns)):
            row = i * strides[0] - padding[0] + k * dilation[0]
            column = j * strides[1] - padding[1] + m * dilation[1]
            if 0 <= row < height and 0 <= column < width:
                value += at(x, n, first + c, row, column) * at(w, o, c, k, m)
        return int(value)

    high = _count_positions(height, rows, strides[0], padding[0], dilation[0])
    wide = _count_positions(width, columns, strides[1], padding[1], dilation[1])
    return table((batch, out_channels, high, wide), element)


def _count_positions(length: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    span = (kernel - 1) * dilation + 1
    return (length + 2 * padding - span) // stride + 1


@definition("cvm.dense")
def dense(x: Array, w: Array, b: Array | None = None, **_: Any) -> Array:
    """Return y[m, u] = `b`[u] + Σ over k of `x`[m, k] · `w`[u, k]."""
    rows, depth = x.shape

    def element(m: int, u: int) -> int:
        products = sum(at(x, m, k) * at(w, u, k) for k in range(depth))
        return int(products + (at(b, u) if b is not None else 0))

    return table((rows, w.shape[0]), element)


@definition("cvm.max_pool2d")
def max_pool2d(
    x: Array,
    *,
    pool_size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    **_: Any,
) -> Array:
    """Return the largest number of `x` in each window of `pool_size`, moved by `strides`.

    Windows reach into `padding`, which counts as the least int32; with `ceil_mode` a window may be
    cut at the end.
    """
    batch, channels, height, width = x.shape
    pads = (padding[0], padding[-1])

    def element(n: int, c: int, i: int, j: int) -> int:
        values = [LOWEST]
        for k, m in indices(pool_size):
            row, column = i * strides[0] - pads[0] + k, j * strides[1] - pads[1] + m
            if 0 <= row < height and 0 <= column < width:
                values.append(at(x, n, c, row, column))
        return max(values)

    high = _count_windows(height, pool_size[0], strides[0], pads[0], ceil_mode)
    wide = _count_windows(width, pool_size[1], strides[1], pads[1], ceil_mode)
    return table((batch, channels, high, wide), element)


def _count_windows(length: int, pool: int, stride: int, padding: int, ceil_mode: bool) -> int:
    room = length + 2 * padding - pool
    return (room + stride - 1 if ceil_mode else room) // stride + 1


@definition("cvm.upsampling")
def upsampling(x: Array, *, scale: int, **_: Any) -> Array:
    """Return y[n, c, i, j] = `x`[n, c, i ÷ `scale`, j ÷ `scale`]."""
    batch, channels, height, width = x.shape
    return table(
        (batch, channels, height * scale, width * scale),
        lambda n, c, i, j: at(x, n, c, i // scale, j // scale),
    )
