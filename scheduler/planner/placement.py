"""The memory of each tensor, and the resulting transfers.

A tensor's home is a memory that its producer writes in place; among several, the one that most of
its consumers can read in place, so that a tensor between `cpu` and `worker:0` lies in shared memory
and is never copied. Consumers that cannot read the home get the tensor by a transfer; between
memories of two devices it goes through host memory, unless one copies from the other's. Feeds and
fetches happen in memories of the host, except for inputs and outputs on a device: a first transfer
copies such inputs to their planned place, a last one copies such outputs to the caller's array.

If a device of the plan reaches shared memory alone, all others that can use it do too: buffers
share bytes within a memory, so that one for all is smaller than two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ...devices.device import Device
from ...devices.memory import CALLER, HOST, HOST_MEMORIES, SHARED
from ...graph.core.aliasing import find_views
from ...graph.core.ir import Graph, Node
from ..plans.partition import Partition
from ..plans.placement import OUTSIDE, SCRATCH, Commit, Placement, Step, StepState, Transfer, link
from ..plans.request import ON_HOST, IoDevices


def place(
    graph: Graph, partition: Partition, devices: Mapping[str, Device], ends: IoDevices = ON_HOST
) -> Placement:
    """Choose memories and steps for `graph` on `devices`, as `partition` cuts it.

    Inputs and outputs are at `ends`.
    """
    return _Placer(graph, partition, devices, ends).place()


@dataclass
class _Placer:
    graph: Graph
    partition: Partition
    devices: Mapping[str, Device]
    ends: IoDevices
    steps: list[Step] = field(default_factory=list)
    home: dict[str, str] = field(default_factory=dict)
    local: dict[tuple[str, str], str] = field(default_factory=dict)
    written_by: dict[tuple[str, str], int] = field(default_factory=dict)
    """The step that brings a tensor to a memory; absent for fed tensors."""
    settled: dict[tuple[str, tuple[str, ...], str | None], tuple[str, ...]] = field(
        default_factory=dict
    )
    """The memories by producer and readers: thousands of tensors have equal ones."""

    def __post_init__(self) -> None:
        used = {subgraph.device for subgraph in self.partition.subgraphs}
        reached = [self.devices[name].capabilities.accesses for name in used]
        self.fetched = frozenset(self.graph.leaving)
        self.is_shared = any(SHARED in accesses and HOST not in accesses for accesses in reached)

    def place(self) -> Placement:
        for device in {subgraph.device for subgraph in self.partition.subgraphs}:
            # Scratch has no other readers: it lies in the device's preferred memory.
            self.local[SCRATCH, device] = self._memories(device)[0]
        for name in self.graph.entering:
            self._settle(name, self.ends.inputs.get(name, OUTSIDE), None)
            if name in self.ends.inputs:
                self._copy(name, CALLER, self.home[name])
            self._transfer(name)
        prepared = frozenset(chain.from_iterable(map(self._prepare, self.graph.prepared)))
        for subgraph in self.partition.subgraphs:
            for node in subgraph.graph.nodes:
                bases = _find_bases(self.graph, node)
                for name in filter(None, node.outputs):
                    self._settle(name, subgraph.device, bases.get(name))
            reads = (
                self.written_by.get((name, self.local[name, subgraph.device]))
                for name in subgraph.graph.inputs
            )
            index = self._append(
                Step(len(self.steps), subgraph.device, subgraph, _sort_waits(reads))
            )
            for name in subgraph.graph.outputs:
                self.written_by[name, self.home[name]] = index
                self._transfer(name)
        steps = link([self._with_state(step) for step in self.steps])
        return Placement(steps, self.home, self.local, prepared, self._commits())

    def _append(self, step: Step) -> int:
        self.steps.append(step)
        return step.index

    def _settle(self, tensor: str, producer: str, base: str | None) -> None:
        """Choose the home of `tensor`, which `producer` writes, and the memory of each reader.

        The tensor could be a view of `base`, if that is given.
        """
        readers = self._readers(tensor)
        ends = tuple([self._end(tensor, reader) for reader in readers])
        beside = None if base is None else self.local.get((base, producer))
        key = producer, ends, beside
        if key not in self.settled:
            self.settled[key] = self._settled(*key)
        self.home[tensor], *memories = self.settled[key]
        for reader, memory in zip(readers, memories, strict=True):
            self.local[tensor, reader] = memory
        self.local.setdefault((tensor, producer), self.home[tensor])

    def _settled(
        self, producer: str, readers: Sequence[str], beside: str | None
    ) -> tuple[str, ...]:
        """Return the home of a tensor of `producer`, then the memory of each of its `readers`.

        If the home is the memory `beside`, the tensor can be a view.
        """
        accesses = [self._accesses(reader) for reader in readers]

        def served(memory: str) -> int:
            return sum(memory in reached for reached in accesses)

        # A home that many readers access in place saves copies.
        best = max(self._memories(producer), key=served)  # the first of equals
        if beside is not None and served(beside) >= served(best):
            best = beside
        memories, found = [best], [best] * len(readers)
        # Readers with the fewest memories first: these may serve the others too.
        for index in sorted(range(len(readers)), key=lambda index: len(accesses[index])):
            near = (memory for memory in memories if memory in accesses[index])
            found[index] = next(near, None) or self._memories(readers[index])[0]
            if found[index] not in memories:
                memories.append(found[index])
        return best, *found

    def _prepare(self, tensor: str) -> set[tuple[str, str]]:
        """Choose the memory of each reader of a prepared tensor; return its places."""
        readers = self._readers(tensor)
        self._settle(tensor, readers[0], None)
        return {(tensor, self.local[tensor, reader]) for reader in readers}

    def _commits(self) -> tuple[Commit, ...]:
        found: dict[tuple[str, str], Commit] = {}
        for tensor, variable in self.graph.assigned.items():
            if variable in self.graph.late:
                continue
            for reader in self._readers(variable):
                source = tensor, self.local[tensor, reader]
                target = variable, self.local[variable, reader]
                # One commit per memory for all devices that read the variable there.
                found.setdefault(target, Commit(source, target, reader))
        return tuple(found.values())

    def _with_state(self, step: Step) -> Step:
        graph = self.graph
        if not graph.late:
            return step
        if isinstance(step.work, Transfer):
            sources = {step.work.tensor: step.work.source}
        else:
            sources = {one: self.local[one, step.device] for one in step.work.graph.inputs}
        reads = [name for name in graph.late if sources.get(name) == self.home[name]]
        writes = [
            variable
            for tensor, variable in graph.assigned.items()
            if variable in graph.late
            and self.written_by[tensor, self.local[tensor, OUTSIDE]] == step.index
        ]
        named = (tuple(graph.variables[name].name for name in found) for found in (reads, writes))
        return replace(step, state=StepState(*named)) if reads or writes else step

    def _transfer(self, tensor: str) -> None:
        home = self.home[tensor]
        wanted = {self.local[tensor, reader] for reader in self._readers(tensor)} - {home}
        staged = {memory for memory in wanted if not self._copies(home, memory)}
        # Transfers through the host need a place there, even without a reader.
        if staged and not wanted & HOST_MEMORIES:
            wanted.add(HOST)
        # To the host's memories first: others are copied from there.
        for memory in (*sorted(wanted & HOST_MEMORIES), *sorted(wanted - HOST_MEMORIES)):
            self._copy(tensor, min(wanted & HOST_MEMORIES) if memory in staged else home, memory)
        if tensor in self.ends.outputs:
            self._copy(tensor, self.local[tensor, OUTSIDE], CALLER)

    def _copies(self, source: str, target: str) -> bool:
        if not HOST_MEMORIES.isdisjoint((source, target)):
            return True
        return source in self.devices[self._mover(source, target)].capabilities.copies_from

    def _copy(self, tensor: str, source: str, target: str) -> None:
        waits = _sort_waits([self.written_by.get((tensor, source))])
        transfer = Transfer(tensor, source, target, self.graph.tensors[tensor].nbytes)
        step = Step(len(self.steps), self._mover(source, target), transfer, waits)
        self.written_by[tensor, target] = self._append(step)

    def _mover(self, source: str, target: str) -> str:
        """Return the device that copies from `source` to `target`: that furthest from the host.

        At equal distance, the target's owner; among several owners, such as a GPU and its workers,
        one that queues copies after work of its own.
        """
        private = (memory for memory in (target, source) if memory not in HOST_MEMORIES)
        for memory in (*private, SHARED, HOST):
            if memory in (source, target):
                offers = {name: device.capabilities for name, device in self.devices.items()}
                owners = [name for name, one in offers.items() if one.memory == memory]
                if owners:
                    return max(owners, key=lambda name: offers[name].native_waits)
        raise AssertionError(f"no device copies between {source} and {target}")

    def _readers(self, tensor: str) -> list[str]:
        assignment = self.partition.assignment
        readers = {assignment[node.name]: None for node in self.graph.consumers[tensor]}
        if tensor in self.fetched:
            readers[OUTSIDE] = None
        kept = self.graph.assigned.get(tensor)
        if kept in self.graph.prepared:  # the next item reads it where it reads the variable
            readers.update(dict.fromkeys(self._readers(kept)))
        return list(readers)

    def _end(self, tensor: str, reader: str) -> str:
        return self.ends.outputs.get(tensor, OUTSIDE) if reader == OUTSIDE else reader

    def _memories(self, device: str) -> list[str]:
        if device == OUTSIDE:
            return [SHARED, HOST] if self.is_shared else [HOST, SHARED]
        capabilities = self.devices[device].capabilities
        first = capabilities.memory
        # With workers in the plan, writing shared memory saves a copy.
        if self.is_shared and first == HOST and SHARED in capabilities.accesses:
            first = SHARED
        return [first, *sorted(capabilities.accesses - {first})]

    def _accesses(self, device: str) -> frozenset[str]:
        return HOST_MEMORIES if device == OUTSIDE else self.devices[device].capabilities.accesses


def _find_bases(graph: Graph, node: Node) -> dict[str, str]:
    return {
        node.outputs[alias.output]: node.inputs[alias.input]
        for alias in reversed(find_views(graph, node))
    }


def _sort_waits(steps: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(sorted({step for step in steps if step is not None}))
