"""Layouts for K items in flight: groups of buffers, each with its own number of copies.

A group becomes a region. Buffers of a single step need one copy per device, because a device runs
one step at a time. Others live from one level of the steps to another, and a pipeline with all
stages busy holds them for as many items as the levels that they span; the feeding is the first
level, the landing the last. More items than lanes plus one keep nothing busier, so no group needs
more copies than that, nor more than K. Three layouts:

    joint   one group
    split   buffers of single steps, per device, and one group of the rest
    rings   as split, with a group per pair of levels, merged while that costs nothing

If even the cheapest takes notably more than one item per lane would, or more than the room, there
is a fourth, which costs a little throughput: the lanes wait while an item lands.

    narrow  one group, with as many copies as there are lanes, but two at least

And if nothing else keeps a limit, a memory holds one item at a time:

    serial  one group, with one copy
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from ...packing import Packing, pack
from ...plans.placement import Step, Transfer
from ...plans.regions import Region
from .happens_before import HappensBefore, Relation, iterate_members

MAX_PERIOD = 64
"""Programs are bound anew for each combination of copies, up to this number."""

SMALL_NBYTES = 1 << 16
"""Below this size of K copies of everything, fewer copies gain nothing."""

TOLERANCE = 1.05
"""Factor of bytes that a shorter period may cost."""

EFFORT, QUICK_EFFORT = 100_000, 2_000
"""Effort of the packer for all of one item's buffers, and for a part of them.

The first takes half a second. It counts work, not time: the same graph always gets the same plan.
"""

DEADLINE_S = 60.0
"""A safeguard: packing never takes this long unless something is badly wrong."""

WIDE = 1.1
"""Factor by which the bytes of one item per lane may be exceeded."""

MAX_MERGED, MAX_MERGED_BUFFERS = 12, 300
"""With more groups, or buffers in them, none are merged: every pair would have to be packed."""


@dataclass(frozen=True, slots=True)
class BufferGroup:
    """Some buffers of a memory, packed."""

    name: str
    indices: tuple[int, ...]
    """The buffers."""
    packing: Packing
    copies: int
    """The most copies of use; 1 for bytes that a device's steps share, see `is_lane`."""
    is_lane: bool = False

    @property
    def nbytes(self) -> int:
        return self.copies * self.packing.nbytes


class StepPipeline:
    """The steps as stages of a pipeline with up to `slots` items in it."""

    def __init__(self, steps: Sequence[Step], order: HappensBefore, slots: int) -> None:
        self.steps, self.order = steps, order
        self._slots = min(slots, MAX_PERIOD)
        # Steps are numbered as in `HappensBefore`: 0 is the feeding, the last the landing.
        self._levels = [0, *([1] * len(steps)), 1]
        for step in steps:
            waited = (self._levels[wait + 1] for wait in step.waits)
            self._levels[step.index + 1] = 1 + max(waited, default=0)
        self._levels[-1] = 1 + max(self._levels)
        # Copies between memories run concurrently to their device's programs: each route is a lane.
        lanes = {(step.device, _route(step)) for step in steps}
        self.n_lanes = len(lanes)

    @property
    def window(self) -> int:
        """The fewest items that keep all lanes busy except during landings."""
        return max(2, self.n_lanes)

    def span(self, touched: int) -> tuple[int, int]:
        """Return the first and the last level of the steps in the mask `touched`.

        A fed tensor without readers is held to the last level: gates do not see the end of the
        feeding.
        """
        levels = [self._levels[step] for step in iterate_members(touched)]
        return min(levels), max(levels) or self._levels[-1]

    def copies(self, span: tuple[int, int], *, small: bool) -> int:
        """Return how many items can use copies of bytes with this span; all if these are small."""
        # A copy per item: no waits, at next to no cost.
        if small:
            return self._slots
        return min(self._slots, span[1] - span[0] + 1, self.n_lanes + 1)

    def claims(self, touched: int) -> tuple[int, ...]:
        """Return the steps in `touched` that come after none of the others; -1 for the feeding."""
        first = (s for s in iterate_members(touched) if not self.order.earlier[s] & touched)
        return tuple(step - 1 for step in first)

    def releases(self, touched: int) -> tuple[int, ...]:
        before = 0
        for step in iterate_members(touched):
            before |= self.order.earlier[step]
        return tuple(step - 1 for step in iterate_members(touched & ~before))


