"""Inputs framed by zeros, so that windows near a border read cells like all others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul

from ...graph.values.tensor import Array
from .arguments import index_at
from .geometry import Geometry
from .registry import ArrayModule, Step


@dataclass(frozen=True, slots=True)
class Frame:
    """An input within a border of zeros, flattened per channel.

    Two rows share the border between them: right of one, left of the next. A row is thus shorter
    than the padded input's, which saves zeroing and, where windows run over the flat cells, work.
    """

    spatial: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    """The input's dims, the cells of border before and after it."""

    @property
    def trivial(self) -> bool:
        """Return whether it lacks a border, so that the input needs no copy."""
        return not any((*self.begins, *self.ends))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dims of the framed cells, the last one's border shared."""
        *outer, last = zip(self.spatial, self.begins, self.ends, strict=True)
        return (*(map(sum, outer)), last[0] + max(last[1:]))

    @property
    def steps(self) -> tuple[int, ...]:
        """How far apart, in flat cells, the neighbours along each axis are."""
        sizes = self.sizes
        return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))

    @property
    def origin(self) -> int:
        """The flat cell of the border's first corner."""
        return max(self.begins[-1], self.ends[-1]) - self.begins[-1]

    @property
    def length(self) -> int:
        """The number of flat cells of a channel; the last row's right border sticks out."""
        return math.prod(self.sizes) + self.ends[-1]

    def span(self, outputs: Sequence[int]) -> int:
        """Return the flat cells from first to last window of `outputs`; windows move by one."""
        return 1 + sum((size - 1) * step for size, step in zip(outputs, self.steps, strict=True))

    def fill(self, xp: ArrayModule, buffer: Array, source: Array) -> list[Step]:
        cells = buffer[:, : math.prod(self.sizes)].reshape(-1, *self.sizes)
        begins = (*self.begins[:-1], self.sizes[-1] - self.spatial[-1])
        steps, inner = zero_borders(cells, begins, self.spatial)
        if self.ends[-1]:
            steps.append(partial(buffer[:, math.prod(self.sizes) :].fill, 0))
        return [*steps, partial(xp.copyto, inner, source)]


def zero_borders(
    cells: Array, begins: Sequence[int], spatial: Sequence[int]
) -> tuple[list[Step], Array]:
    steps: list[Step] = []
    for axis, (begin, size) in enumerate(zip(begins, spatial, strict=True)):
        for border in (slice(begin), slice(begin + size, None)):
            outside = cells[index_at(1 + axis, border)]
            if outside.size:
                steps.append(partial(outside.fill, 0))
        cells = cells[index_at(1 + axis, slice(begin, begin + size))]
    return steps, cells


def make_frame(conv: Geometry) -> Frame:
    return Frame(conv.spatial, conv.window.pads_begin, conv.window.pads_end)


def list_tap_offsets(conv: Geometry, frame: Frame) -> list[tuple[tuple[int, ...], int]]:
    apart = tuple(map(mul, frame.steps, conv.window.dilations))
    taps = itertools.product(*map(range, conv.window.kernel))
    return [(tap, sum(map(mul, tap, apart))) for tap in taps]
