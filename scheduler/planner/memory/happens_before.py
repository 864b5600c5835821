"""The partial order of all that a plan does for one item, and the buffers that it keeps apart.

A point is (step, place in it): the nodes of a subgraph run in order; a transfer is one point, and
so is an atomic program.
Between steps only the waits count, closed transitively; START, the feeding, comes before and END,
the fetching, after everything. Whatever a device's queue does beyond that is not relied upon.

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
from ....graph.ir import Graph, Node
from ...packing import Conflicts, Intervals
from ...packing.partial_order import few_conflicts_of
from ...packing.relation import Stacked
from ...plans.partition import Subgraph
from ...plans.placement import OUTSIDE, Placement, Step, Transfer
from ...plans.regions import PlacedTensor

if TYPE_CHECKING:
    from .buffers import Buffer

Point = tuple[int, int]

START: Point = (0, 0)


class HappensBefore:
    """Answers whether one point always comes before another.

    Steps are numbered from 1 here, so that START can be 0; sets of them are bit masks.

    Attributes
    ----------
    earlier : sequence of int
        For START, every step and END the mask of what comes before it.
    end : Point
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._set(closure(step.waits for step in steps))

    @classmethod
    def given(cls, earlier: Sequence[int]) -> HappensBefore:
        """Return an order by its masks, which must be closed transitively."""
        order = cls.__new__(cls)
        order._set(earlier)
        return order

    def _set(self, earlier: Sequence[int]) -> None:
        self.earlier = earlier
        self.end: Point = (len(earlier) - 1, 0)

    def point(self, step: Step, place: int = 0) -> Point:
        """Return the point of a step's node, or of a transfer."""
        return step.index + 1, place

    def direct(self, step: int) -> list[int]:
        """Return steps that come before a step, and from which all others that do follow."""
        left, found = self.earlier[step], list[int]()
        while left:
            latest = left.bit_length() - 1  # steps are numbered in a topological order
            found.append(latest)
            left &= ~(self.earlier[latest] | 1 << latest)
        return found

    def precedes(self, a: Point, b: Point) -> bool:
        """True when a is over before b starts, however the run goes."""
        if a[0] == b[0]:
            return a[1] < b[1]
        return bool(self.earlier[b[0]] >> a[0] & 1)


def closure(waits: Iterable[Iterable[int]]) -> list[int]:
    """Return what comes before START, every step and END, given the waits of each step from 0."""
    earlier = [0]
    for waited in waits:
        mask = 1
        for step in waited:
            mask |= earlier[step + 1] | 1 << (step + 1)
        earlier.append(mask)
    return [*earlier, (1 << len(earlier)) - 1]


def reads_of(
    graph: Graph, placement: Placement, devices: Mapping[str, Device], order: HappensBefore
) -> dict[PlacedTensor, list[Point]]:
    """Return the points that read each placed tensor."""
    reads: dict[PlacedTensor, list[Point]] = {}
    for step in placement.steps:
        for placed, point in _reads_of_step(graph, placement, devices, order, step):
            reads.setdefault(placed, []).append(point)
    for name in graph.leaving:
        if name not in graph.constants:
            reads.setdefault((name, placement.local[name, OUTSIDE]), []).append(order.end)
    for commit in placement.commits:
        reads.setdefault(commit.source, []).append(order.end)
    return reads


