"""Use of each memory over time: what items hold of it, and what they still need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from ...devices.device import scratch_specs
from ..plans.placement import OUTSIDE, SCRATCH, Step, Transfer
from ..plans.plan import Plan
from ..plans.regions import ADMISSION, PlacedTensor, Pool, Region
from .workload import Timeline

Change: TypeAlias = tuple[int, int]
"""A moment in ns, and how many bytes more, or fewer, there are from then on."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One memory over time.

    Attributes
    ----------
    memory : str
    planned_nbytes : int
        What is allocated from the beginning to the end, without constants: the plan's figure, for
        each of the variants that have this memory.
    held : tuple of (float, int)
        From these seconds on, so many bytes are taken: the regions that items have claimed, and
        those that nobody claims because one device at a time uses them.
    occupied : tuple of (float, int)
        From these seconds on, so many bytes hold something that is still needed; whole steps count.
    """

    memory: str
    planned_nbytes: int
    held: tuple[tuple[float, int], ...]
    occupied: tuple[tuple[float, int], ...]

    @property
    def held_nbytes(self) -> int:
        """The most that is taken at a time."""
        return max((nbytes for _, nbytes in self.held), default=0)

    @property
    def occupied_nbytes(self) -> int:
        """The most that is needed at a time."""
        return max((nbytes for _, nbytes in self.occupied), default=0)


def memory_use(
    variants: Sequence[Plan],
    bodies: Mapping[str, Sequence[Plan]],
    timeline: Timeline,
    land_ns: int,
) -> dict[str, MemoryUse]:
    """Return the use of every memory by all variants of a plan, each for the items that it had.

    The plans for batches of rows, by queue, have memory of their own. Results are copied out
    `land_ns` after they are known.
    """
    queues = [None] * timeline.items + [batch.queue for batch in timeline.batches]
    uses: dict[str, _Use] = {}
    for queue, plans in ((None, variants), *bodies.items()):
        for index, plan in enumerate(plans):
            assert plan.memory is not None
            items = [
                item
                for item, where in enumerate(zip(queues, timeline.variant, strict=True))
                if where == (queue, index)
            ]
            moments = _Moments(timeline, land_ns, items, len(plan.steps))
            needs = _needs(plan)
            for memory, pool in plan.memory.pools.items():
                uses.setdefault(memory, _Use()).add(pool, needs, moments)
    return {memory: use.over_time(memory) for memory, use in uses.items()}


@dataclass(slots=True)
class _Use:
    """What is known of one memory so far."""

    planned_nbytes: int = 0
    shared_nbytes: int = 0
    held: list[Change] = field(default_factory=list)
    occupied: list[Change] = field(default_factory=list)

    def add(
        self, pool: Pool, needs: Mapping[tuple[str, str], list[_Need]], moments: _Moments
    ) -> None:
        # What no step claims is there from the beginning to the end, whoever is in flight.
        unclaimed = (one for one in pool.regions.values() if not one.claims)
        self.planned_nbytes += pool.nbytes
        self.shared_nbytes += sum(one.nbytes * one.copies for one in unclaimed)
        self.held += _held(pool, moments)
        self.occupied += _occupied(pool, needs, moments)

    def over_time(self, memory: str) -> MemoryUse:
        # At one moment the freed bytes come first.
        # Sorted by time, then by sign: a region may change hands at one moment, and is held once.
        held = _running(sorted(self.held), self.shared_nbytes)
        occupied = _running(sorted(self.occupied), 0)
        return MemoryUse(
            memory, self.planned_nbytes, _curve(held, self.shared_nbytes), _curve(occupied)
        )


@dataclass(frozen=True, slots=True)
class _Moments:
    """When things begin and end, with an admission and a landing among the steps."""

    timeline: Timeline
    land_ns: int
    items: Sequence[int]
    n_steps: int

    def begun(self, item: int, step: int) -> int:
        line = self.timeline
        if step == ADMISSION:
            return line.admitted[item]
        return self.left(item) if step == self.n_steps else line.started[line.base(item) + step]

    def submitted(self, item: int, step: int) -> int:
        if step in (ADMISSION, self.n_steps):
            return self.begun(item, step)
        return self.timeline.ready[self.timeline.base(item) + step]

    def over(self, item: int, step: int) -> int:
        line = self.timeline
        if step == ADMISSION:
            return line.admitted[item]
        return self.left(item) if step == self.n_steps else line.ended[line.base(item) + step]

    def left(self, item: int) -> int:
        return self.timeline.landed[item] + self.land_ns


def _held(pool: Pool, moments: _Moments) -> Iterator[Change]:
    for region in pool.regions.values():
        for item in moments.items if region.claims else ():
            start, end = _holding(region, item, moments)
            yield start, region.nbytes
            yield end, -region.nbytes


def _holding(region: Region, item: int, moments: _Moments) -> tuple[int, int]:
    # From when its first step is given to a lane, not from when it begins: others may not have it.
    start = min(moments.submitted(item, step) for step in region.claims)
    releases = region.releases or (moments.n_steps,)
    return start, max(moments.over(item, step) for step in releases)


def _running(changes: Iterable[Change], total: int) -> Iterator[tuple[int, int]]:
    for time, change in changes:
        total += change
        yield time, total


def _accesses(plan: Plan) -> dict[PlacedTensor, list[int]]:
    """Return for every placed tensor the steps that touch it, admission and landing among them."""
    assert plan.placement is not None
    local, home = plan.placement.local, plan.placement.home
    touched: dict[PlacedTensor, list[int]] = {}

    def touch(placed: PlacedTensor, step: int) -> None:
        touched.setdefault(placed, []).append(step)

    for name in set(plan.graph.entering) - plan.placement.arrivals:
        touch((name, home[name]), ADMISSION)
    for step in plan.steps:
        if isinstance(step.work, Transfer):
            touch((step.work.tensor, step.work.source), step.index)
            touch((step.work.tensor, step.work.target), step.index)
            continue
        for name in step.work.graph.inputs:
            touch((name, local[name, step.device]), step.index)
        for node in step.work.graph.nodes:
            for name in filter(None, node.outputs):
                touch((name, home[name]), step.index)
        for placed in _scratch(plan, step):
            touch(placed, step.index)
    for name in plan.graph.leaving:
        if name not in plan.graph.constants:
            touch((name, local[name, OUTSIDE]), len(plan.steps))
    return touched


def _scratch(plan: Plan, step: Step) -> dict[PlacedTensor, int]:
    """Return the scratch buffers of a step's nodes and their sizes."""
    if isinstance(step.work, Transfer):
        return {}
    assert plan.placement is not None
    device, memory = plan.prototypes[step.device], plan.placement.local[SCRATCH, step.device]
    return {
        (name, memory): spec.nbytes
        for node in step.work.graph.nodes
        for name, spec in scratch_specs(device, step.work.graph, node).items()
    }


