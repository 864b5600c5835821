"""A graph reduced to numbers for the choice of devices, with a fast estimate.

The estimate follows the subgraphs of an assignment: each starts when its inputs have arrived, its
device runs one at a time, copies go one by one through their queues. The simulator computes the
cost of the few best assignments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ....devices.device import Device
from ....devices.memory import HOST, SHARED
from ....graph.core.ir import Graph
from ...costs import Costs
from ...plans.request import ON_HOST, IoDevices
from .capacity import Capacity
from .cutting import Labels, Parts, find_awaiting, find_components, set_labels
from .tasks import TaskGraph

TYPICAL_BYTES = 1 << 20
Cutter: TypeAlias = Callable[[Sequence[Sequence[int]], Sequence[object], Collection[int]], Parts]

OUTSIDE = -1
"""The caller, which feeds and fetches, in place of a device."""


@dataclass(frozen=True, slots=True)
class Estimate:
    seconds: float
    """The time of one item, or per item if throughput is the objective."""
    components: list[list[int]]
    """The nodes of each subgraph."""
    excess: float
    """Excess over the limits of memory and of the number of subgraphs."""

    @property
    def key(self) -> tuple[float, float]:
        """The key of comparisons: limits come first."""
        return self.excess, self.seconds


class PartitionProblem:
    """A graph with known shapes, the devices, and the time of every node on each.

    `seconds` is infinity where a node must not or cannot run; `in_flight` is 0 if latency is the
    objective. A split has to win by the share `margin`, plus `margin_each` per subgraph beyond the
    second. Subgraphs do not mix `labels` of nodes.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Mapping[str, Device],
        costs: Costs,
        seconds: Sequence[Sequence[float]],
        in_flight: int,
        max_subgraphs: int | None,
        capacity: Capacity,
        margin: float = 0.0,
        ends: IoDevices = ON_HOST,
        margin_each: float = 0.0,
        labels: Labels = MappingProxyType({}),
    ) -> None:
        self.graph = graph
        self.names = tuple(devices)
        self.seconds = seconds
        self.in_flight = in_flight
        self.max_subgraphs = max_subgraphs
        self.capacity = capacity
        self.margin, self.margin_each = margin, margin_each
        self._ends = ends
        self.submit_s = [costs.model(name).submit_s for name in devices]
        self.queues = [costs.model(name).copy_queues for name in devices]
        self._offers = [device.capabilities for device in devices.values()]
        self._costs = costs
        self._indices = {node.name: index for index, node in enumerate(graph.nodes)}
        self.producers = graph.producer_indices
        self.awaiting, self._labels = find_awaiting(graph), labels
        self.following = graph.constant_indices

    @property
    def n_nodes(self) -> int:
        return len(self.seconds)

    @cached_property
    def tensors(self) -> list[tuple[int, int, tuple[int, ...], bool]]:
        """Every tensor that is read or fetched: producer, bytes, readers, whether it is fetched."""
        graph, indices = self.graph, self._indices
        fetched_names = set(graph.outputs)
        found = []
        for name in self._names_of_tensors:
            readers = tuple(indices[node.name] for node in graph.consumers[name])
            producer = graph.producers.get(name)
            source = OUTSIDE if producer is None else indices[producer.name]
            found.append((source, graph.tensors[name].nbytes, readers, name in fetched_names))
        return found

    @cached_property
    def _names_of_tensors(self) -> list[str]:
        graph, fetched = self.graph, set(self.graph.outputs)
        every = (*graph.inputs, *(t for node in graph.nodes for t in node.outputs if t))
        # Tensors without readers are not copied.
        return [name for name in every if graph.consumers[name] or name in fetched]

    @cached_property
    def fed_at(self) -> list[int]:
        """For each of `tensors` the device where it is fed, or the caller's number."""
        return [self._end(self._ends.inputs.get(name)) for name in self._names_of_tensors]

    @cached_property
    def taken_at(self) -> list[int]:
        """For each of `tensors` the device where it is fetched, or the caller's number."""
        return [self._end(self._ends.outputs.get(name)) for name in self._names_of_tensors]

    def _end(self, device: str | None) -> int:
        return len(self.names) if device is None else self.names.index(device)

    @cached_property
    def ways(self) -> list[list[CopyTime]]:
        """The copy time between every pair of devices; the last is the caller."""
        count = len(self.names)
        return [[self._way(a, b) for b in range(count + 1)] for a in range(count + 1)]

    def _way(self, source: int, target: int) -> CopyTime:
        ends = [
            ({HOST, SHARED}, HOST)
            if device == len(self.names)
            else (self._offers[device].accesses, self._offers[device].memory)
            for device in (source, target)
        ]
        edges = sum(
            self._costs.model(self.names[device]).edge_s(TYPICAL_BYTES)
            for device in (source, target)
            if device < len(self.names)
        )
        if source == target:
            return CopyTime(0.0, 0.0)
        # A common memory needs no copy, though layouts may change.
        if not ends[0][0].isdisjoint(ends[1][0]):
            return CopyTime(0.0, edges / TYPICAL_BYTES)
        stops = [memory for _, memory in ends]
        if not self._is_direct(source, target):
            stops.insert(1, HOST)
        # Two points of a line: copies of no bytes, and of a usual size.
        latency, whole = (
            sum(self._costs.copy_s(a, b, nbytes) for a, b in pairwise(stops))
            for nbytes in (0, TYPICAL_BYTES)
        )
        return CopyTime(latency, max(whole - latency + edges, 0.0) / TYPICAL_BYTES)

    def _is_direct(self, source: int, target: int) -> bool:
        if len(self.names) in (source, target):
            return True
        memory, offers = self._offers[source].memory, self._offers[target]
        return bool({memory, offers.memory} & {HOST, SHARED}) or memory in offers.copies_from

    @cached_property
    def tasks(self) -> TaskGraph:
        """The nodes as tasks; the cost of a new subgraph is part of every copy."""
        count = len(self.names)
        ways = self.ways
        return TaskGraph(
            self.seconds,
            self._reads(),
            [
                # List schedulers do not know subgraphs; changing the device begins one.
                [0.0 if a == b else ways[a][b].latency_s + self.submit_s[b] for b in range(count)]
                for a in range(count)
            ],
            [[ways[a][b].s_per_byte for b in range(count)] for a in range(count)],
            self._crossing_s(self.graph.inputs, self._ends.inputs, outputs=False),
            self._crossing_s(self.graph.outputs, self._ends.outputs, outputs=True),
        )

    def _crossing_s(
        self, names: Sequence[str], ends: Mapping[str, str], *, outputs: bool
    ) -> list[list[float]]:
        """Return the seconds to copy a node's share of `names` to their `ends`, by node and device.

        These are outputs with `outputs`, or else inputs.
        """
        ways, there = self.ways, range(len(self.names))
        found = [[0.0 for _ in there] for _ in self.graph.nodes]
        for end in dict.fromkeys(self._end(ends.get(name)) for name in names):
            among = [name for name in names if self._end(ends.get(name)) == end]
            for row, nbytes in zip(found, self._bytes_among(among, outputs=outputs), strict=True):
                for device in there if nbytes else ():
                    way = ways[device][end] if outputs else ways[end][device]
                    row[device] += way.copy_s(nbytes)
        return found

    def _reads(self) -> list[list[tuple[int, float]]]:
        graph, indices = self.graph, self._indices
        return [
            [
                (indices[graph.producers[tensor].name], graph.tensors[tensor].nbytes)
                for tensor in dict.fromkeys(node.inputs)
                if tensor in graph.producers
            ]
            for node in graph.nodes
        ]

    def _bytes_among(self, names: Sequence[str], *, outputs: bool) -> list[int]:
        wanted, tensors = set(names), self.graph.tensors
        return [
            sum(tensors[t].nbytes for t in {*(node.outputs if outputs else node.inputs)} & wanted)
            for node in self.graph.nodes
        ]

    def estimate(self, assignment: Sequence[int], *, by: Cutter = find_components) -> Estimate:
        parts = by(self.producers, set_labels(assignment, self._labels), self.following)
        excess = self.excess(assignment)
        if self.max_subgraphs is not None:
            # Not refused: passing through invalid assignments finds more valid ones.
            excess += max(0, len(parts) - self.max_subgraphs)
        return Estimate(LatencyEstimate(self, assignment, parts).seconds(), parts, excess)

    def excess(self, assignment: Sequence[int]) -> float:
        return self.capacity.excess(self, assignment)

    @cached_property
    def bound_s(self) -> float:
        """A lower bound of one item's seconds for any assignment."""
        # At least one program is submitted, on the fastest device.
        return self.tasks.bound_s + min(self.submit_s)

    @property
    def least_work_s(self) -> float:
        """The seconds of computing that any assignment takes."""
        return sum(map(min, self.seconds))

    def sum_work_s(self, assignment: Sequence[int]) -> float:
        return sum(row[device] for row, device in zip(self.seconds, assignment, strict=True))