class Layouts:
    """The candidate layouts of one memory's buffers."""

    def __init__(
        self,
        memory: str,
        sizes: Sequence[int],
        relation: Relation,
        flow: StepPipeline,
        *,
        small: bool,
    ) -> None:
        self._memory, self._sizes = memory, sizes
        self._relation, self._flow, self._small = relation, flow, small
        self._packings: dict[tuple[int, ...], Packing] = {}
        self.joint = self._group("items", tuple(range(len(sizes))))
        """Everything in one group."""

    def all(self, room: int | None, *, serial: bool) -> Mapping[str, tuple[BufferGroup, ...]]:
        """Return the layouts by name, also `serial` and other small ones if `room` is low."""
        layouts: dict[str, tuple[BufferGroup, ...]] = {"joint": (self.joint,)}
        # Groups share no bytes: separate ones pay off only if some need fewer copies.
        if self._small or self.joint.copies == 1:
            return layouts
        lanes, crossing, rings = self._apart()
        layouts["split"] = (*lanes, *crossing)
        layouts["rings"] = (*lanes, *name_uniquely(rings))
        # No lane waits for a landing in these. The following are made only to save bytes.
        least = min(sum(group.nbytes for group in groups) for groups in layouts.values())
        narrow = replace(self.joint, copies=min(self.joint.copies, self._flow.window))
        if least > WIDE * narrow.nbytes or (room is not None and least > room):
            layouts["narrow"] = (narrow,)
        if serial and room is not None and min(least, narrow.nbytes) > room:
            layouts["serial"] = (replace(narrow, copies=1),)
        return layouts

    def _apart(self) -> tuple[list[BufferGroup], list[BufferGroup], list[BufferGroup]]:
        """Return the groups of single steps by device; the others as one group, and by levels."""
        by_lane: dict[str, list[int]] = {}
        by_span: dict[tuple[int, int], list[int]] = {}
        for index, lane in enumerate(self._relation.lanes):
            if lane is not None:
                by_lane.setdefault(lane, []).append(index)
            else:
                span = self._flow.span(self._relation.touched[index])
                by_span.setdefault(span, []).append(index)
        lanes = [self._lane(lane, indices) for lane, indices in by_lane.items()]
        crossing = tuple(sorted(index for one in by_span.values() for index in one))
        rest = [self._group("items", crossing)] if crossing else []
        rings = [self._ring(tuple(indices)) for indices in by_span.values()]
        return lanes, rest, self._merged(rings)

    def regions(self, groups: Sequence[BufferGroup], period: int) -> tuple[Region, ...]:
        return tuple(self._region(group, period) for group in groups)

    def _region(self, group: BufferGroup, period: int) -> Region:
        nbytes = group.packing.nbytes
        if group.is_lane:
            return Region(self._memory, group.name, nbytes, 1)
        copies = round_copies(group.copies, period)
        # An item holds a copy from the claims to the releases; the next item with that copy waits.
        touched = self._touched(group.indices)
        claims, releases = self._flow.claims(touched), self._flow.releases(touched)
        return Region(self._memory, group.name, nbytes, copies, claims, releases)

    def _lane(self, lane: str, indices: Sequence[int]) -> BufferGroup:
        return BufferGroup(
            f"lane {lane}", tuple(indices), self._pack(tuple(indices)), 1, is_lane=True
        )

    def _ring(self, indices: tuple[int, ...]) -> BufferGroup:
        first, last = self._flow.span(self._touched(indices))
        return self._group(f"levels {first} to {last}", indices)

    def _group(self, name: str, indices: tuple[int, ...]) -> BufferGroup:
        span = self._flow.span(self._touched(indices))
        copies = self._flow.copies(span, small=self._small)
        return BufferGroup(name, indices, self._pack(indices), copies)

    def _merged(self, rings: list[BufferGroup]) -> list[BufferGroup]:
        if len(rings) > MAX_MERGED or sum(len(ring.indices) for ring in rings) > MAX_MERGED_BUFFERS:
            return rings
        while len(rings) > 1:
            pairs = [
                (a, b, self._ring(tuple(sorted(a.indices + b.indices))))
                for a, b in combinations(rings, 2)
            ]
            # Ties are merged as well, for fewer waits; growth ends the loop.
            a, b, both = min(pairs, key=lambda pair: _compute_growth(*pair))
            if _compute_growth(a, b, both) > 0:
                break
            rings = [ring for ring in rings if ring is not a and ring is not b] + [both]
        return rings

    def _touched(self, indices: Sequence[int]) -> int:
        touched = 0
        for index in indices:
            touched |= self._relation.touched[index]
        return touched

    def _pack(self, indices: tuple[int, ...]) -> Packing:
        if len(indices) == 1:  # common: hundreds of groups of a large graph
            nbytes = self._sizes[indices[0]]
            return Packing((0,), nbytes, nbytes, "alone")
        if indices not in self._packings:
            relation, sizes = self._relation, self._sizes
            everything = len(indices) == len(sizes)
            self._packings[indices] = pack(
                [sizes[index] for index in indices],
                relation.conflicts if everything else relation.among(indices),
                effort=EFFORT if everything else QUICK_EFFORT,
                deadline_s=DEADLINE_S,
                stacks=self._by_lane(indices),
            )
        return self._packings[indices]

    def _by_lane(self, indices: Sequence[int]) -> list[int]:
        lanes = self._relation.lanes
        labels = {lane: label for label, lane in enumerate(dict.fromkeys(lanes))}
        return [labels[lanes[index]] for index in indices]