def _needs(plan: Plan) -> dict[tuple[str, str], list[_Need]]:
    """Return, by memory and region, which bytes are needed from which step to which."""
    assert plan.memory is not None
    scratch = {name: size for step in plan.steps for name, size in _scratch(plan, step).items()}
    needs: dict[tuple[str, str], list[_Need]] = {}
    for placed, steps in _accesses(plan).items():
        location = plan.memory.locations.get(placed)
        nbytes = scratch.get(placed)
        if nbytes is None:
            nbytes = plan.graph.tensors[placed[0]].nbytes
        if location is not None and nbytes:
            need = _Need(location.offset, location.offset + nbytes, tuple(steps))
            needs.setdefault((location.memory, location.region), []).append(need)
    return needs


class _Need(NamedTuple):
    """Bytes from one offset to another, and the steps that touch them."""

    start: int
    end: int
    steps: tuple[int, ...]


def _occupied(
    pool: Pool, needs: Mapping[tuple[str, str], list[_Need]], moments: _Moments
) -> Iterator[Change]:
    """Count the bytes that at least one placed tensor lies on from its first touch to its last."""
    slot = moments.timeline.slot
    for name, region in pool.regions.items():
        found = needs.get((pool.memory, name), [])
        for copy in range(region.copies):
            items = [item for item in moments.items if slot[item] % region.copies == copy]
            yield from _changes(found, items, moments)


def _changes(needs: Sequence[_Need], items: Iterable[int], moments: _Moments) -> Iterator[Change]:
    """Yield by how much the occupied bytes of one copy of a region change, and when."""
    edges = sorted({edge for need in needs for edge in need[:2]})
    place = {edge: index for index, edge in enumerate(edges)}
    # Bytes between two edges are all touched by the same: counted by length, not one by one.
    lengths, counts = np.diff(edges), np.zeros(max(len(edges) - 1, 0), np.int64)
    events: list[tuple[int, int, int, int]] = []
    for item in items:
        for start, end, steps in needs:
            first = min(moments.begun(item, step) for step in steps)
            last = max(moments.over(item, step) for step in steps)
            if first < last:
                where = place[start], place[end]
                events += [(first, 1, *where), (last, -1, *where)]
    for time, change, start, end in sorted(events):
        part = counts[start:end]
        # Only what nobody lay on before counts, and only what nobody lies on any more.
        before = int(lengths[start:end][part > 0].sum())
        part += change
        yield time, int(lengths[start:end][part > 0].sum()) - before


def _curve(changes: Iterable[tuple[int, int]], initial: int = 0) -> tuple[tuple[float, int], ...]:
    """Return the level from each moment on at which it changes."""
    level = {0: initial, **dict(changes)}  # of several changes at a moment the last one stands
    points: list[tuple[float, int]] = []
    for time, nbytes in level.items():
        if not points or points[-1][1] != nbytes:
            points.append((time / 1e9, nbytes))
    return tuple(points)
