"""An open plan: arenas allocated, programs bound, slots of buffers for the items in flight.

A slot consists of one copy of each region of memory. Slots may have copies in common; then they
have the programs bound to those in common, too. All methods block; the runtime calls them on
threads. Slots are made on demand, up to the plan's period.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ..devices.device import Device, scratch_specs
from ..devices.memory import HOST, SHARED, Arena, SharedArena, View, host_arena, host_view
from ..graph.tensor import Array, TensorSpec
from .gates import Gates
from .memory.regions import Region, Replica
from .pace import Launch, Pace, clock_of
from .partition.partition import Subgraph
from .placement import OUTSIDE, SCRATCH
from .planning import Plan
from .steps import Step, Transfer, outline

Arenas: TypeAlias = Mapping[tuple[str, str], Arena]
"""The arenas of a slot, by memory and region."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Buffers for one item, and the steps bound to them.

    Attributes
    ----------
    feeds, results : Mapping of str to Array
        Where inputs are written to and outputs read from, by name.
    launches : tuple of callable
        One per step of the plan.
    """

    feeds: Mapping[str, Array]
    results: Mapping[str, Array]
    launches: tuple[Launch, ...]


class OpenPlan:
    """A static plan on open devices.

    Parameters
    ----------
    plan : Plan
    devices : Mapping of str to Device
    pace : Pace, optional
        Of the session that the plan is opened in.
    measure : bool, default False
        Time every node.

    Attributes
    ----------
    plan : Plan
    waits : tuple of int
        Every step's `input_wait_count`.
    after : tuple of tuple of int
        The steps to count down when a step is complete.
    behind : tuple of tuple of int
        The steps to count down as soon as a step is submitted, because its device keeps the order
        itself (`native_waits`).
    ahead : tuple of tuple of int
        The same the other way round: for each step those that it is behind.
    gates : Gates or None
        What items pass in the order of their numbers, item n on slot n % period. None where an item
        may take any slot that no other item is on.
    now_ns : tuple of callable
        For each step the clock of its device.
    outlines : tuple of Outline
        The steps for the profile, which does not keep the plan alive.
    slots : Mapping of int to Slot
        The slots made so far, of `period` ones.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Mapping[str, Device],
        pace: Pace | None = None,
        *,
        measure: bool = False,
    ) -> None:
        assert plan.placement is not None, "shapes are known"
        assert plan.memory is not None
        self.plan = plan
        self._placement, self._memory = plan.placement, plan.memory
        self._devices = devices
        self._pace = pace
        self._measure = measure
        self.outlines = tuple(map(outline, plan.steps))
        self.waits = tuple(step.input_wait_count for step in plan.steps)
        self.behind = tuple(
            tuple(i for i in step.dependents if self._chained(step, plan.steps[i]))
            for step in plan.steps
        )
        self.ahead = tuple(
            tuple(i for i in step.waits if step.index in self.behind[i]) for step in plan.steps
        )
        self.after = tuple(
            tuple(i for i in step.dependents if i not in behind)
            for step, behind in zip(plan.steps, self.behind, strict=True)
        )
        self.period = self._memory.period
        self.gates = Gates(self._memory.regions) if _takes_turns(plan) else None
        self.now_ns = tuple(clock_of(devices[step.device]) for step in plan.steps)
        self.slots: dict[int, Slot] = {}
        self._making = threading.Lock()
        self._open = ExitStack()
        self._arenas: dict[tuple[str, str, int], Arena] = {}
        self._launches: dict[tuple[int, ...], Launch] = {}
        self._touched = [tuple(self._replicas(step)) for step in plan.steps]
        self._regions = [
            tuple({self._region(replica): None for replica, _ in touched})
            for touched in self._touched
        ]

    def open(self) -> None:
        """Allocate what all slots share.

        Raises
        ------
        DeviceMemoryError
            If there is too little memory; nothing stays allocated.
        """
        with ExitStack() as undo:
            shared = (region for region in self._memory.regions if region.copies == 1)
            self._arenas.update(
                {(one.memory, one.name, 0): self._allocate(one, undo) for one in shared}
            )
            self._open.push(undo.pop_all())

    def make_slot(self, index: int) -> Slot:
        """Return the slot with copy `index % copies` of each region; unless made, it is now.

        Raises
        ------
        DeviceError
            If a device refuses; nothing more is held then.
        """
        with self._making, ExitStack() as undo:
            if index in self.slots:
                return self.slots[index]
            numbered = {
                (region.memory, region.name, index % region.copies): region
                for region in self._memory.regions
            }
            made = {
                key: self._arenas.get(key) or self._allocate(region, undo)
                for key, region in numbered.items()
            }
            arenas = {key[:2]: arena for key, arena in made.items()}
            keys = [
                (step, *(index % region.copies for region in regions))
                for step, regions in enumerate(self._regions)
            ]
            launches = [
                self._launches.get(key) or self._bind(step, arenas)
                for key, step in zip(keys, self.plan.steps, strict=True)
            ]
            slot = Slot(self._feeds(arenas), self._results(arenas), tuple(launches))
            self._arenas.update(made)
            self._launches.update(zip(keys, launches, strict=True))
            self._open.push(undo.pop_all())
            self.slots[index] = slot
        return slot

    def close(self) -> None:
        """Free the arenas; no item may be in flight."""
        self.slots.clear()
        self._launches.clear()
        self._arenas.clear()
        self._open.close()

    def _chained(self, step: Step, later: Step) -> bool:
        same = step.device == later.device
        return same and self._devices[step.device].capabilities.native_waits

    def _allocate(self, region: Region, stack: ExitStack) -> Arena:
        memory, nbytes = region.memory, region.nbytes
        if memory == HOST:
            arena = host_arena(nbytes)
        elif memory == SHARED:
            arena = SharedArena(nbytes)
        else:
            owner = next(d for d in self._devices.values() if d.capabilities.memory == memory)
            arena = owner.arena(memory, nbytes)
        stack.callback(arena.close)
        return arena

    def _region(self, replica: Replica) -> Region:
        location = self._memory.locations[replica]
        return self._memory.pools[location.memory].regions[location.region]

    def _replicas(self, step: Step) -> Iterator[tuple[Replica, TensorSpec]]:
        """Yield what a step is bound to: a transfer's source and target, a program's views."""
        if isinstance(step.work, Transfer):
            spec = self.plan.graph.tensors[step.work.tensor]
            yield (step.work.tensor, step.work.source), spec
            yield (step.work.tensor, step.work.target), spec
        else:
            yield from self._program_tensors(step.work)

    def _program_tensors(self, subgraph: Subgraph) -> Iterator[tuple[Replica, TensorSpec]]:
        graph, device = subgraph.graph, self._devices[subgraph.device]
        atomic = device.capabilities.atomic_programs
        for name in (*graph.inputs, *graph.outputs) if atomic else graph.tensors:
            if name not in graph.constants:
                memory = self._placement.local[name, subgraph.device]
                yield (name, memory), self.plan.graph.tensors[name]
        for node in graph.nodes:
            for name, spec in scratch_specs(device, graph, node).items():
                yield (name, self._placement.local[SCRATCH, subgraph.device]), spec

    def _bind(self, step: Step, arenas: Arenas) -> Launch:
        device = self._devices[step.device]
        views = [
            (replica[0], self._view(device, replica, spec, arenas))
            for replica, spec in self._touched[step.index]
        ]
        launch: Launch
        if isinstance(step.work, Transfer):
            (_, source), (_, target) = views
            launch = partial(device.copy, target, source)
        else:
            program = device.compile(step.work.graph, dict(views), measure=self._measure)
            launch = partial(device.submit, program)
        return launch if self._pace is None else self._pace.launching(device, launch)

    def _view(self, device: Device, replica: Replica, spec: TensorSpec, arenas: Arenas) -> View:
        location = self._memory.locations[replica]
        return device.view(arenas[location.memory, location.region], location.offset, spec)

    def _feeds(self, arenas: Arenas) -> dict[str, Array]:
        return {
            name: self._host_array((name, self._placement.home[name]), arenas)
            for name in self.plan.graph.inputs
        }

    def _results(self, arenas: Arenas) -> dict[str, Array]:
        graph = self.plan.graph
        return {
            name: graph.constants[name]
            if name in graph.constants
            else self._host_array((name, self._placement.local[name, OUTSIDE]), arenas)
            for name in graph.outputs
        }

    def _host_array(self, replica: Replica, arenas: Arenas) -> Array:
        location = self._memory.locations[replica]
        arena = arenas[location.memory, location.region]
        return host_view(arena, location.offset, self.plan.graph.tensors[replica[0]]).array


def _takes_turns(plan: Plan) -> bool:
    """True unless each item in flight has a copy of everything for itself."""
    assert plan.memory is not None
    claimed = (region for region in plan.memory.regions if region.claims)
    return any(region.copies < plan.max_in_flight for region in claimed)
