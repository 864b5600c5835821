"""Items of a plan run in a random order, with a mark in place of every byte.

Whatever the plan's waits, its devices and the claims of its regions allow for may happen next. A
buffer that is written gets its owner's mark; whoever touches it later must find that mark.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from plait import Plan
from plait.scheduler.dispatch.region_ring import RegionRing
from plait.scheduler.planner.memory.buffers import Buffer, collect_buffers
from plait.scheduler.planner.memory.happens_before import START, HappensBefore, Point
from plait.scheduler.plans.placement import Transfer
from plait.scheduler.plans.regions import ADMISSION, Location, MemoryPlan


class CorruptionError(Exception):
    """A mark was overwritten while somebody still needed it."""


@dataclass
class Interleaving:
    """One random run of some items through a static plan."""

    plan: Plan
    n_items: int
    seed: int
    most_in_flight: int = 0
    _live: dict[int, _Item] = field(default_factory=dict)

    def run(self) -> None:
        """Run all items; raise CorruptionError, or AssertionError if nothing can go on."""
        assert self.plan.memory is not None
        self._random = random.Random(self.seed)
        self._rings = RegionRing(self.plan.memory.regions)
        self._touched = self._touches()
        self._bytes: dict[tuple[str, str, int], dict[int, tuple[int, int]]] = defaultdict(dict)
        self._queues: dict[str, deque[tuple[int, int, int]]] = defaultdict(deque)
        self._admitted = 0
        while self._admitted < self.n_items or self._live:
            actions = list(self._actions())
            assert actions, "no item can go on"
            self._random.choice(actions)()
            self.most_in_flight = max(self.most_in_flight, len(self._live))

    def _actions(self) -> Sequence[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if self._admitted < self.n_items and len(self._live) < self.plan.max_in_flight:
            found.append(self._admit)
        found += [partial(self._advance, name) for name, queue in self._queues.items() if queue]
        for number, item in self._live.items():
            if item.fed and not item.counts:
                found.append(partial(self._land, number))
        return found

    def _admit(self) -> None:
        number = self._rings.admit()
        self._admitted += 1
        self._live[number] = _Item({step.index: len(step.waits) for step in self.plan.steps})
        self._ask(number, ADMISSION)

    def _ask(self, number: int, step: int) -> None:
        if self._rings.claim(number, step):
            self._start(number, step)

    def _start(self, number: int, step: int) -> None:
        if step != ADMISSION:
            self._queues[self.plan.steps[step].device].append((number, step, 0))
            return
        self._touch(number, START)
        self._live[number].fed = True
        for index, count in list(self._live[number].counts.items()):
            if count == 0:
                self._ask(number, index)

    def _advance(self, device: str) -> None:
        number, step, place = self._queues[device][0]
        self._touch(number, (step + 1, place))
        if place + 1 < self._length(step):
            self._queues[device][0] = number, step, place + 1
            return
        self._queues[device].popleft()
        counts = self._live[number].counts
        del counts[step]
        self._grant(self._rings.complete(number, step))
        for later in self.plan.steps[step].dependents:
            counts[later] -= 1
            if counts[later] == 0:
                self._ask(number, later)

    def _land(self, number: int) -> None:
        self._touch(number, (len(self.plan.steps) + 1, 0))
        del self._live[number]
        self._grant(self._rings.complete(number, len(self.plan.steps)))
        self._grant(self._rings.leave(number))

    def _grant(self, granted: Sequence[tuple[int, int]]) -> None:
        for number, step in granted:
            self._start(number, step)

    def _length(self, step: int) -> int:
        work, device = self.plan.steps[step].work, self.plan.steps[step].device
        whole = self.plan.prototypes[device].capabilities.atomic_programs
        return 1 if isinstance(work, Transfer) or whole else len(work.graph.nodes)

    def _touches(self) -> dict[Point, list[tuple[int, Buffer]]]:
        found: dict[Point, list[tuple[int, Buffer]]] = defaultdict(list)
        for key, buffer in enumerate(_buffers(self.plan)):
            for point in buffer.accesses:
                found[point].append((key, buffer))
        return found

    def _touch(self, number: int, point: Point) -> None:
        touched = self._touched.get(point, [])
        marked = self._live[number].marked
        for key, buffer in touched:
            if key not in marked:
                assert point in buffer.writers
                marked.add(key)
                bytes_, places = self._where(number, buffer)
                bytes_.update(dict.fromkeys(places, (number, key)))
        for key, buffer in touched:
            bytes_, places = self._where(number, buffer)
            for place in places:
                if bytes_.get(place) != (number, key):
                    raise CorruptionError(f"{buffer} of item {number} at {point}")

    def _where(self, number: int, buffer: Buffer) -> tuple[dict[int, tuple[int, int]], range]:
        """Return the marks of the copy a buffer lies in, and its places, 64 bytes each."""
        assert self.plan.memory is not None
        placed, inner = next(iter(buffer.offsets.items()))
        location = self.plan.memory.locations[placed]
        region = self.plan.memory.pools[location.memory].regions[location.region]
        begin = location.offset - inner
        places = range(begin // 64, -(-(begin + buffer.nbytes) // 64))
        copy = number % region.copies
        return self._bytes[location.memory, location.region, copy], places


def _buffers(plan: Plan) -> list[Buffer]:
    """Return the buffers that the plan was made for: those whose tensors lie where they should."""
    assert plan.placement is not None
    assert plan.memory is not None
    added = set(plan.memory.added_edges)  # they came later, and decide nothing about the buffers
    order = HappensBefore(
        [
            replace(step, waits=tuple(w for w in step.waits if (w, step.index) not in added))
            for step in plan.steps
        ]
    )
    for joins, confined in product((True, False), (False, True)):  # what shares most comes first
        buffers = collect_buffers(
            plan.graph, plan.placement, plan.prototypes, order, joins=joins, confined=confined
        )
        starts = (
            {(at.region, at.offset - inner) for at, inner in _places(plan.memory, buffer)}
            for buffer in buffers
        )
        if all(len(start) == 1 for start in starts):
            return buffers
    raise AssertionError("the plan follows none of the ways to share bytes")


def _places(memory: MemoryPlan, buffer: Buffer) -> Iterator[tuple[Location, int]]:
    return ((memory.locations[placed], inner) for placed, inner in buffer.offsets.items())


@dataclass
class _Item:
    counts: dict[int, int]
    fed: bool = False
    marked: set[int] = field(default_factory=set)
