"""Definitions, ``op(*inputs, **attributes)``, that reorder by blocks and sequences."""

from __future__ import annotations

from typing import Any

from ...graph.values.errors import ShapeError
from ...graph.values.tensor import Array
from .registry import at, definition, table


@definition("DepthToSpace")
def depth_to_space(x: Array, *, blocksize: int, mode: str) -> Array:
    batch, depth, height, width = x.shape
    channels = depth // blocksize**2

    def element(n: int, c: int, row: int, column: int) -> Any:
        (h, i), (w, j) = divmod(row, blocksize), divmod(column, blocksize)
        return at(x, n, _find_channel(c, i, j, channels, blocksize, mode), h, w)

    return table((batch, channels, height * blocksize, width * blocksize), element)


@definition("SpaceToDepth")
def space_to_depth(x: Array, *, blocksize: int, mode: str) -> Array:
    batch, channels, height, width = x.shape
    origin = {
        _find_channel(c, i, j, channels, blocksize, mode): (c, i, j)
        for c in range(channels)
        for i in range(blocksize)
        for j in range(blocksize)
    }

    def element(n: int, channel: int, h: int, w: int) -> Any:
        c, i, j = origin[channel]
        return at(x, n, c, h * blocksize + i, w * blocksize + j)

    depth = channels * blocksize**2
    return table((batch, depth, height // blocksize, width // blocksize), element)


def _find_channel(c: int, i: int, j: int, channels: int, size: int, mode: str) -> int:
    return (i * size + j) * channels + c if mode == "DCR" else (c * size + i) * size + j


@definition("EyeLike")
def eye_like(x: Array, *, dtype: str | None, k: int) -> Array:
    return table(x.shape, lambda i, j: int(j - i == k))


@definition("ReverseSequence")
def reverse_sequence(x: Array, sequence_lens: Array, *, batch_axis: int, time_axis: int) -> Array:
    for length in sequence_lens.tolist():
        if not 0 <= length <= x.shape[time_axis]:
            raise ShapeError(
                f"a sequence of {length} steps is not among {x.shape[time_axis]}",
                fix="give lengths from 0 to that of the time axis",
            )

    def element(*index: int) -> Any:
        length, time = at(sequence_lens, index[batch_axis]), index[time_axis]
        place = list(index)
        place[time_axis] = length - 1 - time if time < length else time
        return at(x, *place)

    return table(x.shape, element)
