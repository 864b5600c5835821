"""Simulates assignments in their best cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt

from ....devices.device import Device
from ....graph.core.ir import Graph
from ...costs import Costs
from ...dispatch.core_shares import divide_cores, find_computing
from ...packing import Block
from ...packing.problem import find_lower_bound
from ...plans.partition import Partition, Subgraph
from ...plans.placement import Placement
from ...plans.regions import Region
from ...plans.request import ON_HOST, IoDevices, PlanRequest
from ...simulation.engine import run
from ...simulation.lanes import describe_host, make_workload
from ..memory.buffers import Buffer, collect_buffers, find_alignment
from ..memory.happens_before import HappensBefore, relate
from ..placement import place
from .cutting import (
    Labels,
    Parts,
    extract_subgraphs,
    find_labels,
    join_assignments,
    join_siblings,
    list_cuts,
    set_labels,
)
from .offers import Forms, Offers, WrittenOut

PACED_STEPS, MOST_ROUNDS = 1000, 8
"""Steps over which throughput is measured, and the most rounds of items in flight for it, after
half as many to begin with."""

SAME, PATIENCE = 0.01, 0.1
"""The share by which a cut may be slower than the fastest, for less memory: if devices were chosen
by that time, and if they were given."""

CLOSE, MOST_CUT_UP = 1.25, 3
"""Assignments slower than the best by this factor get a single cut, and so do all but the best few.
"""

LARGE = 1500
"""With more nodes in all items in flight, only the best assignment gets several cuts."""

NODES_APART = 8
"""Nodes that must be kept apart per additional subgraph."""

MOST_CUT = 2000
"""Graphs with more nodes are cut one way only, into few parts."""


@dataclass(frozen=True)
class Judged:
    """An assignment, cut and placed."""

    judge: Judge = field(repr=False, compare=False)
    name: str
    graph: Graph
    """The graph in the form that the devices get."""
    written: WrittenOut
    """Replacements of nodes that devices lack."""
    partition: Partition
    placement: Placement
    rivals: list[Judged] = field(default_factory=list, repr=False, compare=False)
    """Other cuts of the assignment."""
    others: list[Parts] = field(default_factory=list, repr=False, compare=False)
    """Cuts that are not simulated yet."""

    @cached_property
    def seconds(self) -> float:
        """The predicted time of one item, or per item of a stream."""
        return self.judge.seconds(self.placement)

    @cached_property
    def needs(self) -> Mapping[str, int]:
        """Lower bound of one item's bytes, by memory."""
        return lower_bounds(self.graph, self.placement, self.judge.devices)

    @property
    def nbytes(self) -> int:
        """Lower bound of one item's bytes in all memories."""
        return sum(self.needs.values())

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.device for one in self.partition.subgraphs))

    def ways(self, patience: float, most_s: float = inf) -> Iterator[Judged]:
        """Yield the best cut, then those that take less memory.

        The best has the least product of time squared and bytes, among cuts slower than the fastest
        by at most the share `patience`, and taking at most `most_s`.
        """
        best = self._best(patience, most_s)
        yield best
        every = self.every_cut()
        if len(every) > 1:
            leaner = (one for one in every if one.nbytes < best.nbytes)
            yield from sorted(leaner, key=lambda one: one.nbytes)

    def every_cut(self) -> list[Judged]:
        assignment = self.partition.assignment
        more = (self.judge.recut(self.name, assignment, parts) for parts in self.others)
        return [self, *self.rivals, *more]

    def _best(self, patience: float, most_s: float) -> Judged:
        if not self.rivals:
            return self
        # Stable: among equals, the one judged first stays first.
        every = sorted((self, *self.rivals), key=lambda one: one.seconds)
        longest = min(every[0].seconds * (1 + patience), max(most_s, every[0].seconds))
        fast = [one for one in every if one.seconds <= longest]
        if len(fast) == 1:
            return fast[0]
        # One percent of time is worth two of memory.
        return min(fast, key=lambda one: one.seconds * sqrt(max(one.nbytes, 1)))


