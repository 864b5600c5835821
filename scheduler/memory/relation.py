"""Which buffers may not overlap: those whose accesses nothing keeps apart.

Two facts keep two buffers a and b apart, and they may share bytes:

    order     every access to a happens before every first write of b, or the other way round
    one lane  each is touched by one step alone, not the same one, and the same device runs both;
              a device runs one step at a time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..packing import Conflicts, Intervals, conflicts_of
from ..steps import Step
from .buffers import Buffer
from .happens_before import HappensBefore, Point

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Relation:
    """How the buffers of one memory stand to each other.

    Attributes
    ----------
    conflicts : Intervals or Conflicts
        Which must not overlap, as the packer takes it.
    lanes : list of str or None
        The device, for buffers that one step alone touches.
    touched : list of int
        For every buffer the mask of the steps that touch it, numbered as in `HappensBefore`.
    """

    conflicts: Intervals | Conflicts
    lanes: list[str | None]
    touched: list[int]

    def among(self, indices: Sequence[int]) -> Intervals | Conflicts:
        """Return the relation between some of the buffers, in ascending order."""
        if isinstance(self.conflicts, Intervals):
            return self.conflicts.restrict(indices)
        number = np.full(len(self.lanes), -1, np.int64)
        number[np.asarray(indices, np.int64)] = np.arange(len(indices))
        a, b = self.conflicts.pairs()
        kept = (number[a] >= 0) & (number[b] >= 0)
        return _of_sorted(len(indices), number[a[kept]], number[b[kept]])

    def rows(self) -> list[list[int]]:
        """Return for every buffer those that it must not overlap."""
        found = self.conflicts
        pairs = found.conflicts if isinstance(found, Intervals) else found
        return [pairs.near(index).tolist() for index in range(len(self.lanes))]


def relate(buffers: Sequence[Buffer], steps: Sequence[Step], order: HappensBefore) -> Relation:
    """Compare the buffers of one memory with each other."""
    touched = [_mask(buffer) for buffer in buffers]
    lanes = [_lane(mask, steps) for mask in touched]
    begins = _begins(buffers, len(order.earlier))
    conflicts = conflicts_of(
        list(_predecessors(begins, order)),
        [[_number(point, begins) for point in buffer.writers] for buffer in buffers],
        [[_number(point, begins) for point in buffer.accesses] for buffer in buffers],
    )
    if isinstance(conflicts, Conflicts):
        conflicts = _apart_by_lanes(conflicts, touched, lanes)
    return Relation(conflicts, lanes, touched)


def members(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _begins(buffers: Sequence[Buffer], n_steps: int) -> list[int]:
    """Return the number of each step's first point when all points are counted, and of the end."""
    places = [1] * n_steps
    for buffer in buffers:
        for step, place in buffer.accesses:
            places[step] = max(places[step], place + 1)
    begins = [0]
    for count in places:
        begins.append(begins[-1] + count)
    return begins


def _number(point: Point, begins: Sequence[int]) -> int:
    return begins[point[0]] + point[1]


def _predecessors(begins: Sequence[int], order: HappensBefore) -> Iterator[list[int]]:
    """Yield for every point what comes directly before it."""
    for step, earlier in enumerate(order.earlier):
        yield [begins[other + 1] - 1 for other in order.direct(step)] if earlier else []
        for point in range(begins[step] + 1, begins[step + 1]):
            yield [point - 1]


def _mask(buffer: Buffer) -> int:
    mask = 0
    for step, _ in buffer.accesses:
        mask |= 1 << step
    return mask


def _lane(mask: int, steps: Sequence[Step]) -> str | None:
    """Return the device of the one step that touches a buffer, if it is one."""
    step = mask.bit_length() - 1
    if mask != 1 << step or not 1 <= step <= len(steps):
        return None
    return steps[step - 1].device


def _apart_by_lanes(
    conflicts: Conflicts, touched: Sequence[int], lanes: Sequence[str | None]
) -> Conflicts:
    """Return the conflicts without those between different steps of one lane."""
    names = {name: index for index, name in enumerate(dict.fromkeys(lanes)) if name is not None}
    lane = np.array([-1 if name is None else names[name] for name in lanes], np.int64)
    step = np.array([mask.bit_length() for mask in touched], np.int64)
    a, b = conflicts.pairs()
    kept = (lane[a] < 0) | (lane[a] != lane[b]) | (step[a] == step[b])
    if kept.all():
        return conflicts
    return _of_sorted(len(touched), a[kept], b[kept])


def _of_sorted(count: int, first: Indices, second: Indices) -> Conflicts:
    """Return conflicts that are given in both directions and in order."""
    ends = np.cumsum(np.bincount(first, minlength=count))
    return Conflicts(np.concatenate([[0], ends]).astype(np.int64), second.astype(np.int32))
