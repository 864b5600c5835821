"""The place of every buffer, before the first run, within the limits of each memory.

Two buffers may share bytes iff every access to one happens before the first write to the other, in
the order of `happens_before`, or one lane keeps them apart, see `Relation`. `layouts` decides how
items in flight share a memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from ....devices.device import Device
from ....devices.memory import HOST, SHARED
from ....graph.core.ir import Graph, Node
from ....graph.core.printing import format_count
from ....graph.values.tensor import TensorSpec
from ...costs.costs import Costs
from ...errors import DoesNotFitError, PlanError
from ...plans.placement import Placement, Transfer
from ...plans.regions import Location, MemoryPlan, PlacedTensor, Pool
from ...shapes.constraints import NONE, DynamicShapeConstraints
from .buffers import Buffer, collect_buffers, find_alignment
from .control_edges import (
    Edge,
    estimate_duration,
    find_makespan,
    find_needed_waits,
    list_stricter_orders,
    predict,
    reduce_edges,
)
from .happens_before import HappensBefore, is_atomic, relate
from .layouts import SMALL_NBYTES, BufferGroup, Layouts, StepPipeline, choose
from .prepared import Apart, PreparedTensors, add_apart, choose_regions, set_apart

COPY_WORTH = 1.02
"""Factor of memory that is acceptable to save the copies of concatenations."""

MAX_CONFINED = 500
"""With more buffers, confining them to steps is not tried."""

LISTED_TENSORS = 3
"""Tensors that the error names when a plan exceeds a limit."""

ADDRESSABLE = 2**48
"""Address space of a process: larger tensors cannot exist anywhere."""


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
    """Return a plan of all buffers of `graph`, a static one, for `slots` items in flight.

    If a limit would be exceeded, steps wait for others when that is enough to keep it: use the
    placement with the plan's `added_edges` then, see `Placement.with_waits`. Otherwise items wait
    for earlier ones.

    `limits` are bytes of a device's own memory, or of a memory, constants included, besides those
    that devices declare. `costs` predict the price of waits. `constraints` leave room for other
    shapes.

    Raises DoesNotFitError if a memory is too small, PlanError if a limit names neither a device nor
    a memory.
    """
    bounds = find_limits(limits or {}, devices)
    check_tensors(graph, placement, find_limits({}, devices))
    costs = costs or Costs.of(devices)
    planner = _Planner(graph, placement, devices, slots, bounds, constraints)
    for plan in planner.plans(costs):
        if not find_exceeded(plan, bounds):
            break
    for memory in find_exceeded(plan, bounds):
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
    """Whether assigned values have memory of their own, unless that is too much."""
    serial: bool = False
    """Whether a memory holds one item at a time, to keep a limit as the last resort."""

    def __post_init__(self) -> None:
        self.order = HappensBefore(self.placement.steps)
        self.flow = StepPipeline(self.placement.steps, self.order, self.slots)
        self.constants = _measure_constants(self.graph, self.placement, self.devices)
        self.prepared = PreparedTensors.of(self.graph, self.placement, self.devices)
        self.way = _Way({}, self.prepared)
        self._scratch = {  # kernels are asked once
            (device.name, node.name): self.constraints.scratch(device, self.graph, node)
            for device, node in self._nodes()
        }
        self.regions = choose_regions(self.graph, self.growing())

    def scratch_of(self, device: Device, node: Node) -> Mapping[str, int]:
        return self._scratch[device.name, node.name]

    def scratch(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for device, node in self._nodes():
            found.update(self.scratch_of(device, node))
        return found

    def growing(self) -> frozenset[str]:
        """Return the names of tensors and scratch buffers without a largest size."""
        found = set(self.constraints.growing)
        for device, node in self._nodes() if found else ():
            if self.constraints.keeps_apart(node):
                found.update(self.scratch_of(device, node))
        return frozenset(found)

    def _nodes(self) -> Iterator[tuple[Device, Node]]:
        for step in self.placement.steps:
            if not isinstance(step.work, Transfer) and not is_atomic(step, self.devices):
                for node in step.work.graph.nodes:
                    yield self.devices[step.device], node

    def plans(self, costs: Costs) -> Iterator[MemoryPlan]:
        """Yield the best plan, then smaller ones: with copies, and with waits timed by `costs`."""
        # The last resort: one item at a time in a memory leaves little overlap.
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
        """Return the best plan of several ways to share bytes by meaning.

        The ways are in the order of preference: the first wins unless another saves more than a
        copy is worth.
        """
        ways = [self._collect(joins=True)]
        # Concatenations in place save copies, but may keep more bytes alive: compare both.
        if any(len(one.writers) > 1 for inside in ways[0].buffers.values() for one in inside):
            ways.append(self._collect(joins=False))
        few = sum(map(len, ways[0].buffers.values())) <= MAX_CONFINED
        # Confined inputs let items pass each other sooner, if there are several items and steps.
        if few and self.slots > 1 and len(self.placement.steps) > 1:
            joins = (True, False)[: len(ways)]
            ways += [self._collect(joins=joined, confined=True) for joined in joins]
        plans = [self._lay_out(way, {}).plan for way in ways]
        fitting = [i for i, plan in enumerate(plans) if not find_exceeded(plan, self.bounds)]
        # If none fits, waits start from the smallest.
        tried = fitting or range(len(plans))
        least = min(plans[i].nbytes for i in tried)
        best = next(i for i in tried if plans[i].nbytes <= COPY_WORTH * least)
        self.way = ways[best]
        return plans[best]

    def _plan_with_waits(self, plan: MemoryPlan, costs: Costs) -> MemoryPlan:
        tight = find_exceeded(plan, self.bounds)
        durations = [estimate_duration(step, costs) for step in self.placement.steps]
        # If no order is enough, the error states the excess of the smallest plan.
        smallest = plan
        # Orders are sorted by cost: the first group that keeps the limits decides.
        for orders in list_stricter_orders(self.order, self.placement.steps, durations):
            drafts = [self._lay_out(self.way, dict.fromkeys(tight, one)) for one in orders]
            smallest = min(smallest, *(one.plan for one in drafts), key=lambda one: one.nbytes)
            kept = [
                self._with_edges(draft, tight, strict, durations)
                for draft, strict in zip(drafts, orders, strict=True)
                if not find_exceeded(draft.plan, self.bounds)
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
        steps, found = self.placement.steps, set[Edge]()
        for memory in memories:
            inside = self.way.buffers[memory]
            # The original order: pairs that it separates need no waits.
            sizes, relation = self._sizes(memory, inside), relate(inside, steps, self.order)
            found.update(find_needed_waits(inside, draft.groups[memory], sizes, relation, strict))
        edges = reduce_edges(self.order, steps, found)
        slower = find_makespan(predict(self.placement.with_waits(edges).steps, durations))
        slowdown = slower / (find_makespan(predict(steps, durations)) or 1.0)
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
        buffers, apart = set_apart(dict(sorted(found.items())), self.regions)
        prepared = self.prepared
        if self.swaps and self.placement.commits:
            prepared, buffers = prepared.with_next(self.graph, self.placement, buffers)
        return _Way(buffers, prepared, apart)

    def _lay_out(self, way: _Way, stricter: Mapping[str, HappensBefore]) -> _Draft:
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
        # One period for all: programs are bound to copies in several memories at once.
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
            locations.update(_locate_buffers(memory, buffers[memory], groups))
        plan = MemoryPlan(locations, pools)
        completion, slots = len(steps), self.slots
        plan = way.prepared.beside(plan, slots, completion, self.constants)
        plan = add_apart(plan, way.apart, slots, completion, self.constants, self.devices)
        return _Draft(plan, chosen)

    def _is_small(self, sizes: Mapping[str, Sequence[int]], prepared: PreparedTensors) -> bool:
        taken = {memory: self.slots * sum(inside) for memory, inside in sizes.items()}
        rooms = ((nbytes, self._room(memory, prepared)) for memory, nbytes in taken.items())
        fits = all(room is None or nbytes <= room for nbytes, room in rooms)
        waits = any(step.awaited for step in self.placement.steps)
        return fits and (waits or sum(taken.values()) <= SMALL_NBYTES)

    def _sizes(self, memory: str, buffers: Sequence[Buffer]) -> list[int]:
        alignment = find_alignment(memory, self.devices)
        return [-(-buffer.nbytes // alignment) * alignment for buffer in buffers]

    def _room(self, memory: str, prepared: PreparedTensors) -> int | None:
        limit = self.bounds.get(memory)
        if limit is None:
            return None
        kept = self.constants.get(memory, 0) + prepared.nbytes(memory)
        return limit.nbytes - kept


class _Way(NamedTuple):
    """The buffers of items by memory, and the regions besides theirs."""

    buffers: Mapping[str, list[Buffer]]
    prepared: PreparedTensors
    apart: Apart = MappingProxyType({})


class _Draft(NamedTuple):
    """A plan, and the groups of buffers that form its regions, by memory."""

    plan: MemoryPlan
    groups: Mapping[str, tuple[BufferGroup, ...]]


def _locate_buffers(
    memory: str, buffers: Sequence[Buffer], groups: Sequence[BufferGroup]
) -> dict[PlacedTensor, Location]:
    locations: dict[PlacedTensor, Location] = {}
    for group in groups:
        for index, offset in zip(group.indices, group.packing.offsets, strict=True):
            for placed, inner in buffers[index].offsets.items():
                locations[placed] = Location(memory, group.name, offset + inner)
    return locations


def _measure_constants(
    graph: Graph, placement: Placement, devices: Mapping[str, Device]
) -> dict[str, int]:
    """Return the bytes of constants that steps of `placement` read, by memory of `devices`.

    Devices of this process share the arrays of the graph, so that each constant counts once in host
    memory; any other device has copies of the constants that its programs read.
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


