"""Estimate of one item's latency through the subgraphs of an assignment."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .problem import PartitionProblem


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
