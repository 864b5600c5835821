"""The partial order of everything a plan does for one item.

A point is (step, place in it): the nodes of a subgraph run in order; a transfer is one point, and
so is an atomic program.
Between steps only the waits count, closed transitively; START, the feeding, comes before and END,
the fetching, after everything. Whatever a device's queue does beyond that is not relied upon.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..steps import Step

Point = tuple[int, int]

START: Point = (0, 0)


class HappensBefore:
    """Answers whether one point always comes before another.

    Steps are numbered from 1 here, so that START can be 0; sets of them are bit masks.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.end: Point = (len(steps) + 1, 0)
        earlier = [0, *([1] * len(steps)), (1 << (len(steps) + 1)) - 1]
        for step in steps:
            for wait in step.waits:
                earlier[step.index + 1] |= earlier[wait + 1] | 1 << (wait + 1)
        self.earlier = earlier
        """For every step the mask of the steps that come before it."""

    def point(self, step: Step, place: int = 0) -> Point:
        """Return the point of a step's node, or of a transfer."""
        return step.index + 1, place

    def precedes(self, a: Point, b: Point) -> bool:
        """True when a is over before b starts, however the run goes."""
        if a[0] == b[0]:
            return a[1] < b[1]
        return bool(self.earlier[b[0]] >> a[0] & 1)
