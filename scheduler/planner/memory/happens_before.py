"""The partial order of a plan's points for one item, and the buffers that it keeps apart.

A point is (step, place in it): the nodes of a subgraph run in order; a transfer is one point, and
so is an atomic program.
Between steps only the waits count, closed transitively; START, the feeding, comes before and END,
the fetching, after everything. The order of a device's queue is not used beyond that.

Two facts keep two buffers a and b apart, and they may share bytes:

    order     every access to a happens before every first write of b, or the other way round
    one lane  each is touched by one step alone, not the same one, and the same device runs both;
              a device runs one step at a time
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....devices.device import Device
from ....graph.core.ir import Graph, Node
from ...packing import Conflicts, Intervals
from ...packing.partial_order import find_few_conflicts
from ...packing.relation import Stacked
from ...plans.partition import Subgraph
from ...plans.placement import OUTSIDE, Placement, Step, Transfer
from ...plans.regions import PlacedTensor

if TYPE_CHECKING:
    from .buffers import Buffer

Point = tuple[int, int]

START: Point = (0, 0)


class HappensBefore:
    """Decides whether one point always comes before another.

    Steps are numbered from 1, so that START can be 0; sets of them are bit masks. `earlier` has for
    START, every step and END the mask of its predecessors.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._set(close_waits(step.waits for step in steps))

    @classmethod
    def given(cls, earlier: Sequence[int]) -> HappensBefore:
        """Make an order from transitively closed masks of earlier steps."""
        order = cls.__new__(cls)
        order._set(earlier)
        return order

    def _set(self, earlier: Sequence[int]) -> None:
        self.earlier = earlier
        self.end: Point = (len(earlier) - 1, 0)

    def point(self, step: Step, place: int = 0) -> Point:
        return step.index + 1, place

    def direct(self, step: int) -> list[int]:
        """Return predecessors of `step` from which all its others follow."""
        left, found = self.earlier[step], list[int]()
        while left:
            latest = left.bit_length() - 1  # steps are numbered in a topological order
            found.append(latest)
            left &= ~(self.earlier[latest] | 1 << latest)
        return found

    def precedes(self, a: Point, b: Point) -> bool:
        if a[0] == b[0]:
            return a[1] < b[1]
        return bool(self.earlier[b[0]] >> a[0] & 1)


def close_waits(waits: Iterable[Iterable[int]]) -> list[int]:
    """Return the predecessors of START, each step and END as masks, from the `waits` of steps."""
    earlier = [0]
    for waited in waits:
        mask = 1
        for step in waited:
            mask |= earlier[step + 1] | 1 << (step + 1)
        earlier.append(mask)
    return [*earlier, (1 << len(earlier)) - 1]


def collect_reads(
    graph: Graph, placement: Placement, devices: Mapping[str, Device], order: HappensBefore
) -> dict[PlacedTensor, list[Point]]:
    reads: dict[PlacedTensor, list[Point]] = {}
    for step in placement.steps:
        for placed, point in _list_step_reads(graph, placement, devices, order, step):
            reads.setdefault(placed, []).append(point)
    for name in graph.leaving:
        if name not in graph.constants:
            reads.setdefault((name, placement.local[name, OUTSIDE]), []).append(order.end)
    for commit in placement.commits:
        reads.setdefault(commit.source, []).append(order.end)
    return reads


def _list_step_reads(
    graph: Graph,
    placement: Placement,
    devices: Mapping[str, Device],
    order: HappensBefore,
    step: Step,
) -> Iterator[tuple[PlacedTensor, Point]]:
    if isinstance(step.work, Transfer):
        if not step.work.arrives:
            yield (step.work.tensor, step.work.source), order.point(step)
    elif is_atomic(step, devices):
        for name in step.work.graph.inputs:
            yield (name, placement.local[name, step.device]), order.point(step)
    else:
        for node, point in list_points(step, step.work, order):
            for name in dict.fromkeys(filter(None, node.inputs)):
                if name not in graph.constants:
                    yield (name, placement.local[name, step.device]), point


def is_atomic(step: Step, devices: Mapping[str, Device]) -> bool:
    return devices[step.device].capabilities.atomic_programs


def list_points(step: Step, work: Subgraph, order: HappensBefore) -> Iterator[tuple[Node, Point]]:
    for place, node in enumerate(work.graph.nodes):
        yield node, order.point(step, place)


MOST_PAIRS = 1_000_000
"""With more conflicts than this, only lanes and waits of steps are compared, see `_Apart`."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Conflicts between the buffers of one memory."""

    conflicts: Intervals | Conflicts | Stacked
    """Pairs that must not overlap, as the packer takes them."""
    lanes: list[str | None]
    """The device of buffers that a single step touches."""
    touched: list[int]
    """For every buffer the mask of the steps that touch it."""

    def among(self, indices: Sequence[int]) -> Intervals | Conflicts | Stacked:
        return self.conflicts.restrict(indices)

    def near(self, index: int) -> npt.NDArray[Any]:
        return self.conflicts.near(index)


def relate(
    buffers: Sequence[Buffer],
    steps: Sequence[Step],
    order: HappensBefore,
    *,
    most: int = MOST_PAIRS,
) -> Relation:
    """Return the relation between `buffers` for `steps` in `order`; coarse above `most` pairs."""
    touched = [_make_mask(buffer) for buffer in buffers]
    lanes = [_find_lane(mask, steps) for mask in touched]
    # Points are numbered through all steps.
    begins = _index_steps(buffers, len(order.earlier))
    writers = [[_index_point(point, begins) for point in buffer.writers] for buffer in buffers]
    accesses = [[_index_point(point, begins) for point in buffer.accesses] for buffer in buffers]
    conflicts: Intervals | Conflicts | Stacked | None = find_few_conflicts(
        list(_list_predecessors(begins, order)),
        writers,
        accesses,
        [None if lane is None else (lane, mask) for lane, mask in zip(lanes, touched, strict=True)],
        most=most,
    )
    if conflicts is None:
        conflicts = _Apart(buffers, order, begins, lanes, touched).stacked()
    return Relation(conflicts, lanes, touched)


