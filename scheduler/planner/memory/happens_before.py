"""The partial order of everything a plan does for one item, and when each tensor is read in it.

A point is (step, place in it): the nodes of a subgraph run in order; a transfer is one point, and
so is an atomic program.
Between steps only the waits count, closed transitively; START, the feeding, comes before and END,
the fetching, after everything. Whatever a device's queue does beyond that is not relied upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ....devices.device import Device
from ....graph.ir import Graph, Node
from ...plans.partition import Subgraph
from ...plans.placement import OUTSIDE, Placement
from ...plans.regions import PlacedTensor
from ...plans.steps import Step, Transfer

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
    for name in graph.outputs:
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
