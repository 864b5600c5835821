"""Lines of a tensor, and the number of threads for each.

A line consists of the elements along some axes of a tensor, at one place of the other axes:
reductions and normalizations work on lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .indexing import choose_index_type, make_strides, merge_axes
from .registry import GROUPS, THREADS

EACH = 8
"""Elements of a line per thread, if there are enough of them."""
BUSY = GROUPS * THREADS
"""Threads that keep the largest devices busy."""
LEAST_PART = 32
"""Fewest elements of a part per thread for which a line is split."""
MOST_PARTS = 256
MARGIN = 1 << 16
"""Most that loops add to an index beyond the end."""


@dataclass(frozen=True)
class Lines:
    """The lines along some axes of a C-ordered tensor."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(n for axis, n in enumerate(self.shape) if axis not in self.axes)

    @property
    def length(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def index(self) -> str:
        return choose_index_type(
            math.prod(self.shape) + MARGIN
        )  # loops add up to this beyond the end

    @property
    def parts(self) -> int:
        wanted = BUSY // max(self.count * self.lanes, 1)
        return max(1, min(wanted, self.length // (self.lanes * LEAST_PART), MOST_PARTS))

    @property
    def is_adjacent(self) -> bool:
        """Whether neighbours in memory are on the same line."""
        wide = [axis for axis, n in enumerate(self.shape) if n > 1]
        return not wide or wide[-1] in self.axes

    @property
    def lanes(self) -> int:
        """The number of threads that share a line, or a part of it."""
        share = self.length // EACH
        if not self.is_adjacent:  # neighbouring threads take neighbouring lines
            share = min(share, BUSY // max(self.count, 1), THREADS // 32)
        return 1 << max(0, min(share, THREADS).bit_length() - 1)

    @property
    def in_group(self) -> int:
        return THREADS // self.lanes

    def along(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths and strides of the axes of a line."""
        return self._merged(lambda axis: axis in self.axes)

    def across(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self._merged(lambda axis: axis not in self.axes)

    def _merged(self, taken: Callable[[int], bool]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        kept = [axis for axis in range(len(self.shape)) if taken(axis)]
        strides = make_strides(self.shape)
        lengths, merged_strides = merge_axes(
            [self.shape[axis] for axis in kept], [strides[axis] for axis in kept]
        )
        return lengths, merged_strides