def iterate_members(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _index_steps(buffers: Sequence[Buffer], n_steps: int) -> list[int]:
    places = [1] * n_steps
    for buffer in buffers:
        for step, place in buffer.accesses:
            places[step] = max(places[step], place + 1)
    begins = [0]
    for count in places:
        begins.append(begins[-1] + count)
    return begins


def _index_point(point: Point, begins: Sequence[int]) -> int:
    return begins[point[0]] + point[1]


def _list_predecessors(begins: Sequence[int], order: HappensBefore) -> Iterator[list[int]]:
    for step, earlier in enumerate(order.earlier):
        # A step begins at the last point of those that it waits for; inside, points follow each
        # other.
        yield [begins[other + 1] - 1 for other in order.direct(step)] if earlier else []
        for point in range(begins[step] + 1, begins[step + 1]):
            yield [point - 1]


def _make_mask(buffer: Buffer) -> int:
    mask = 0
    for step, _ in buffer.accesses:
        mask |= 1 << step
    return mask


def _find_lane(mask: int, steps: Sequence[Step]) -> str | None:
    """Return the device of the only one of `steps` in `mask`, if it runs in order, or None."""
    # Feeding and landing, the first and the last step, have no device.
    step = mask.bit_length() - 1
    if mask != 1 << step or not 1 <= step <= len(steps):
        return None
    return None if steps[step - 1].awaited else steps[step - 1].device


class _Apart:
    """An upper bound of the conflicts without comparing pairs, near-linear in time.

    Buffers of single steps of a device conflict with none of the others, one step after the other.
    The rest conflict only if waits connect their steps, however indirectly. Among such buffers,
    lifetimes are from the earliest that a first writer can come to the latest that an access can,
    counted in points: exact where the steps are in a row. If access x need not come before writer
    w, some run has w before x, so that w comes no later, at its earliest, than x at its latest, and
    the lifetimes overlap.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        order: HappensBefore,
        begins: Sequence[int],
        lanes: Sequence[str | None],
        touched: Sequence[int],
    ) -> None:
        self._buffers, self._begins, self._lanes, self._touched = buffers, begins, lanes, touched
        self._end = len(order.earlier) - 1
        self._connected = _connect_steps(order)
        self._places = np.diff(begins)
        # The feeding comes first: `_earliest` counts it as one.
        self._places[0] = 0
        self._before, self._after = np.zeros((2, self._end + 1), np.int64)
        for step in range(1, self._end):
            earlier = _unpack_members(order.earlier[step])
            self._before[step] = self._places[earlier].sum()
            self._after[earlier] += self._places[step]
        inner = slice(1, self._end)
        self._total = np.bincount(
            self._connected[inner], self._places[inner], self._end + 1
        ).astype(np.int64)

    def stacked(self) -> Stacked:
        parts: dict[object, list[int]] = {}
        for index, lane in enumerate(self._lanes):
            parts.setdefault(self._part(index) if lane is None else (lane,), []).append(index)
        found = []
        for part, indices in parts.items():
            if isinstance(part, int):
                lives = [self._widest(self._buffers[index], part) for index in indices]
            else:
                lives = [self._in_order(self._buffers[index]) for index in indices]
            # Unknown lifetimes: each overlaps all others.
            if part is None:
                lives = [(0, 1)] * len(indices)
            lower, upper = zip(*lives, strict=True)
            found.append((np.array(indices, np.int64), Intervals(lower, upper)))
        lower, upper = zip(*map(self._in_order, self._buffers), strict=True)
        return Stacked(tuple(found), Intervals(lower, upper))

    def _part(self, index: int) -> int | None:
        """Return the number of the connected steps that touch buffer `index`; None for several."""
        # Feeding and landing precede and follow everything: they connect no steps.
        ends = 1 | 1 << self._end
        found = {
            int(self._connected[step]) for step in iterate_members(self._touched[index] & ~ends)
        }
        return found.pop() if len(found) == 1 else None

    def _widest(self, buffer: Buffer, part: int) -> tuple[int, int]:
        first = min(self._earliest(point, part) for point in buffer.writers)
        return first, max(self._latest(point, part) for point in buffer.accesses) + 1

    def _earliest(self, point: Point, part: int) -> int:
        step, place = point
        if step in (0, self._end):
            return int(self._total[part]) + 1 if step else 0
        return int(self._before[step]) + place + 1

    def _latest(self, point: Point, part: int) -> int:
        step, place = point
        if step in (0, self._end):
            return self._earliest(point, part)
        after = int(self._after[step] + self._places[step]) - place
        return int(self._total[part]) + 1 - after

    def _in_order(self, buffer: Buffer) -> tuple[int, int]:
        first = min(_index_point(point, self._begins) for point in buffer.writers)
        return first, max(_index_point(point, self._begins) for point in buffer.accesses) + 1


def _unpack_members(mask: int) -> npt.NDArray[np.int64]:
    packed = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def _connect_steps(order: HappensBefore) -> npt.NDArray[np.int64]:
    root = list(range(len(order.earlier)))

    def find(step: int) -> int:
        while root[step] != step:
            # Each lookup halves the path of the next.
            root[step] = root[root[step]]
            step = root[step]
        return step

    for step in range(1, len(root) - 1):
        for other in order.direct(step):
            if other:
                first, last = sorted((find(other), find(step)))
                root[last] = first
    return np.array([find(step) for step in range(len(root))], np.int64)
