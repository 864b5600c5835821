"""A rough estimate of the memory that an assignment needs, against the limits.

Constants count once on each device that reads them, tensors from their producer to their last
reader in the order of the nodes. The memory plan decides; this estimate keeps the search from
proposing assignments that cannot fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf
from typing import TYPE_CHECKING

from ....devices.device import Device
from ....devices.memory import HOST
from ....graph.core.ir import Graph
from ..memory.memory_plan import find_limits

if TYPE_CHECKING:
    from .problem import PartitionProblem

MOST_ORDERS = 6
FILL = 0.9
"""The share of a device's memory that the first guess fills."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The memories that an assignment could overfill."""

    limits: Mapping[str, int]
    """Bytes of the memories that are small enough to matter."""
    memories: Sequence[str]
    """The memory of each device."""
    constants: Sequence[Mapping[str, int]]
    """For every node the constants and prepared tensors that it reads, with their bytes."""
    in_flight: int

    @classmethod
    def of(
        cls,
        graph: Graph,
        devices: Mapping[str, Device],
        given: Mapping[str, int] | None,
        in_flight: int,
    ) -> Capacity:
        everything = sum(spec.nbytes for spec in graph.tensors.values()) * (in_flight + 1)
        limits = {
            memory: limit.nbytes
            for memory, limit in find_limits(given or {}, devices).items()
            if limit.nbytes < everything
        }
        kept = graph.constants.keys() | graph.prepared
        constants = [
            {name: graph.tensors[name].nbytes for name in node.inputs if name in kept}
            for node in graph.nodes
        ]
        memories = [device.capabilities.memory for device in devices.values()]
        return cls(limits, memories, constants, in_flight)

    def excess(self, problem: PartitionProblem, assignment: Sequence[int]) -> float:
        """Return by how much `assignment` of `problem` overfills memories, in shares of limits."""
        if not self.limits:
            return 0.0
        held = self.constants_held(assignment)
        peaks = self._peaks(problem, assignment)
        total = 0.0
        for memory, limit in self.limits.items():
            needed = held.get(memory, 0) + peaks.get(memory, 0)
            total += max(0.0, needed / max(limit, 1) - 1.0)
        return total

    def constants_held(self, assignment: Sequence[int]) -> dict[str, int]:
        kept: dict[tuple[str, int], dict[str, int]] = {}
        for node, device in enumerate(assignment):
            memory = self.memories[device]
            owner = -1 if memory == HOST else device
            kept.setdefault((memory, owner), {}).update(self.constants[node])
        held: dict[str, int] = {}
        for (memory, _), sizes in kept.items():
            held[memory] = held.get(memory, 0) + sum(sizes.values())
        return held

    def _peaks(self, problem: PartitionProblem, assignment: Sequence[int]) -> dict[str, int]:
        changes: dict[str, dict[int, int]] = {memory: {} for memory in self.limits}
        fed = [*self.memories, HOST]
        for (producer, nbytes, readers, fetched), fed_at in zip(
            problem.tensors, problem.fed_at, strict=True
        ):
            first = max(producer, 0)
            last = len(assignment) if fetched else max(readers)
            places = {self.memories[assignment[reader]] for reader in readers}
            places.add(self.memories[assignment[producer]] if producer >= 0 else fed[fed_at])
            for memory in places & changes.keys():
                change = changes[memory]
                change[first] = change.get(first, 0) + nbytes
                change[last + 1] = change.get(last + 1, 0) - nbytes
        peaks = {}
        for memory, change in changes.items():
            level = peak = 0
            for at in sorted(change):
                level += change[at]
                peak = max(peak, level)
            peaks[memory] = peak * self.in_flight
        return peaks


def fill_devices(problem: PartitionProblem) -> dict[str, list[int]]:
    """Return named assignments that fill the devices of `problem` in turn, if memory is limited.

    The devices are tried in order of preference, then in other orders.
    """
    capacity = problem.capacity
    if not capacity.limits:
        return {}
    found = {}
    for order in list(permutations(range(len(problem.names))))[:MOST_ORDERS]:
        names = ", then ".join(problem.names[device] for device in order)
        found[f"fill {names}"] = _fill(problem, order)
    return found


def _fill(problem: PartitionProblem, order: Sequence[int]) -> list[int]:
    capacity = problem.capacity
    room = {device: capacity.limits.get(capacity.memories[device], inf) * FILL for device in order}
    sizes = [0] * problem.n_nodes
    for producer, nbytes, readers, _ in problem.tensors:
        for node in {*readers, *([producer] if producer >= 0 else [])}:
            sizes[node] = max(sizes[node], nbytes)
    widest = 3 * max(sizes, default=0) * capacity.in_flight
    assignment = []
    for node, row in enumerate(problem.seconds):
        needed = sum(capacity.constants[node].values())
        able = [device for device in order if row[device] < inf]
        fitting = [device for device in able if room[device] >= needed + widest]
        device = fitting[0] if fitting else max(able, key=lambda device: room[device])
        room[device] -= needed
        assignment.append(device)
    return assignment
