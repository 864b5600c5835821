"""An open plan: arenas allocated, programs bound, one set of buffers (a slot) per item in flight.

All methods block; the runtime calls them on threads. Slots are made on demand, up to the number
that memory was planned for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ..devices.device import Device, OnDone, scratch_specs
from ..devices.event import Event
from ..devices.memory import HOST, SHARED, Arena, SharedArena, View, host_arena, host_view
from ..graph.tensor import Array
from .memory.buffers import Replica
from .memory.memory_plan import SLOT, Location
from .partition.partition import Subgraph
from .placement import OUTSIDE
from .planning import Plan
from .steps import Step, Transfer, outline

Launch: TypeAlias = Callable[[Sequence[Event], OnDone], Event]
"""Submits a step, given the events it waits for and what to call when it is done."""


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
    outlines : tuple of Outline
        The steps for the profile, which does not keep the plan alive.
    """

    def __init__(self, plan: Plan, devices: Mapping[str, Device], *, measure: bool = False) -> None:
        assert plan.placement is not None, "shapes are known"
        assert plan.memory is not None
        self.plan = plan
        self._placement, self._memory = plan.placement, plan.memory
        self._devices = devices
        self._measure = measure
        self._arenas = ExitStack()
        self.outlines = tuple(map(outline, plan.steps))
        self.waits = tuple(step.input_wait_count for step in plan.steps)
        self.behind = tuple(
            tuple(i for i in step.dependents if self._chained(step, plan.steps[i]))
            for step in plan.steps
        )
        self.after = tuple(
            tuple(i for i in step.dependents if i not in behind)
            for step, behind in zip(plan.steps, self.behind, strict=True)
        )
        self._lanes: dict[tuple[str, str], Arena] = {}

    def open(self) -> None:
        """Allocate what all slots share.

        Raises
        ------
        DeviceMemoryError
            If there is too little memory; nothing stays allocated.
        """
        try:
            for pool in self._memory.pools.values():
                for lane, nbytes in pool.lane_nbytes.items():
                    self._lanes[pool.memory, lane] = self._allocate(pool.memory, nbytes)
        except BaseException:
            self.close()
            raise

    def make_slot(self) -> Slot:
        """Allocate one more slot and bind the programs to it.

        Raises
        ------
        DeviceError
            If a device refuses.
        """
        with ExitStack() as undo:
            arenas = {
                pool.memory: self._allocate(pool.memory, pool.slot_nbytes, undo)
                for pool in self._memory.pools.values()
            }
            launches = tuple(self._bind(step, arenas) for step in self.plan.steps)
            slot = Slot(self._feeds(arenas), self._results(arenas), launches)
            self._arenas.push(undo.pop_all())
        return slot

    def close(self) -> None:
        """Free the arenas; no item may be in flight."""
        self._lanes.clear()
        self._arenas.close()

    def _chained(self, step: Step, later: Step) -> bool:
        same = step.device == later.device
        return same and self._devices[step.device].capabilities.native_waits

    def _allocate(self, memory: str, nbytes: int, stack: ExitStack | None = None) -> Arena:
        if memory == HOST:
            arena = host_arena(nbytes)
        elif memory == SHARED:
            arena = SharedArena(nbytes)
        else:
            owner = next(d for d in self._devices.values() if d.capabilities.memory == memory)
            arena = owner.arena(memory, nbytes)
        (stack or self._arenas).callback(arena.close)
        return arena

    def _bind(self, step: Step, arenas: Mapping[str, Arena]) -> Launch:
        device = self._devices[step.device]
        if isinstance(step.work, Transfer):
            source = self._view(device, (step.work.tensor, step.work.source), arenas)
            target = self._view(device, (step.work.tensor, step.work.target), arenas)
            return partial(device.copy, target, source)
        views = self._program_views(step.work, device, arenas)
        program = device.compile(step.work.graph, views, measure=self._measure)
        return partial(device.submit, program)

    def _program_views(
        self, subgraph: Subgraph, device: Device, arenas: Mapping[str, Arena]
    ) -> dict[str, View]:
        graph, views = subgraph.graph, {}
        atomic = device.capabilities.atomic_programs
        for name in (*graph.inputs, *graph.outputs) if atomic else graph.tensors:
            if name not in graph.constants:
                replica = name, self._placement.local[name, subgraph.device]
                views[name] = self._view(device, replica, arenas)
        for node in graph.nodes:
            for name, spec in scratch_specs(device, graph, node).items():
                arena, offset = self._where((name, device.capabilities.memory), arenas)
                views[name] = device.view(arena, offset, spec)
        return views

    def _view(self, device: Device, replica: Replica, arenas: Mapping[str, Arena]) -> View:
        arena, offset = self._where(replica, arenas)
        return device.view(arena, offset, self.plan.graph.tensors[replica[0]])

    def _where(self, replica: Replica, arenas: Mapping[str, Arena]) -> tuple[Arena, int]:
        location: Location = self._memory.locations[replica]
        if location.region == SLOT:
            return arenas[location.memory], location.offset
        return self._lanes[location.memory, location.region], location.offset

    def _feeds(self, arenas: Mapping[str, Arena]) -> dict[str, Array]:
        return {
            name: self._host_array((name, self._placement.home[name]), arenas)
            for name in self.plan.graph.inputs
        }

    def _results(self, arenas: Mapping[str, Arena]) -> dict[str, Array]:
        graph = self.plan.graph
        return {
            name: graph.constants[name]
            if name in graph.constants
            else self._host_array((name, self._placement.local[name, OUTSIDE]), arenas)
            for name in graph.outputs
        }

    def _host_array(self, replica: Replica, arenas: Mapping[str, Arena]) -> Array:
        arena, offset = self._where(replica, arenas)
        return host_view(arena, offset, self.plan.graph.tensors[replica[0]]).array
