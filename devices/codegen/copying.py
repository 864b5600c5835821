"""Kernels that copy elements from one strided layout to another.

Elements are moved as unsigned words of their size, or of up to 8 bytes where runs allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from .indexing import contiguous, coordinates, index_type, merged, offset
from .kernel import THREADS, Kernel, Parameter, groups_of
from .types import literal

WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Unsigned integers by their bytes."""


_TILE = 32
_LEAST = 8
"""An axis shorter than this is not worth tiles."""


def words_of(itemsize: int, run: int) -> tuple[int, int]:
    """Return the size of words, and how many of them, that runs of elements can be moved in."""
    while itemsize < max(WORDS) and run % 2 == 0 and run:
        itemsize, run = 2 * itemsize, run // 2
    return itemsize, run


class Layout(NamedTuple):
    """Where elements lie: strides and the place of the first, in elements."""

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
    """Return the kernel that copies a box of elements.

    Parameters
    ----------
    itemsize : int
        Bytes of an element.
    shape : sequence of int
        Of the box; its last axes are those that lie closest in the target.
    target : Layout, optional
        C order when left out.
    read, written : int
        Which input and output of the node.
    flips : bool
        Whether the highest bit of each byte is turned over: bytes without a sign, less 128.
    """
    end = target or Layout(contiguous(shape))
    lengths, *strides = merged(shape, source.strides, end.strides)
    ours, theirs = map(Layout, strides, (source.base, end.base))
    box = _widened(_Box(itemsize, lengths, ours, theirs, flips))
    word = WORDS[box.itemsize]
    parameters = (Parameter("x", word, "input", read), Parameter("y", word, "output", written))
    rows = _rows(box)
    if rows is None:
        size = prod(box.shape)
        return Kernel(title, parameters, _plain(box), groups_of(size))
    return Kernel(title, parameters, _tiled(box, rows, word), _tiles(box, rows))


class _Box(NamedTuple):
    itemsize: int
    shape: tuple[int, ...]
    source: Layout
    target: Layout
    flips: bool

    @property
    def flipped(self) -> str:
        """What is done to each word."""
        mask = int.from_bytes(b"\x80" * self.itemsize, "little")
        return f" ^ {literal(mask, WORDS[self.itemsize])}" if self.flips else ""

    @property
    def ctype(self) -> str:
        """The type of its indices."""
        ends = (
            layout.base + sum(abs(s) * n for s, n in zip(layout.strides, self.shape, strict=True))
            for layout in (self.source, self.target)
        )
        return index_type(prod(self.shape) + THREADS, *ends)


def _widened(box: _Box) -> _Box:
    """Return the box in words of twice the size, for as long as runs are made of such words."""
    itemsize, shape = box.itemsize, box.shape
    if itemsize == max(WORDS) or not shape or shape[-1] % 2:
        return box
    halved = []
    for strides, base in (box.source, box.target):
        if strides[-1] != 1 or any(number % 2 for number in (*strides[:-1], base)):
            return box
        halved.append(Layout((*(stride // 2 for stride in strides[:-1]), 1), base // 2))
    source, target = halved
    return _widened(_Box(2 * itemsize, (*shape[:-1], shape[-1] // 2), source, target, box.flips))


def _plain(box: _Box) -> str:
    c = box.ctype
    lines = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {prod(box.shape)}) return;",
        *coordinates("i", box.shape, "k", c),
        f"y[{offset(box.target.strides, 'k', box.target.base)}] = "
        f"x[{offset(box.source.strides, 'k', box.source.base)}]{box.flipped};",
    ]
    return "\n".join(lines)


def _rows(box: _Box) -> int | None:
    """Return the axis along which the source is read in runs, where it is not the last one."""
    last = len(box.shape) - 1
    if last < 1 or box.target.strides[last] != 1 or box.source.strides[last] == 1:
        return None
    for axis in range(last):
        if box.source.strides[axis] == 1 and min(box.shape[axis], box.shape[last]) >= _LEAST:
            return axis
    return None


def _tiles(box: _Box, rows: int) -> int:
    return prod(
        groups_of(length, _TILE) if axis in (rows, len(box.shape) - 1) else length
        for axis, length in enumerate(box.shape)
    )


def _tiled(box: _Box, rows: int, word: str) -> str:
    """Write the transposition of tiles by way of shared memory, so that all access is in runs."""
    c, last = box.ctype, len(box.shape) - 1
    batch = [axis for axis in range(last) if axis != rows]
    high, wide = (groups_of(box.shape[axis], _TILE) for axis in (rows, last))
    where = [
        offset([layout.strides[axis] for axis in batch], "k", layout.base)
        for layout in (box.source, box.target)
    ]
    step = THREADS // _TILE
    return f"""\
SHARED {word} tile[{_TILE}][{_TILE + 1}];
const {c} lane = THREAD % {_TILE}, first = THREAD / {_TILE};
const {c} group = GROUP, batch = group / {wide * high};
const {c} column = group % {wide} * {_TILE}, row = group / {wide} % {high} * {_TILE};
{chr(10).join(coordinates("batch", [box.shape[axis] for axis in batch], "k", c))}
for ({c} n = first; n < {_TILE}; n += {step})
    if (row + lane < {box.shape[rows]} && column + n < {box.shape[last]})
        tile[n][lane] = x[{where[0]} + row + lane + (column + n) * ({box.source.strides[last]})];
BARRIER;
for ({c} n = first; n < {_TILE}; n += {step})
    if (row + n < {box.shape[rows]} && column + lane < {box.shape[last]})
        y[{where[1]} + (row + n) * ({box.target.strides[rows]}) + column + lane] =
            tile[lane][n]{box.flipped};"""