def _reads_of_step(
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
        for node, point in points_of(step, step.work, order):
            for name in dict.fromkeys(filter(None, node.inputs)):
                if name not in graph.constants:
                    yield (name, placement.local[name, step.device]), point


def is_atomic(step: Step, devices: Mapping[str, Device]) -> bool:
    """True when a step is one piece, if it runs a program."""
    return devices[step.device].capabilities.atomic_programs


def points_of(step: Step, work: Subgraph, order: HappensBefore) -> Iterator[tuple[Node, Point]]:
    """Yield the nodes of a step, and when each runs."""
    for place, node in enumerate(work.graph.nodes):
        yield node, order.point(step, place)


MOST_PAIRS = 1_000_000
"""With more conflicts than this, all that is known of buffers is by lane, and by what steps wait
for each other: see `_Apart`."""


@dataclass(frozen=True, slots=True)
class Relation:
    """How the buffers of one memory stand to each other.

    Attributes
    ----------
    conflicts : Intervals, Conflicts or Stacked
        Which must not overlap, as the packer takes it.
    lanes : list of str or None
        The device, for buffers that one step alone touches.
    touched : list of int
        For every buffer the mask of the steps that touch it, numbered as in `HappensBefore`.
    """

    conflicts: Intervals | Conflicts | Stacked
    lanes: list[str | None]
    touched: list[int]

    def among(self, indices: Sequence[int]) -> Intervals | Conflicts | Stacked:
        """Return the relation between some of the buffers, in ascending order."""
        return self.conflicts.restrict(indices)

    def near(self, index: int) -> npt.NDArray[Any]:
        """Return the buffers that one must not overlap."""
        return self.conflicts.near(index)


def relate(
    buffers: Sequence[Buffer],
    steps: Sequence[Step],
    order: HappensBefore,
    *,
    most: int = MOST_PAIRS,
) -> Relation:
    """Compare the buffers of one memory with each other; list `most` conflicts at most."""
    touched = [_mask(buffer) for buffer in buffers]
    lanes = [_lane(mask, steps) for mask in touched]
    # A point is a place in a step's program; they are numbered through all steps.
    begins = _begins(buffers, len(order.earlier))
    writers = [[_number(point, begins) for point in buffer.writers] for buffer in buffers]
    accesses = [[_number(point, begins) for point in buffer.accesses] for buffer in buffers]
    conflicts: Intervals | Conflicts | Stacked | None = few_conflicts_of(
        list(_predecessors(begins, order)),
        writers,
        accesses,
        [None if lane is None else (lane, mask) for lane, mask in zip(lanes, touched, strict=True)],
        most=most,
    )
    if conflicts is None:
        conflicts = _Apart(buffers, order, begins, lanes, touched).stacked()
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
        # A step begins when those that it waits for have ended, at their last point; inside of it
        # one point follows the other.
        yield [begins[other + 1] - 1 for other in order.direct(step)] if earlier else []
        for point in range(begins[step] + 1, begins[step + 1]):
            yield [point - 1]


def _mask(buffer: Buffer) -> int:
    mask = 0
    for step, _ in buffer.accesses:
        mask |= 1 << step
    return mask


def _lane(mask: int, steps: Sequence[Step]) -> str | None:
    """Return the device of the one step that touches a buffer, if it is one, and in order."""
    # Feeding and landing, the first and the last step, belong to no device.
    step = mask.bit_length() - 1
    if mask != 1 << step or not 1 <= step <= len(steps):
        return None
    return None if steps[step - 1].awaited else steps[step - 1].device


class _Apart:
    """What is known without comparing buffers: an upper bound of the conflicts, near-linear.

    What single steps of a device touch is apart from everything else, one step after the other. The
    rest is apart unless the steps that touch it wait for each other, however indirectly. Among such
    buffers, lifetimes are from the earliest that a first writer can come to the latest that an
    access can, counted in points: exact where the steps are in a row. If access x need not come
    before writer w, some run has w before x, so that w comes no later, at its earliest, than x at
    its latest, and the lifetimes overlap.
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
        self._connected = _connected(order)
        self._places = np.diff(begins)
        # The feeding comes before all others: `_earliest` counts it as one.
        self._places[0] = 0
        self._before, self._after = np.zeros((2, self._end + 1), np.int64)
        for step in range(1, self._end):
            earlier = _numbers(order.earlier[step])
            self._before[step] = self._places[earlier].sum()
            self._after[earlier] += self._places[step]
        inner = slice(1, self._end)
        self._total = np.bincount(
            self._connected[inner], self._places[inner], self._end + 1
        ).astype(np.int64)

    def stacked(self) -> Stacked:
        """Return the parts."""
        parts: dict[object, list[int]] = {}
        for index, lane in enumerate(self._lanes):
            parts.setdefault(self._part(index) if lane is None else (lane,), []).append(index)
        found = []
        for part, indices in parts.items():
            if isinstance(part, int):
                lives = [self._widest(self._buffers[index], part) for index in indices]
            else:
                lives = [self._in_order(self._buffers[index]) for index in indices]
            # When these are alive is not known: each is alive with all others.
            if part is None:
                lives = [(0, 1)] * len(indices)
            lower, upper = zip(*lives, strict=True)
            found.append((np.array(indices, np.int64), Intervals(lower, upper)))
        lower, upper = zip(*map(self._in_order, self._buffers), strict=True)
        return Stacked(tuple(found), Intervals(lower, upper))

    def _part(self, index: int) -> int | None:
        """Return which connected steps touch a buffer; None where that is not one set of them."""
        # Feeding and landing are before and after everything: they connect no steps.
        ends = 1 | 1 << self._end
        found = {int(self._connected[step]) for step in members(self._touched[index] & ~ends)}
        return found.pop() if len(found) == 1 else None

    def _widest(self, buffer: Buffer, part: int) -> tuple[int, int]:
        """Return from when to when a buffer can be alive among connected steps."""
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
        """Return when a buffer is alive if all steps run in their order."""
        first = min(_number(point, self._begins) for point in buffer.writers)
        return first, max(_number(point, self._begins) for point in buffer.accesses) + 1


def _numbers(mask: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the bits that are set, quickly where there are thousands."""
    packed = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))


def _connected(order: HappensBefore) -> npt.NDArray[np.int64]:
    """Return for every step the first of those that waits connect it with, in any direction."""
    root = list(range(len(order.earlier)))

    def find(step: int) -> int:
        while root[step] != step:
            # Each look halves the way of the next.
            root[step] = root[root[step]]
            step = root[step]
        return step

    for step in range(1, len(root) - 1):
        for other in order.direct(step):
            if other:
                first, last = sorted((find(other), find(step)))
                root[last] = first
    return np.array([find(step) for step in range(len(root))], np.int64)
