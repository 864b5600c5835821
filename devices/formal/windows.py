"""Windows that slide over spatial axes, from ONNX's attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...graph.core.attribute import Attributes
from .registry import indices


class WindowPositions(NamedTuple):
    """A window along one axis: cell k of window o lies at o·stride - begin + k·dilation.

    `length` is that of the axis that it slides over, `end` how much padding follows.
    """

    length: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int

    def place(self, window: int, cell: int) -> int:
        """Return where `cell` of a `window` lies, counted from the first element."""
        return window * self.stride - self.begin + cell * self.dilation


def make_windows(
    lengths: Sequence[int], outputs: Sequence[int], kernel: Sequence[int], attributes: Attributes
) -> list[WindowPositions]:
    """Return the windows of `kernel` cells on axes of `lengths`; `outputs` has their numbers.

    Padding, strides and dilations are in `attributes`. SAME_* pads for the last window; an odd cell
    is at the end (UPPER) or at the beginning (LOWER).
    """
    rank, auto_pad = len(lengths), attributes["auto_pad"]
    sliding = []
    for axis, (length, count, size) in enumerate(zip(lengths, outputs, kernel, strict=True)):
        stride, dilation = get_steps(attributes, axis)
        begin, end = get_explicit_pads(attributes, axis, rank)
        if auto_pad.startswith("SAME"):
            reach = (count - 1) * stride + (size - 1) * dilation + 1
            begin, end = split_halves(max(reach - length, 0), more_at_end=auto_pad == "SAME_UPPER")
        sliding.append(WindowPositions(length, size, stride, dilation, begin, end))
    return sliding


def get_steps(attributes: Attributes, axis: int) -> tuple[int, int]:
    """Return stride and dilation of `axis` in `attributes`, 1 where none is given."""
    strides, dilations = attributes["strides"], attributes["dilations"]
    return 1 if strides is None else strides[axis], 1 if dilations is None else dilations[axis]


def get_explicit_pads(attributes: Attributes, axis: int, rank: int) -> tuple[int, int]:
    pads = attributes["pads"]
    if pads is None or attributes["auto_pad"] != "NOTSET":
        return 0, 0
    return pads[axis], pads[axis + rank]


def split_halves(cells: int, *, more_at_end: bool) -> tuple[int, int]:
    less, more = cells // 2, cells - cells // 2
    return (less, more) if more_at_end else (more, less)


def iterate_places(
    sliding: Sequence[WindowPositions], window: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield each cell of window number `window`, and where it lies, even outside the tensor.

    `sliding` has the windows along each axis.
    """
    for cell in indices([axis.kernel for axis in sliding]):
        along = zip(sliding, window, cell, strict=True)
        yield cell, tuple(axis.place(o, k) for axis, o, k in along)


def is_inside(place: Sequence[int], lengths: Sequence[int]) -> bool:
    return all(0 <= i < length for i, length in zip(place, lengths, strict=True))