class Limit(NamedTuple):
    """Bytes of a memory, constants included, and the owner of the limit."""

    nbytes: int
    owner: str


def find_limits(given: Mapping[str, int], devices: Mapping[str, Device]) -> dict[str, Limit]:
    """Return the lowest limit of each memory, `given` for it or for its device, or its size.

    Raises PlanError if a name is neither one of `devices` nor a memory, or a limit is not a number
    of bytes.
    """
    owned = {name: device.capabilities.memory for name, device in devices.items()}
    memories = {HOST, SHARED, *owned.values()}
    found: list[tuple[str, Limit]] = []
    for name, nbytes in given.items():
        if name not in owned and name not in memories:
            known = ", ".join(sorted({*owned, *memories}))
            raise PlanError(
                f"memory_limits names {name!r}, which is neither a device of the plan nor a memory",
                fix=f"use one of {known}",
            )
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            raise PlanError(f"the memory limit of {name!r} is {nbytes!r}", fix="use whole bytes")
        found.append((owned.get(name, name), Limit(nbytes, f"memory_limits[{name!r}]")))
    for name, device in devices.items():
        if device.capabilities.memory_bytes is not None:
            found.append((owned[name], Limit(device.capabilities.memory_bytes, name)))
    limits: dict[str, Limit] = {}
    for memory, limit in found:
        limits[memory] = min(limit, limits.get(memory, limit))
    return limits