@dataclass(frozen=True)
class Judge:
    graph: Graph
    devices: Mapping[str, Device]
    costs: Costs
    in_flight: int = 0
    """Concurrent items; 0 if latency is the objective."""
    max_subgraphs: int | None = None
    """Cuts with more are dropped if there are others."""
    ends: IoDevices = ON_HOST
    apart: frozenset[str] = frozenset()
    """Nodes to keep in subgraphs of their own, unless that takes too many of these."""
    forms: Forms | None = None
    """Replacements for nodes that devices lack."""
    max_in_flight: int = 1
    """Concurrent items of sessions, for any objective."""
    overlaps: bool = False
    """Whether several items are in flight, on replicas or not."""

    @classmethod
    def of(cls, offers: Offers, request: PlanRequest) -> Judge:
        return cls(
            offers.graph,
            offers.devices,
            request.costs,
            in_flight=request.max_in_flight if request.objective == "throughput" else 0,
            max_subgraphs=request.max_subgraphs,
            ends=request.ends,
            apart=request.apart,
            forms=offers.forms,
            max_in_flight=request.max_in_flight,
            overlaps=request.overlaps,
        )

    def __call__(self, name: str, devices: Sequence[str]) -> Judged:
        # Without competitors, all cuts are tried.
        return self._fastest(self._first(name, devices))

    def all(self, assignments: Mapping[str, Sequence[str]]) -> list[Judged]:
        """Return `assignments` as judged; only the best few are cut in several ways."""
        first = [self._first(name, devices) for name, devices in assignments.items()]
        close = min(one.seconds for one in first) * CLOSE
        is_large = len(self.graph.nodes) * max(self.in_flight, 1) > LARGE
        most = 1 if is_large else MOST_CUT_UP
        best = sorted(one.seconds for one in first if one.others)[:most]
        return [
            self._fastest(one) if one.seconds in best and one.seconds <= close else one
            for one in first
        ]

    @cached_property
    def labels(self) -> Labels:
        """Labels of the nodes that are separate from others of their device."""
        return find_labels(self.graph, overlaps=self.overlaps)

    def _cuts(self, devices: Sequence[str]) -> list[Parts]:
        labels = set_labels(devices, self.labels)
        every = self._all_cuts(labels)
        # Nodes that vary with lengths are bound anew for each; fixed nodes apart from them only
        # once.
        every = self._cuts_apart(labels, every) or every
        every = self._with_joined(devices, labels, every)
        every = [join_assignments(self.graph, labels, one) for one in every]
        # Placing and simulating a cut takes longer there than better cuts save.
        if len(self.graph.nodes) > MOST_CUT:
            every = [min(every, key=len)]
        if self.max_subgraphs is None:
            return every
        within = [parts for parts in every if self._allows(parts)]
        return within or [min(every, key=len)]

    def _all_cuts(self, labels: Sequence[object]) -> list[Parts]:
        return list_cuts(self.graph.producer_indices, labels, self.graph.constant_indices)

    def _with_joined(
        self, devices: Sequence[str], labels: Sequence[object], every: list[Parts]
    ) -> list[Parts]:
        atomic = {n for n, one in self.devices.items() if one.capabilities.atomic_programs}
        if atomic.isdisjoint(devices):
            return every
        placed = zip(self.graph.nodes, devices, labels, strict=True)
        kinds = [
            (label, node.name in self.apart) if device in atomic else None
            for node, device, label in placed
        ]
        fewer = min((join_siblings(self.graph, one, kinds) for one in every), key=len)
        return every if fewer in every else [*every, fewer]

    def _cuts_apart(self, devices: Sequence[object], every: Sequence[Parts]) -> list[Parts] | None:
        """Return cuts for `devices` that keep some nodes apart; None if far more than `every`."""
        if not self.apart:
            return None
        nodes = self.graph.nodes
        labels = [
            (device, node.name in self.apart) for device, node in zip(devices, nodes, strict=True)
        ]
        found = self._all_cuts(labels)
        fewest = min(found, key=len)
        more = len(fewest) - min(map(len, every))
        return found if more * NODES_APART <= len(self.apart) and self._allows(fewest) else None

    def _allows(self, parts: Parts) -> bool:
        return self.max_subgraphs is None or len(parts) <= self.max_subgraphs

    def seconds(self, placement: Placement, regions: Sequence[Region] = ()) -> float:
        """Simulate `placement`, with claims on `regions` of memory; return the seconds per item."""
        parts = (step.work for step in placement.steps if isinstance(step.work, Subgraph))
        used = {part.device for part in parts if not part.only_assigns}
        here = find_computing(self.devices, used)
        cores = divide_cores(placement.steps, here, in_flight=self.max_in_flight)
        work = make_workload(placement.steps, self.devices, self.costs, cores)
        host = describe_host(self.graph, self.costs, self.ends, one_by_one=self.in_flight <= 1)
        if not self.in_flight:
            return run(work, regions=regions, host=host).makespan_s
        at_once = max(len(placement.steps), 1) * self.in_flight
        # Fewer steps take more rounds until throughput is steady.
        rounds = min(max(PACED_STEPS // at_once, 2), MOST_ROUNDS)
        paced, first = rounds * self.in_flight, (rounds // 2) * self.in_flight
        # Measured from mid-stream: the first items find all lanes idle.
        items = first + 1 + paced
        landed = run(
            work, items=items, max_in_flight=self.in_flight, regions=regions, host=host
        ).landed
        interval = (landed[-1] - landed[first]) / 1e9 / paced
        # Bursts of landings suggest a rate that no lane can sustain.
        loads = [0.0] * len(work.lanes)
        for lane, seconds in zip(work.lane, work.duration_s, strict=True):
            loads[lane] += seconds / (work.lanes[lane].depth if work.lanes[lane].awaits else 1)
        return max([interval, *loads])

    def _first(self, name: str, devices: Sequence[str]) -> Judged:
        first, *others = self._cuts(devices)
        nodes = self.graph.nodes
        assignment = {node.name: device for node, device in zip(nodes, devices, strict=True)}
        return self.recut(name, assignment, first, others)

    def recut(
        self, name: str, assignment: Mapping[str, str], parts: Parts, others: Sequence[Parts] = ()
    ) -> Judged:
        devices = [assignment[node.name] for node in self.graph.nodes]
        written = self.forms.chosen(self.graph, devices) if self.forms else WrittenOut()
        graph, devices, parts = written.spread(self.graph, devices, parts)
        placed = {node.name: device for node, device in zip(graph.nodes, devices, strict=True)}
        partition = Partition(placed, {}, extract_subgraphs(graph, devices, parts))
        placement = place(graph, partition, self.devices, self.ends)
        return Judged(self, name, graph, written, partition, placement, others=[*others])

    def _fastest(self, one: Judged) -> Judged:
        """Return the fastest cut of the assignment `one`; the others are its rivals."""
        if not one.others:  # nothing to compare
            return one
        ways = one.every_cut()
        best = min(ways, key=lambda way: way.seconds)
        one.others.clear()
        best.rivals.extend(way for way in ways if way is not best)
        return best


def lower_bounds(
    graph: Graph, placement: Placement, devices: Mapping[str, Device]
) -> dict[str, int]:
    """Return least bytes of `graph` by memory, in `placement` on `devices`; plans come close."""
    order = HappensBefore(placement.steps)
    inside: dict[str, list[Buffer]] = {}
    for buffer in collect_buffers(graph, placement, devices, order):
        inside.setdefault(buffer.memory, []).append(buffer)
    bounds = {}
    for memory, buffers in inside.items():
        alignment = find_alignment(memory, devices)
        blocks = [Block(-(-one.nbytes // alignment) * alignment) for one in buffers]
        relation = relate(buffers, placement.steps, order)
        bounds[memory] = find_lower_bound(blocks, relation.conflicts)
    return bounds
