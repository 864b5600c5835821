"""The place of every buffer, before the first run.

Two buffers may share bytes iff every access to one happens before the first write to the other, in
the order of `happens_before`, or one lane keeps them apart, see `relation`: whatever runs
concurrently is thereby apart. How items in flight share a memory is decided in `layouts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from ....devices.device import Device
from ....devices.memory import HOST
from ....graph.ir import Graph, Node
from ...costs.costs import Costs
from ...plans.placement import Placement, Transfer
from ...plans.regions import Location, MemoryPlan, PlacedTensor, Pool
from ...shapes.constraints import NONE, DynamicShapeConstraints
from .buffers import Buffer, alignment_of, collect_buffers
from .control_edges import (
    Edge,
    durations_of,
    makespan,
    predict,
    reduced,
    relied_upon,
    stricter_orders,
)
from .happens_before import HappensBefore, is_atomic, relate
from .layouts import SMALL_NBYTES, BufferGroup, Layouts, StepPipeline, choose
from .limits import Limit, check_tensors, does_not_fit_error, exceeded, limits_of
from .prepared import PreparedTensors, beside, set_apart

COPY_WORTH = 1.02
"""By how much more memory is taken to spare the copies of concatenations."""

MAX_CONFINED = 500
"""With more buffers than this, it is not tried what confining them to steps would save."""


def plan_memory(
    graph: Graph,
    placement: Placement,
    devices: Mapping[str, Device],
    slots: int,
    *,
    limits: Mapping[str, int] | None = None,
    costs: Costs | None = None,
    constraints: DynamicShapeConstraints = NONE,
) -> MemoryPlan:
    """Lay out every buffer of a static graph for `slots` items in flight.

    Where a limit would be exceeded, steps are made to wait for others if that is enough to keep
    it: the placement must then be used with the plan's `added_edges`, see `Placement.with_waits`.
    If it is not, items wait for the ones before them.

    Parameters
    ----------
    graph : Graph
    placement : Placement
    devices : Mapping of str to Device
    slots : int
    limits : Mapping of str to int, optional
        Bytes that a device's own memory, or a memory, may take, constants included; what devices
        say of themselves counts as well.
    costs : Costs, optional
        By which the price of waits is predicted; the devices' models when left out.
    constraints : DynamicShapeConstraints, optional
        For other shapes that are to run in it.

    Raises
    ------
    DoesNotFitError
        If a memory is too small; the message says by how much.
    PlanError
        If a limit names neither a device nor a memory.
    """
    bounds = limits_of(limits or {}, devices)
    check_tensors(graph, placement, limits_of({}, devices))
    costs = costs or Costs.of(devices)
    planner = _Planner(graph, placement, devices, slots, bounds, constraints)
    for plan in planner.plans(costs):
        if not exceeded(plan, bounds):
            break
    for memory in exceeded(plan, bounds):
        raise does_not_fit_error(
            plan.pools[memory], bounds[memory], planner.way.buffers.get(memory, ())
        )
    return plan if constraints.is_none else replace(plan, scratch=planner.scratch())


@dataclass
class _Planner:
    graph: Graph
    placement: Placement
    devices: Mapping[str, Device]
    slots: int
    bounds: Mapping[str, Limit]
    constraints: DynamicShapeConstraints
    swaps: bool = True
    """What is assigned has memory of its own, unless that is too much."""
    serial: bool = False
    """Where nothing else keeps a limit, items are in a memory one after the other."""

    def __post_init__(self) -> None:
        self.order = HappensBefore(self.placement.steps)
        self.flow = StepPipeline(self.placement.steps, self.order, self.slots)
        self.constants = _constants_by_memory(self.graph, self.placement, self.devices)
        self.prepared = PreparedTensors.of(self.graph, self.placement, self.devices)
        self.way = _Way({}, self.prepared)
        self._scratch = {  # kernels are asked once
            (device.name, node.name): self.constraints.scratch(device, self.graph, node)
            for device, node in self._nodes()
        }

    def scratch_of(self, device: Device, node: Node) -> Mapping[str, int]:
        """Return the bytes of a node's scratch buffers, by name."""
        return self._scratch[device.name, node.name]

    def scratch(self) -> dict[str, int]:
        """Return the bytes of all scratch buffers, with constraints."""
        found: dict[str, int] = {}
        for device, node in self._nodes():
            found.update(self.scratch_of(device, node))
        return found

    def growing(self) -> frozenset[str]:
        """Return the tensors and scratch buffers that have no largest size."""
        found = set(self.constraints.growing)
        for device, node in self._nodes() if found else ():
            if self.constraints.keeps_apart(node):
                found.update(self.scratch_of(device, node))
        return frozenset(found)

    def _nodes(self) -> Iterator[tuple[Device, Node]]:
        """Yield the nodes that have buffers, with their devices."""
        for step in self.placement.steps:
            if not isinstance(step.work, Transfer) and not is_atomic(step, self.devices):
                for node in step.work.graph.nodes:
                    yield self.devices[step.device], node

    def plans(self, costs: Costs) -> Iterator[MemoryPlan]:
        """Yield the best plan, then some that take less memory: with copies, with waits."""
        # The last resort: with one item at a time in a memory, little is left of their overlap.
        for serial in (False, True)[: min(self.slots, 2)]:
            self.serial = serial
            plan = self._plan()
            yield plan
            if self.way.prepared.next_sizes:
                self.swaps = False
                plan = self._plan()
                yield plan
            yield self._plan_with_waits(plan, costs)

    def _plan(self) -> MemoryPlan:
        """Return the best plan of several ways to let tensors share bytes by meaning.

        In the order of preference: the first that nothing else beats by more than a copy is worth.
        """
        ways = [self._collect(joins=True)]
        # Concatenations that are written in place spare copies, but may keep more bytes alive: both
        # ways are laid out, and the bytes decide.
        if any(len(one.writers) > 1 for inside in ways[0].buffers.values() for one in inside):
            ways.append(self._collect(joins=False))
        few = sum(map(len, ways[0].buffers.values())) <= MAX_CONFINED
        # Inputs that only their own step overwrites let items pass each other sooner, if there are
        # several, and several steps for them to be in.
        if few and self.slots > 1 and len(self.placement.steps) > 1:
            joins = (True, False)[: len(ways)]
            ways += [self._collect(joins=joined, confined=True) for joined in joins]
        plans = [self._lay_out(way, {}).plan for way in ways]
        fitting = [i for i, plan in enumerate(plans) if not exceeded(plan, self.bounds)]
        # Where none fits, the smallest is what waits have to make smaller.
        tried = fitting or range(len(plans))
        least = min(plans[i].nbytes for i in tried)
        best = next(i for i in tried if plans[i].nbytes <= COPY_WORTH * least)
        self.way = ways[best]
        return plans[best]

    def _plan_with_waits(self, plan: MemoryPlan, costs: Costs) -> MemoryPlan:
        """Return the fastest plan whose waits keep all limits, or the smallest if none does."""
        tight = exceeded(plan, self.bounds)
        durations = durations_of(self.placement.steps, costs)
        # Where no order is enough, the error says by how much the smallest plan is too large.
        smallest = plan
        # The orders come cheapest first: the first group in which one keeps the limits decides.
        for orders in stricter_orders(self.order, self.placement.steps, durations):
            drafts = [self._lay_out(self.way, dict.fromkeys(tight, one)) for one in orders]
            smallest = min(smallest, *(one.plan for one in drafts), key=lambda one: one.nbytes)
            kept = [
                self._with_edges(draft, tight, strict, durations)
                for draft, strict in zip(drafts, orders, strict=True)
                if not exceeded(draft.plan, self.bounds)
            ]
            if kept:
                return min(kept, key=lambda one: (one.slowdown, len(one.added_edges)))
        return smallest

    def _with_edges(
        self,
        draft: _Draft,
        memories: Sequence[str],
        strict: HappensBefore,
        durations: Sequence[float],
    ) -> MemoryPlan:
        """Return a draft by a stricter order with the waits that it relies on, and their price."""
        steps, found = self.placement.steps, set[Edge]()
        for memory in memories:
            inside = self.way.buffers[memory]
            # By the order that holds without more waits: what it keeps apart anyway needs none.
            sizes, relation = self._sizes(memory, inside), relate(inside, steps, self.order)
            found.update(relied_upon(inside, draft.groups[memory], sizes, relation, strict))
        edges = reduced(self.order, steps, found)
        slower = makespan(predict(self.placement.with_waits(edges).steps, durations))
        slowdown = slower / (makespan(predict(steps, durations)) or 1.0)
        return replace(draft.plan, added_edges=edges, slowdown=slowdown)

    def _collect(self, *, joins: bool, confined: bool = False) -> _Way:
        found: dict[str, list[Buffer]] = {}
        for buffer in collect_buffers(
            self.graph,
            self.placement,
            self.devices,
            self.order,
            joins=joins,
            confined=confined,
            constraints=self.constraints,
            scratch=self.scratch_of,
        ):
            found.setdefault(buffer.memory, []).append(buffer)
        buffers, growing = set_apart(dict(sorted(found.items())), self.growing())
        prepared = self.prepared
        if self.swaps and self.placement.commits:
            prepared, buffers = prepared.with_next(self.graph, self.placement, buffers)
        return _Way(buffers, prepared, growing)

    def _lay_out(self, way: _Way, stricter: Mapping[str, HappensBefore]) -> _Draft:
        """Lay out all memories, some of them as if a stricter order held there."""
        steps, buffers = self.placement.steps, way.buffers
        sizes = {memory: self._sizes(memory, inside) for memory, inside in buffers.items()}
        relations = {
            memory: relate(inside, steps, stricter.get(memory, self.order))
            for memory, inside in buffers.items()
        }
        small = self._is_small(sizes, way.prepared)
        layouts = {
            memory: Layouts(memory, sizes[memory], relations[memory], self.flow, small=small)
            for memory in buffers
        }
        rooms = {memory: self._room(memory, way.prepared) for memory in buffers}
        alternatives = {
            memory: one.all(rooms[memory], serial=self.serial) for memory, one in layouts.items()
        }
        # One period for all memories: a program is bound to copies in several of them at once.
        names, period = choose([*alternatives.values()], [*rooms.values()])
        pools: dict[str, Pool] = {}
        locations: dict[PlacedTensor, Location] = {}
        chosen: dict[str, tuple[BufferGroup, ...]] = {}
        for (memory, layout), name in zip(layouts.items(), names, strict=True):
            groups = chosen[memory] = alternatives[memory][name]
            regions = {region.name: region for region in layout.regions(groups, period)}
            pools[memory] = Pool(
                memory,
                regions,
                slots=self.slots,
                layout=name,
                item_nbytes=layout.joint.packing.nbytes,
                tensors_nbytes=sum(sizes[memory]),
                lower_bound=layout.joint.packing.lower_bound,
                constants_nbytes=self.constants.get(memory, 0),
            )
            locations.update(_locations(memory, buffers[memory], groups))
        plan = MemoryPlan(locations, pools)
        completion, slots = len(steps), self.slots
        plan = way.prepared.beside(plan, slots, completion, self.constants)
        plan = beside(plan, way.growing, slots, completion, self.constants, self.devices)
        return _Draft(plan, chosen)

    def _is_small(self, sizes: Mapping[str, Sequence[int]], prepared: PreparedTensors) -> bool:
        """True when each item can as well have a copy of everything, and if items wait, should."""
        taken = {memory: self.slots * sum(inside) for memory, inside in sizes.items()}
        rooms = ((nbytes, self._room(memory, prepared)) for memory, nbytes in taken.items())
        fits = all(room is None or nbytes <= room for nbytes, room in rooms)
        waits = any(step.awaited for step in self.placement.steps)
        return fits and (waits or sum(taken.values()) <= SMALL_NBYTES)

    def _sizes(self, memory: str, buffers: Sequence[Buffer]) -> list[int]:
        """Return what the buffers of a memory take, rounded up so that offsets come out aligned."""
        alignment = alignment_of(memory, self.devices)
        return [-(-buffer.nbytes // alignment) * alignment for buffer in buffers]

    def _room(self, memory: str, prepared: PreparedTensors) -> int | None:
        """Return what the regions of items may take of a memory, if that is limited."""
        limit = self.bounds.get(memory)
        if limit is None:
            return None
        kept = self.constants.get(memory, 0) + prepared.nbytes(memory)
        return limit.nbytes - kept


class _Way(NamedTuple):
    """The buffers of items, by memory, and what lies in regions beside theirs."""

    buffers: Mapping[str, list[Buffer]]
    prepared: PreparedTensors
    growing: Mapping[PlacedTensor, int] = MappingProxyType({})


class _Draft(NamedTuple):
    """A plan, and the groups of buffers in each memory that its regions are made of."""

    plan: MemoryPlan
    groups: Mapping[str, tuple[BufferGroup, ...]]


def _locations(
    memory: str, buffers: Sequence[Buffer], groups: Sequence[BufferGroup]
) -> dict[PlacedTensor, Location]:
    locations: dict[PlacedTensor, Location] = {}
    for group in groups:
        for index, offset in zip(group.indices, group.packing.offsets, strict=True):
            for placed, inner in buffers[index].offsets.items():
                locations[placed] = Location(memory, group.name, offset + inner)
    return locations


def _constants_by_memory(
    graph: Graph, placement: Placement, devices: Mapping[str, Device]
) -> dict[str, int]:
    """Return the bytes of constants that the steps read, by the memory they are kept in.

    They lie there for as long as a plan is open, beside all regions. Devices of this process share
    the arrays of the graph, so that each constant counts once in host memory; any other device has
    what its programs read for itself.
    """
    kept: dict[tuple[str, str], set[str]] = {}
    for step in placement.steps:
        if not isinstance(step.work, Transfer):
            memory = devices[step.device].capabilities.memory
            owner = "" if memory == HOST else step.device
            read = (name for node in step.work.graph.nodes for name in node.inputs)
            kept.setdefault((memory, owner), set()).update(graph.constants.keys() & set(read))
    nbytes: dict[str, int] = {}
    for (memory, _), names in kept.items():
        needed = sum(graph.tensors[name].nbytes for name in names)
        nbytes[memory] = nbytes.get(memory, 0) + needed
    return nbytes