def find_exceeded(plan: MemoryPlan, limits: Mapping[str, Limit]) -> list[str]:
    return [
        memory
        for memory, limit in limits.items()
        if memory in plan.pools and _sum_needed(plan.pools[memory]) > limit.nbytes
    ]


def check_addressable(graph: Graph) -> None:
    """Raise DoesNotFitError if a tensor of a static graph is too large for any machine."""
    for name, spec in graph.tensors.items():
        # Array libraries refuse large lengths next to a length of 0 too.
        nbytes = math.prod(filter(None, spec.static_shape)) * spec.dtype.itemsize
        if nbytes > ADDRESSABLE:
            raise _too_large_error(name, spec, nbytes, f"no machine has {ADDRESSABLE:,}")


def check_tensors(graph: Graph, placement: Placement, limits: Mapping[str, Limit]) -> None:
    """Raise DoesNotFitError if a tensor of `graph` exceeds the one of `limits` for its memory.

    `placement` has the memories of tensors. Call this before asking kernels for scratch buffers:
    they may be as large as a tensor.
    """
    for name, memory in placement.home.items():
        spec, limit = graph.tensors[name], limits.get(memory)
        if limit is not None and spec.nbytes > limit.nbytes:
            has = f"{limit.owner} has {limit.nbytes:,} of memory {memory!r}"
            raise _too_large_error(name, spec, spec.nbytes, has)


def _too_large_error(name: str, spec: TensorSpec, nbytes: int, has: str) -> DoesNotFitError:
    return DoesNotFitError(
        f"{name!r}, {spec}, alone takes {nbytes:,} bytes; {has}",
        fix="feed smaller inputs, or give nodes to other devices",
    )


def does_not_fit_error(pool: Pool, limit: Limit, buffers: Iterable[Buffer]) -> DoesNotFitError:
    largest = sorted(buffers, key=lambda buffer: -buffer.nbytes)[:LISTED_TENSORS]
    named = (f"{_name_buffer(one)} ({one.nbytes:,})" for one in largest)
    constants = f", {pool.constants_nbytes:,} of them constants" if pool.constants_nbytes else ""
    return DoesNotFitError(
        f"the plan needs at least {_sum_needed(pool):,} bytes of memory "
        f"{pool.memory!r}{constants}; {limit.owner} has {limit.nbytes:,}",
        at=f"{format_count(pool.slots, 'item')} in flight, "
        f"{pool.item_nbytes:,} bytes for one alone; "
        f"the largest tensors are {', '.join(named)}",
        fix="lower max_in_flight, feed smaller inputs, or give nodes to other devices",
    )


def _name_buffer(buffer: Buffer) -> str:
    name, scratch, _ = next(iter(buffer.offsets))[0].partition("\0")
    return f"scratch of {name!r}" if scratch else repr(name)


def _sum_needed(pool: Pool) -> int:
    return pool.nbytes + pool.constants_nbytes