def choose(
    memories: Sequence[Mapping[str, tuple[BufferGroup, ...]]], limits: Sequence[int | None]
) -> tuple[list[str], int]:
    """Return the name of the cheapest layout for each of `memories`, and the common period.

    The period, a common multiple of all numbers of copies, is the shortest that costs little, and
    respects the limits if possible.
    """
    costs: dict[int, list[tuple[int, str]]] = {}
    # Groups with equal copies are rounded together, for each period.
    summed = [
        {name: _sum_by_copies(groups) for name, groups in layouts.items()} for layouts in memories
    ]
    # Item n has copy n modulo the copies of each region. With a common multiple as the period, the
    # combinations repeat, and a program is bound for each of them.
    least = sum(min(map(_sum_bytes, layouts.values())) for layouts in summed)
    for period in range(1, MAX_PERIOD + 1):
        found = _compute_costs(summed, period)
        if found is not None:
            costs[period] = found
            # Rounding only adds bytes: a longer period saves none.
            if _fits(found, limits) and sum(nbytes for nbytes, _ in found) == least:
                break
    # If no period keeps the limits, the caller sees the best one.
    fitting = {period: found for period, found in costs.items() if _fits(found, limits)}
    costs = fitting or costs
    totals = {period: sum(nbytes for nbytes, _ in found) for period, found in costs.items()}
    least = min(totals.values(), default=0)
    period = next(period for period, total in totals.items() if total <= TOLERANCE * least)
    return [name for _, name in costs[period]], period


def _fits(costs: Sequence[tuple[int, str]], limits: Sequence[int | None]) -> bool:
    return all(
        limit is None or nbytes <= limit for (nbytes, _), limit in zip(costs, limits, strict=True)
    )


def round_copies(copies: int, period: int) -> int:
    """Return the least divisor of `period` that is at least `copies`."""
    return next(n for n in range(copies, period + 1) if period % n == 0)


def _sum_by_copies(groups: Sequence[BufferGroup]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for group in groups:
        found[group.copies] = found.get(group.copies, 0) + group.packing.nbytes
    return found


def _sum_bytes(summed: Mapping[int, int]) -> int:
    return sum(copies * nbytes for copies, nbytes in summed.items())


def _compute_costs(
    memories: Sequence[Mapping[str, Mapping[int, int]]], period: int
) -> list[tuple[int, str]] | None:
    """Return bytes and name of the cheapest layout in `memories`; None if `period` is too short."""
    found = []
    for layouts in memories:
        costs = [
            (sum(round_copies(copies, period) * nbytes for copies, nbytes in summed.items()), name)
            for name, summed in layouts.items()
            if max(summed) <= period
        ]
        if not costs:
            return None
        found.append(min(costs, key=lambda cost: cost[0]))
    return found


def name_uniquely(groups: Sequence[BufferGroup]) -> Iterator[BufferGroup]:
    """Yield the groups with unique names: two may have the same levels."""
    count: dict[str, int] = {}
    for group in groups:
        count[group.name] = count.get(group.name, 0) + 1
        number = count[group.name]
        yield group if number == 1 else replace(group, name=f"{group.name}, {number}")


def _compute_growth(a: BufferGroup, b: BufferGroup, both: BufferGroup) -> int:
    return both.nbytes - a.nbytes - b.nbytes


def _route(step: Step) -> tuple[str, ...]:
    work = step.work
    return (work.source, work.target) if isinstance(work, Transfer) else ()
