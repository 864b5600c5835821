"""Lines of a tensor, and how many threads go over each.

A line is made of the elements along some axes of a tensor, at one place of the other axes: what
reductions and normalizations work on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .indexing import contiguous, index_type, merged
from .kernel import GROUPS, THREADS

EACH = 8
"""Elements that a thread takes of a line, if there are enough of them."""
BUSY = GROUPS * THREADS
"""Threads that keep the largest devices busy."""
LEAST_PART = 32
"""Elements that a thread takes of a part, or else a line is not split."""
MOST_PARTS = 256
MARGIN = 1 << 16
"""What loops may add to an index behind the end."""


@dataclass(frozen=True)
class Lines:
    """The lines along some axes of a C-ordered tensor."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many lines there are."""
        return math.prod(n for axis, n in enumerate(self.shape) if axis not in self.axes)

    @property
    def length(self) -> int:
        """How many elements each has."""
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def index(self) -> str:
        """The C type of indices."""
        return index_type(math.prod(self.shape) + MARGIN)  # what loops add behind it

    @property
    def parts(self) -> int:
        """How many parts each line is split into."""
        wanted = BUSY // max(self.count * self.lanes, 1)
        return max(1, min(wanted, self.length // (self.lanes * LEAST_PART), MOST_PARTS))

    @property
    def is_adjacent(self) -> bool:
        """True when neighbours in memory are on the same line."""
        wide = [axis for axis, n in enumerate(self.shape) if n > 1]
        return not wide or wide[-1] in self.axes

    @property
    def lanes(self) -> int:
        """How many threads go over a line, or a part of it, together."""
        share = self.length // EACH
        if not self.is_adjacent:  # neighbouring threads take neighbouring lines
            share = min(share, BUSY // max(self.count, 1), THREADS // 32)
        return 1 << max(0, min(share, THREADS).bit_length() - 1)

    @property
    def in_group(self) -> int:
        """How many lines, or parts of them, a group goes over."""
        return THREADS // self.lanes

    def along(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths and strides of the axes of a line."""
        return self._merged(lambda axis: axis in self.axes)

    def across(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths and strides of the other axes."""
        return self._merged(lambda axis: axis not in self.axes)

    def _merged(self, taken: Callable[[int], bool]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        kept = [axis for axis in range(len(self.shape)) if taken(axis)]
        strides = contiguous(self.shape)
        lengths, merged_strides = merged(
            [self.shape[axis] for axis in kept], [strides[axis] for axis in kept]
        )
        return lengths, merged_strides
