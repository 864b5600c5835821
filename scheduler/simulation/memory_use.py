"""Use of each memory over time: bytes that items hold, and bytes that they still need."""

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
"""A time in ns and the change of bytes."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Use of one memory over time."""

    memory: str
    planned_nbytes: int
    """Allocated for the whole run without constants, summed over the variants in this memory."""
    held: tuple[tuple[float, int], ...]
    """Time in seconds and bytes from then on: claimed regions, and regions without claims, which
    one device at a time uses."""
    occupied: tuple[tuple[float, int], ...]
    """Time in seconds and bytes from then on that are still needed, to the precision of steps."""

    @property
    def held_nbytes(self) -> int:
        return max((nbytes for _, nbytes in self.held), default=0)

    @property
    def occupied_nbytes(self) -> int:
        return max((nbytes for _, nbytes in self.occupied), default=0)


def compute_memory_use(
    variants: Sequence[Plan], bodies: Mapping[str, Sequence[Plan]], timeline: Timeline, land_ns: int
) -> dict[str, MemoryUse]:
    """Return the use of every memory by all `variants` of a plan in `timeline`.

    `bodies` are the plans for batches of rows, by queue, which have memory of their own. Results
    are copied out `land_ns` after they are known.
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
            needs = _collect_needs(plan)
            for memory, pool in plan.memory.pools.items():
                uses.setdefault(memory, _Use()).add(pool, needs, moments)
    return {memory: use.over_time(memory) for memory, use in uses.items()}


@dataclass(slots=True)
class _Use:
    planned_nbytes: int = 0
    shared_nbytes: int = 0
    held: list[Change] = field(default_factory=list)
    occupied: list[Change] = field(default_factory=list)

    def add(
        self, pool: Pool, needs: Mapping[tuple[str, str], list[_Need]], moments: _Moments
    ) -> None:
        # Regions without claims are held from beginning to end.
        unclaimed = (one for one in pool.regions.values() if not one.claims)
        self.planned_nbytes += pool.nbytes
        self.shared_nbytes += sum(one.nbytes * one.copies for one in unclaimed)
        self.held += _list_held_changes(pool, moments)
        self.occupied += _list_occupied_changes(pool, needs, moments)

    def over_time(self, memory: str) -> MemoryUse:
        # Sorted by time, then by sign: a region that changes hands at one moment counts once.
        held = _sum_changes(sorted(self.held), self.shared_nbytes)
        occupied = _sum_changes(sorted(self.occupied), 0)
        return MemoryUse(
            memory,
            self.planned_nbytes,
            _build_curve(held, self.shared_nbytes),
            _build_curve(occupied),
        )


@dataclass(frozen=True, slots=True)
class _Moments:
    """Times of steps, with admission and landing among them."""

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


def _list_held_changes(pool: Pool, moments: _Moments) -> Iterator[Change]:
    for region in pool.regions.values():
        for item in moments.items if region.claims else ():
            start, end = _find_hold(region, item, moments)
            yield start, region.nbytes
            yield end, -region.nbytes


def _find_hold(region: Region, item: int, moments: _Moments) -> tuple[int, int]:
    # From its first step's submission, not its start: no other item may use it since then.
    start = min(moments.submitted(item, step) for step in region.claims)
    releases = region.releases or (moments.n_steps,)
    return start, max(moments.over(item, step) for step in releases)


def _sum_changes(changes: Iterable[Change], total: int) -> Iterator[tuple[int, int]]:
    for time, change in changes:
        total += change
        yield time, total


def _collect_accesses(plan: Plan) -> dict[PlacedTensor, list[int]]:
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
        for placed in _measure_scratch(plan, step):
            touch(placed, step.index)
    for name in plan.graph.leaving:
        if name not in plan.graph.constants:
            touch((name, local[name, OUTSIDE]), len(plan.steps))
    return touched


def _measure_scratch(plan: Plan, step: Step) -> dict[PlacedTensor, int]:
    if isinstance(step.work, Transfer):
        return {}
    assert plan.placement is not None
    device, memory = plan.prototypes[step.device], plan.placement.local[SCRATCH, step.device]
    return {
        (name, memory): spec.nbytes
        for node in step.work.graph.nodes
        for name, spec in scratch_specs(device, step.work.graph, node).items()
    }


def _collect_needs(plan: Plan) -> dict[tuple[str, str], list[_Need]]:
    assert plan.memory is not None
    scratch = {
        name: size for step in plan.steps for name, size in _measure_scratch(plan, step).items()
    }
    needs: dict[tuple[str, str], list[_Need]] = {}
    for placed, steps in _collect_accesses(plan).items():
        location = plan.memory.locations.get(placed)
        nbytes = scratch.get(placed)
        if nbytes is None:
            nbytes = plan.graph.tensors[placed[0]].nbytes
        if location is not None and nbytes:
            need = _Need(location.offset, location.offset + nbytes, tuple(steps))
            needs.setdefault((location.memory, location.region), []).append(need)
    return needs


class _Need(NamedTuple):
    """A range of bytes and the steps that touch it."""

    start: int
    end: int
    steps: tuple[int, ...]


def _list_occupied_changes(
    pool: Pool, needs: Mapping[tuple[str, str], list[_Need]], moments: _Moments
) -> Iterator[Change]:
    """Yield the changes of bytes in use of `pool`; `needs` last from their first to last use."""
    slot = moments.timeline.slot
    for name, region in pool.regions.items():
        found = needs.get((pool.memory, name), [])
        for copy in range(region.copies):
            items = [item for item in moments.items if slot[item] % region.copies == copy]
            yield from _list_changes(found, items, moments)


def _list_changes(
    needs: Sequence[_Need], items: Iterable[int], moments: _Moments
) -> Iterator[Change]:
    edges = sorted({edge for need in needs for edge in need[:2]})
    place = {edge: index for index, edge in enumerate(edges)}
    # Bytes between two edges have the same touches: one count for all of them.
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
        # Only bytes count that become occupied or free.
        before = int(lengths[start:end][part > 0].sum())
        part += change
        yield time, int(lengths[start:end][part > 0].sum()) - before


def _build_curve(
    changes: Iterable[tuple[int, int]], initial: int = 0
) -> tuple[tuple[float, int], ...]:
    level = {0: initial, **dict(changes)}  # the last change at a time stands
    points: list[tuple[float, int]] = []
    for time, nbytes in level.items():
        if not points or points[-1][1] != nbytes:
            points.append((time / 1e9, nbytes))
    return tuple(points)
