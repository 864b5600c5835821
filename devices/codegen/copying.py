"""Kernels that copy elements from one strided layout to another.

Elements are moved as unsigned words of their size, or of up to 8 bytes if runs of elements allow
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from .indexing import choose_index_type, declare_coordinates, make_strides, merge_axes, write_offset
from .registry import THREADS, Kernel, Parameter, count_groups
from .types import write_literal

WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Unsigned integers by size in bytes."""


_TILE = 32
_LEAST = 8
"""The shortest axis for which tiles pay."""


def choose_words(itemsize: int, run: int) -> tuple[int, int]:
    """Return the size and number of words in which `run` elements of `itemsize` bytes can move."""
    while itemsize < max(WORDS) and run % 2 == 0 and run:
        itemsize, run = 2 * itemsize, run // 2
    return itemsize, run


class Layout(NamedTuple):
    """A layout of elements: strides and the place of the first, in elements."""

    strides: tuple[int, ...]
    base: int = 0


def copy(
    title: str,
    itemsize: int,
    shape: Sequence[int],
    source: Layout,
    target: Layout | None = None,
    *,
    read: int = 0,
    written: int = 0,
    flips: bool = False,
) -> Kernel:
    """Return the kernel `title` that copies a box of elements.

    The box has `shape`, with the axes last that lie closest in the target, and elements of
    `itemsize` bytes. It moves from `source` in input `read` to `target`, by default in C order, in
    output `written`. `flips` flips the highest bit of each byte, which subtracts 128 from unsigned
    bytes.
    """
    end = target or Layout(make_strides(shape))
    lengths, *strides = merge_axes(shape, source.strides, end.strides)
    ours, theirs = map(Layout, strides, (source.base, end.base))
    box = _widen(_Box(itemsize, lengths, ours, theirs, flips))
    word = WORDS[box.itemsize]
    parameters = (Parameter("x", word, "input", read), Parameter("y", word, "output", written))
    rows = _find_row_axis(box)
    if rows is None:
        size = prod(box.shape)
        return Kernel(title, parameters, _write_loop(box), count_groups(size))
    return Kernel(title, parameters, _write_tiles(box, rows, word), _count_tiles(box, rows))


class _Box(NamedTuple):
    itemsize: int
    shape: tuple[int, ...]
    source: Layout
    target: Layout
    flips: bool

    @property
    def flipped(self) -> str:
        """The expression that is appended to each word."""
        mask = int.from_bytes(b"\x80" * self.itemsize, "little")
        return f" ^ {write_literal(mask, WORDS[self.itemsize])}" if self.flips else ""

    @property
    def ctype(self) -> str:
        ends = (
            layout.base + sum(abs(s) * n for s, n in zip(layout.strides, self.shape, strict=True))
            for layout in (self.source, self.target)
        )
        return choose_index_type(prod(self.shape) + THREADS, *ends)


def _widen(box: _Box) -> _Box:
    itemsize, shape = box.itemsize, box.shape
    if itemsize == max(WORDS) or not shape or shape[-1] % 2:
        return box
    halved = []
    for strides, base in (box.source, box.target):
        if strides[-1] != 1 or any(number % 2 for number in (*strides[:-1], base)):
            return box
        halved.append(Layout((*(stride // 2 for stride in strides[:-1]), 1), base // 2))
    source, target = halved
    return _widen(_Box(2 * itemsize, (*shape[:-1], shape[-1] // 2), source, target, box.flips))


def _write_loop(box: _Box) -> str:
    c = box.ctype
    lines = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {prod(box.shape)}) return;",
        *declare_coordinates("i", box.shape, "k", c),
        f"y[{write_offset(box.target.strides, 'k', box.target.base)}] = "
        f"x[{write_offset(box.source.strides, 'k', box.source.base)}]{box.flipped};",
    ]
    return "\n".join(lines)


def _find_row_axis(box: _Box) -> int | None:
    """Return the axis along which `box` reads contiguously; None if it is the last, or short."""
    last = len(box.shape) - 1
    if last < 1 or box.target.strides[last] != 1 or box.source.strides[last] == 1:
        return None
    for axis in range(last):
        if box.source.strides[axis] == 1 and min(box.shape[axis], box.shape[last]) >= _LEAST:
            return axis
    return None


def _count_tiles(box: _Box, rows: int) -> int:
    return prod(
        count_groups(length, _TILE) if axis in (rows, len(box.shape) - 1) else length
        for axis, length in enumerate(box.shape)
    )


def _write_tiles(box: _Box, rows: int, word: str) -> str:
    """Return C that transposes `box` tile by tile, through words of C type `word`.

    `rows` is the axis along which the source is contiguous.
    """
    c, last = box.ctype, len(box.shape) - 1
    batch = [axis for axis in range(last) if axis != rows]
    high, wide = (count_groups(box.shape[axis], _TILE) for axis in (rows, last))
    where = [
        write_offset([layout.strides[axis] for axis in batch], "k", layout.base)
        for layout in (box.source, box.target)
    ]
    step = THREADS // _TILE
    return f"""\
SHARED {word} tile[{_TILE}][{_TILE + 1}];
const {c} lane = THREAD % {_TILE}, first = THREAD / {_TILE};
const {c} group = GROUP, batch = group / {wide * high};
const {c} column = group % {wide} * {_TILE}, row = group / {wide} % {high} * {_TILE};
{chr(10).join(declare_coordinates("batch", [box.shape[axis] for axis in batch], "k", c))}
for ({c} n = first; n < {_TILE}; n += {step})
    if (row + lane < {box.shape[rows]} && column + n < {box.shape[last]})
        tile[n][lane] = x[{where[0]} + row + lane + (column + n) * ({box.source.strides[last]})];
BARRIER;
for ({c} n = first; n < {_TILE}; n += {step})
    if (row + n < {box.shape[rows]} && column + lane < {box.shape[last]})
        y[{where[1]} + (row + n) * ({box.target.strides[rows]}) + column + lane] =
            tile[lane][n]{box.flipped};"""