class CopyTime(NamedTuple):
    """Time of a copy from one device's memory to another's."""

    latency_s: float
    s_per_byte: float

    def copy_s(self, nbytes: float) -> float:
        return self.latency_s + nbytes * self.s_per_byte


class LatencyEstimate:
    """The latency of one item through the parts of an assignment."""

    def __init__(
        self, problem: PartitionProblem, assignment: Sequence[int], parts: list[list[int]]
    ) -> None:
        self.problem = problem
        self.assignment = assignment
        self.part_of = [0] * len(assignment)
        self.device = [assignment[nodes[0]] for nodes in parts]
        self.load = [0.0] * len(problem.names)
        self.duration: list[float] = []
        for part, nodes in enumerate(parts):
            device = self.device[part]
            seconds = problem.submit_s[device]
            for node in nodes:
                self.part_of[node] = part
                seconds += problem.seconds[node][device]
            self.duration.append(seconds)
            if nodes[0] not in problem.awaiting:
                self.load[device] += seconds
        self.copies: dict[tuple[int, int], float] = {}
        self.sends: list[list[tuple[int, float, list[int]]]] = [[] for _ in parts]
        self.waits = [0] * len(parts)
        self.fed: list[tuple[int, float, list[int]]] = []
        self.fetched = [0.0] * len(parts)
        self.awaiting = {self.part_of[node] for node in problem.awaiting}
        self._connect()

    def _connect(self) -> None:
        assignment, part_of = self.assignment, self.part_of
        problem, ways = self.problem, self.problem.ways
        for (producer, nbytes, readers, fetched), fed_at, taken_at in zip(
            problem.tensors, problem.fed_at, problem.taken_at, strict=True
        ):
            source = assignment[producer] if producer >= 0 else fed_at
            own = part_of[producer] if producer >= 0 else -1
            if not fetched and all(part_of[reader] == own for reader in readers):
                continue
            targets: dict[int, list[int]] = {}
            for reader in readers:
                part = part_of[reader]
                if part != own:
                    listed = targets.setdefault(assignment[reader], [])
                    if part not in listed:
                        listed.append(part)
            for target, listed in targets.items():
                seconds = ways[source][target].copy_s(nbytes) if source != target else 0.0
                if producer >= 0:
                    self.sends[own].append((target, seconds, listed))
                    for part in listed:
                        self.waits[part] += 1
                elif seconds:
                    self.fed.append((target, seconds, listed))
            if fetched and producer >= 0:
                self.fetched[own] += ways[source][taken_at].copy_s(nbytes)

    def seconds(self) -> float:
        """Return the seconds of one item, or per item."""
        latency = self._latency()
        if not self.problem.in_flight:
            return latency
        # The load of the busiest queue, or an item's share of those in flight.
        busiest = max((*self.load, *self.copies.values()), default=0.0)
        return max(busiest, latency / self.problem.in_flight) + latency * 1e-6

    def _transfer(self, source: int, target: int, seconds: float, now: float) -> float:
        if not seconds:
            return now
        queues, caller = self.problem.queues, len(self.problem.names)
        owner, way = (source, 1) if target == caller else (target, 0)
        if owner != caller and queues[owner] == 0:
            self.load[owner] += seconds
            return now + seconds
        key = owner, way if queues[owner] == 2 else 0
        done = max(now, self.free.get(key, 0.0)) + seconds
        self.free[key] = done
        self.copies[key] = self.copies.get(key, 0.0) + seconds
        return done

    def _latency(self) -> float:
        caller = len(self.problem.names)
        self.free: dict[tuple[int, int], float] = {}
        ready = [0.0] * len(self.duration)
        for target, seconds, listed in self.fed:
            done = self._transfer(caller, target, seconds, 0.0)
            for part in listed:
                ready[part] = max(ready[part], done)
        heap = [(ready[part], part) for part, count in enumerate(self.waits) if count == 0]
        heapify(heap)
        lanes = [0.0] * caller
        end = 0.0
        while heap:
            now, part = heappop(heap)
            device = self.device[part]
            finish = now + self.duration[part]
            if part not in self.awaiting:
                lanes[device] = finish = max(finish, lanes[device] + self.duration[part])
            end = max(end, self._transfer(device, caller, self.fetched[part], finish))
            for target, seconds, listed in self.sends[part]:
                done = self._transfer(device, target, seconds, finish)
                for other in listed:
                    ready[other] = max(ready[other], done)
                    self.waits[other] -= 1
                    if self.waits[other] == 0:
                        heappush(heap, (ready[other], other))
        return end
