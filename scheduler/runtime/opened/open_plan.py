"""An open plan: arenas allocated, programs bound, slots of buffers for the items in flight.

A slot consists of one copy of each region of memory. Slots may have copies in common; then they
have the programs bound to those in common, too. All methods block; the runtime calls them on
threads. Slots are made on demand, up to the plan's period.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ....devices.device import Device, Program
from ....devices.host import may_run_anywhere
from ....devices.kinds import get_kind
from ....devices.memory import HOST, Arena, View, host_view
from ....devices.operator_instances import OperatorInstances
from ....graph.core.nested import walk_nodes
from ....graph.operators.each import EACH
from ....graph.values.tensor import Array, TensorSpec
from ...dispatch.core_shares import find_shared_lanes, outline_steps, share_cores
from ...dispatch.inline_policy import Estimates, are_in_a_row
from ...errors import raise_error
from ...planner.memory.prepared import find_variables, list_regions, name_next_region
from ...plans.placement import OUTSIDE, Commit, Step, Transfer, summarize_step
from ...plans.plan import Plan
from ...plans.regions import PlacedTensor, must_take_turns
from ...simulation.lanes import make_workload
from ..virtual_time import VirtualTimeDriver, get_clock
from .arenas import Arenas, Lend, OpenArenas, Turned
from .binding import Bindings, BoundStep
from .copying import Copy, Feeds, OutputCopies
from .device_io import find_arrivals, find_departures
from .inline import MOST_STEPS, Call, copy_ns
from .lanes import OpenLanes
from .region_guard import RegionGuard
from .slot import Slot
from .stage_bindings import KeptStage, OnSlot, StageBindings
from .versions import StateVersions

if TYPE_CHECKING:
    from .executor import Execution

WRITE_PARTS = ("ScatterElements", "ScatterND", "TensorScatter")
LEAST_IN_PLACE = 1 << 16
"""Bytes of a variable; smaller ones are copied, so that items of a key overlap."""

KEPT_TURNS = 8
"""Limit of kept bindings for exchanged variables."""

Lanes: TypeAlias = "OpenLanes[tuple[Execution, int]]"
"""The lanes of a session, and the plans with waiting steps."""


class OpenPlan:
    """A static plan on open devices, in a session with its `driver` and `lanes`.

    It times every node if it `measure`s; `lend` returns the arenas of regions that the session
    keeps. `base` is an open plan of the same steps for other shapes: in its `arenas` this one runs,
    in turn with it, and nothing needs to be opened or closed. Steps that are the same are bound
    once.

    `order` has the dependents of steps. A step follows another as soon as its lane is given that
    one, not when it is complete, where their device keeps the order itself (`native_waits`).
    `lane`, `now_ns` and `outlines` have for each step its lane, the clock of its device, and an
    outline for the profile; neither that nor `pools`, the memory, keeps the plan alive. `guard` has
    the regions that items pass in the order of their numbers, item n on slot n % period; it is None
    where an item may take any slot that no other item is on. `slots` are those made so far for
    where variables are.

    `acts` is true if a step has effects. `calls` are the steps that call async functions, `eaches`
    the nodes that have rows run in batches. `ordered` has the steps that wait for earlier items,
    and those that let later ones go on. `state` has the steps that read variables as items hand
    them on, or write them, and `hands_on` these variables; for items with keys, `ordered_by_key`
    and `group_by_key` take the place of `ordered` and `hands_on`, and `in_place` has the variables
    that they write in place, with their tensors. `has_state` is true if items read or write
    variables in any of these ways, `is_plain` if none of `acts`, `eaches` and `has_state` restricts
    where items run.

    `reads`, `keeps` and `overwrites` say in which memories each variable is read, holds a new value
    after an item, and has that copied over the old one. `turning` has the regions of variables, and
    of next values, that change places after an item; `brought` is the change of variables after
    which they were all brought to where they are read.

    The plan avoids the first `refusals` that this process has met. If `has_own_devices`, threads
    may run its items beside those of its replicas.

    `given` is the only device with steps, if it was given as an object: other sessions may use it,
    too. `item_clock` is the clock of items, `no_times` are the times of one before its first step.
    `report` reports an exception of plait's own, on any thread. `stages` binds steps to lengths
    that items compute; it is None without such lengths.
    """

    refusals = 0

    def __init__(
        self,
        plan: Plan,
        devices: Mapping[str, Device],
        driver: VirtualTimeDriver | None = None,
        lanes: Lanes | None = None,
        *,
        measure: bool = False,
        lend: Lend | None = None,
        base: OpenPlan | None = None,
    ) -> None:
        assert plan.placement is not None, "shapes are known"
        assert plan.memory is not None
        self.plan = plan
        self._placement, self._memory = plan.placement, plan.memory
        self._devices = devices
        self._driver = driver
        self._measure = measure
        self._lend = lend
        self.pools = plan.memory.pools
        self.reads = find_variables(plan.graph, plan.placement.prepared)
        self.brought = -1
        self.keeps = find_variables(plan.graph, (one.target for one in plan.placement.commits))
        copied = (one.target for one in plan.placement.commits if self._next(one) is None)
        self.overwrites = find_variables(plan.graph, copied)
        self.no_times = array("q", bytes(24 * len(plan.steps)))
        self.lanes: Lanes = OpenLanes() if lanes is None else lanes
        self.period = self._memory.period
        self.slots: dict[int, Slot] = {}
        self._turned: Turned = frozenset()
        self._slots = {self._turned: self.slots}
        # A value that is copied over the old one stays in its place.
        self.turning = list_regions(self.keeps) - list_regions(self.overwrites)
        self._read_regions = list_regions(self.reads)
        # Lanes and estimates are the base's: items of all shapes wait in the same queues.
        if base is None:
            self._plan_order()
        else:
            self._take_order(base)
        self.state = {step.index: step.state for step in plan.steps if any(step.state)}
        self.hands_on = frozenset(name for one in self.state.values() for name in one.writes)
        self.has_state = bool(self.reads or self.keeps or self.hands_on)
        self.in_place = dict(self._find_in_place())
        held = self.ordered.held.union(self.in_place)
        self.ordered_by_key = self.ordered._replace(held=held)
        # Items of plans that copy these do not overlap with those of this one.
        self.group_by_key = self.hands_on.union(f"{name} in place" for name in self.in_place)
        self.calls = tuple(one.index for one in self.outlines if one.awaited)
        self.eaches = tuple(node for _, _, node in walk_nodes(plan.graph) if node.op == EACH)
        self.is_plain = not (self.acts or self.eaches or self.has_state)
        others = None if base is None else base._bindings
        self._bindings: Bindings = Bindings(
            plan, devices, driver, self._lives, self.lanes.instances, others, measure=measure
        )
        self.item_clock = perf_counter_ns if driver is None else driver.now_ns
        self.report = raise_error if driver is None else driver.report
        stages = [KeptStage(self, stage) for stage in plan.stages]
        self.stages = StageBindings(self, plan.stages, stages) if stages else None
        used = {step.device for step in plan.steps}
        alone = devices[used.pop()] if len(used) == 1 and used <= plan.request.given else None
        self.given = alone if may_run_anywhere(alone) else None

    def _plan_order(self) -> None:
        plan = self.plan
        self.outlines = outline_steps(plan)
        self.now_ns = tuple(get_clock(self._devices[step.device]) for step in plan.steps)
        cores, shared = share_cores(plan), find_shared_lanes(plan)
        work = make_workload(plan.steps, self._devices, plan.costs, cores, shared)
        self.order, self.ordered = work.order(), work.ordered
        self.acts = any(step.has_effects for step in self.plan.steps)
        self.used_lanes = tuple(self.lanes.of(work.lanes))
        self.lane = tuple(self.used_lanes[lane] for lane in work.lane)
        self.most_at_once = 1 if are_in_a_row(plan.steps) else len(self.used_lanes)
        self.has_own_devices = plan.has_own_devices
        self.parks_from = _find_tail(plan.steps)
        python = [  # networks for rows are computed
            step.index for step in plan.steps if step.calls_python and not step.runs_rows
        ]
        is_only_one = self._driver is not None and self._driver.has_loop_alone
        self.estimates = Estimates(work.duration_s, python, believes=is_only_one)
        in_turn = must_take_turns(self._memory.regions, plan.max_in_flight)
        self.guard = RegionGuard(self._memory.regions) if in_turn else None
        self.arenas = OpenArenas(self._memory, self._devices, self._lend)
        self._lives = OperatorInstances(
            () if plan.prologue is None else plan.prologue.graph.outputs
        )

    def _take_order(self, base: OpenPlan) -> None:
        # Most steps are the base's own: this is done for each new length.
        pairs = zip(self.plan.steps, base.plan.steps, base.outlines, strict=True)
        self.outlines = tuple(
            known if step is old else summarize_step(step, known.shared_lane)
            for step, old, known in pairs
        )
        self.now_ns = base.now_ns
        self.order, self.lane, self.used_lanes = base.order, base.lane, base.used_lanes
        self.most_at_once, self.has_own_devices = base.most_at_once, base.has_own_devices
        self.refusals = base.refusals
        self.ordered, self.acts, self.parks_from = base.ordered, base.acts, base.parks_from
        self._lives = base._lives
        self.estimates, self.guard = base.estimates, base.guard
        self.arenas = base.arenas.holding(self._memory)

    def resized(self, plan: Plan) -> OpenPlan:
        """Return `plan`, of the same steps for smaller shapes, open as long as this one is."""
        return OpenPlan(
            plan, self._devices, self._driver, self.lanes, measure=self._measure, base=self
        )

    def bindings_of(self, plan: Plan) -> Bindings:
        """Return the bindings of `plan`, of the same steps, some of them for smaller shapes."""
        lives = self._lives, self.lanes.instances
        return Bindings(
            plan, self._devices, self._driver, *lives, self._bindings, measure=self._measure
        )

    @property
    def own_steps(self) -> Iterator[Step]:
        return self._bindings.own_steps

    @property
    def own_programs(self) -> Iterator[tuple[Step, list[Program]]]:
        return self._bindings.own_programs

    def open(self) -> None:
        """Allocate the memory that all slots share.

        Raises DeviceMemoryError if there is too little memory; nothing stays allocated.
        """
        self.arenas.open()

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(self._devices[name] for name in self.plan.devices)

    def shared_view(self, placed: PlacedTensor, device: Device) -> View:
        location = self._memory.locations[placed]
        arena = self.arenas.made[location.memory, location.region, 0]
        arena.is_unused = False
        return device.view(arena, location.offset, self.plan.graph.tensors[placed[0]])

    def make_slot(self, index: int, turned: Turned | None = None) -> Slot:
        """Return the slot with copy `index % copies` of each region, made unless it was.

        It is for where variables are now, or will be after `turned`. Raises DeviceError if a device
        refuses; nothing more is held then.
        """
        turned = self._turned if turned is None else turned
        slots = self._slots.setdefault(turned, {})
        with self.arenas.of(index, turned) as arenas:
            # Another thread may have made it while this one waited for the arenas.
            if index in slots:
                return slots[index]
            bound = self._bindings.of(index, turned, arenas)
            view = partial(self._bindings.view, arenas)
            feeds, results = self._feeds(arenas), self._results(arenas)
            gifts = dict(self._bindings.donations(results, arenas))
            lent = dict(self._bindings.donations(feeds, arenas))
            steps = bound.steps.values()
            copying_ns = copy_ns(
                {n: one for n, one in feeds.items() if n not in lent},
                {n: one for n, one in results.items() if n not in gifts},
            )
            slot = Slot(
                Feeds(feeds, lent),
                results,
                tuple(one.launch for one in steps),
                tuple(one.inline for one in steps),
                None if copying_ns is None else self.calls_of(steps),
                copying_ns or 0,
                find_arrivals(self.plan, self._devices, view, self._driver),
                find_departures(self.plan, self._devices, view, self._driver),
                OutputCopies(self._commits(arenas)),
                dict(self._swaps(arenas)),
                tuple(self._bindings.row_feeds(arenas)),
                *self._views_of_state(arenas),
                {n: one.instances for n, one in bound.steps.items() if one.instances is not None},
                gifts,
            )
            # Only now: a slot that fails half-way leaves no steps for others to share.
            self._bindings.keep(bound)
            slots[index] = slot
        return slot

    @property
    def only_calls(self) -> bool:
        """True where steps that are bound for this plan alone may be bound again by calls alone."""
        return self._has_plain_slots and self._bindings.only_calls

    @property
    def binds_briefly(self) -> bool:
        """True where an item may bind the steps of this plan alone to its lengths itself."""
        return self._has_plain_slots and self._bindings.binds_briefly

    @property
    def _has_plain_slots(self) -> bool:
        # Devices and variables have slots of their own kinds, and measured times are of lengths.
        return not (self.plan.ends.devices or self.has_state or self._measure)

    @property
    def touched(self) -> frozenset[str]:
        """All tensors that steps touch which are bound for this plan alone."""
        return self._bindings.touched

    def on_slot(self, index: int) -> OnSlot:
        """Return the memory of slot `index`, which was made, and all steps as bound there."""
        # On the loop: making a slot may have to wait for a worker meanwhile.
        arenas = self.arenas.made_for(index, self._turned)
        return OnSlot(arenas, self._bindings.of(index, self._turned, arenas).steps)

    def rebound(
        self, on_slot: OnSlot, specs: Mapping[str, TensorSpec], *, compiles: bool
    ) -> dict[int, BoundStep] | None:
        """Return the steps of this plan alone for other lengths, or None if that takes planning.

        `on_slot` is of this plan, or of one of the same steps with the same arenas; `specs` are
        those of changed tensors that they touch. If it `compiles`, programs that cannot be had
        again are compiled; otherwise there is nothing then. Raises DeviceError if a device refuses.
        """
        arenas, steps = on_slot
        return self._bindings.rebound(arenas, steps, specs, compiles=compiles)

    def _find_in_place(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the variables that items with keys may write in place, each with its tensors.

        A kernel writes a part, nothing else reads the value before, and programs can be bound to
        other memory.
        """
        graph, assignment = self.plan.graph, self.plan.assignment
        if self.ordered.shared or self._measure or self.plan.stages or not self.plan.is_static:
            return
        for value, tensor in graph.assigned.items():
            assign = graph.producers[value]
            written = assign.inputs[1]
            node = graph.producers.get(written)
            if node is None or node.op not in WRITE_PARTS or node.inputs[0] != tensor:
                continue
            nodes = (node, *graph.consumers[written], *graph.consumers[value])
            if (
                tensor in graph.late
                and {one.name for one in graph.consumers[tensor]} == {node.name, assign.name}
                and not {written, value} & {*graph.outputs}
                and graph.tensors[value].nbytes >= LEAST_IN_PLACE
                and all(get_kind(assignment[one.name]) in ("cpu", "compiled") for one in nodes)
            ):
                yield graph.variables[tensor].name, (tensor, written, value)

    def slot_for(self, slot: Slot, index: int, versions: StateVersions | None) -> Slot:
        if versions is None or not self.in_place:
            return slot
        kept = versions.slots.setdefault(self, {})
        arrays = {name: versions.pin(name) for name in self.in_place}
        found = kept.get(index)
        if found is not None and all(found.own[name] is array for name, array in arrays.items()):
            return found
        steps, views = self.on_slot(index).steps, dict[str, View]()
        for name, tensors in self.in_place.items():
            arena = Arena(HOST, arrays[name].nbytes, arrays[name].reshape(-1).view(np.uint8))
            arena.undo = versions.undo
            spec = self.plan.graph.tensors[tensors[0]]
            views |= dict.fromkeys(tensors, host_view(arena, 0, spec))
        bound = self._bindings.moved(steps, views).values()
        found = kept[index] = replace(
            slot,
            launches=tuple(one.launch for one in bound),
            inline=tuple(one.inline for one in bound),
            calls=None if slot.calls is None else self.calls_of(bound),
            state_in={n: one for n, one in slot.state_in.items() if n not in arrays},
            state_out={n: one for n, one in slot.state_out.items() if n not in arrays},
            own=arrays,
        )
        return found

    def turn(self, turned: Turned) -> None:
        """Switch to slots for the regions `turned`, where variables are now."""
        self._turned = turned & self._read_regions
        # All at once: variables that go round many ways come back to each of them too late.
        if self._turned not in self._slots and len(self._slots) >= KEPT_TURNS:
            self.unbind()
        self.slots = self._slots.setdefault(self._turned, {})

    def close(self) -> None:
        """Close instances of nodes, and free the arenas; no item may be in flight.

        Raises KernelError or DeviceError if something that a node owns cannot be closed; all else
        is closed by then.
        """
        self.unbind()
        try:
            # Before the arenas: an instance may read its memory until it is closed.
            self._lives.close()
        finally:
            self.arenas.close()

    def unbind(self) -> None:
        """Release programs; items in flight keep theirs."""
        self._slots.clear()
        self.slots = self._slots[self._turned] = {}
        self._bindings.clear()
        if self.stages is not None:
            self.stages.clear()

    def calls_of(self, bound: Collection[BoundStep]) -> tuple[Call, ...] | None:
        """Return the calls of the steps `bound`, to run in sequence; None if an item needs more.

        Devices given as objects may work for other sessions: one can be kept from that meanwhile.
        """
        plan = self.plan
        is_shared = self.given is None and not plan.request.given.isdisjoint(plan.devices)
        # Only the executor does the work that these need before, between or after steps.
        is_more = self._measure or plan.ends.devices
        if is_shared or is_more or len(bound) > MOST_STEPS:
            return None
        calls = tuple(one.call for one in bound if one.call is not None)
        return calls if len(calls) == len(bound) else None

    def _feeds(self, arenas: Arenas) -> dict[str, Array]:
        return {
            name: self._host_array((name, self._placement.home[name]), arenas)
            for name in self.plan.graph.inputs
            if name not in self.plan.ends.inputs
        }

    def _commits(self, arenas: Arenas) -> Iterator[Copy]:
        tensors = self.plan.graph.tensors
        for commit in self._placement.commits:
            if self._next(commit) is not None:
                continue
            device = self._devices[commit.device]
            target, source = (
                self._bindings.view(arenas, device, placed, tensors[placed[0]])
                for placed in (commit.target, commit.source)
            )
            target.arena.stop_following()
            yield Copy(target, source, device)

    def _swaps(self, arenas: Arenas) -> Iterator[tuple[tuple[str, str], Arena]]:
        for commit in self._placement.commits:
            key = self._next(commit)
            if key is not None:
                variable = self.plan.graph.variables[commit.target[0]].name
                yield (variable, key[0]), arenas[key]

    def _next(self, commit: Commit) -> tuple[str, str] | None:
        """Return memory and region of `commit` that swap with the variable's, or None to copy."""
        location = self._memory.locations.get(commit.source)  # a constant has none
        variable = self.plan.graph.variables[commit.target[0]].name
        key = commit.target[1], name_next_region(variable)
        is_there = location is not None and (location.memory, location.region) == key
        return key if is_there else None

    def _views_of_state(self, arenas: Arenas) -> tuple[dict[str, Array], dict[str, Array]]:
        graph, home, local = self.plan.graph, self._placement.home, self._placement.local
        reads = {
            graph.variables[name].name: self._host_array((name, home[name]), arenas)
            for name in graph.late
        }
        writes = {
            graph.variables[variable].name: self._host_array((name, local[name, OUTSIDE]), arenas)
            for name, variable in graph.assigned.items()
            if variable in graph.late
        }
        return reads, writes

    def _results(self, arenas: Arenas) -> dict[str, Array]:
        graph = self.plan.graph
        return {
            name: graph.constants[name]
            if name in graph.constants
            else self._host_array((name, self._placement.local[name, OUTSIDE]), arenas)
            for name in graph.outputs
            if name not in self.plan.ends.outputs
        }

    def _host_array(self, placed: PlacedTensor, arenas: Arenas) -> Array:
        location = self._memory.locations[placed]
        arena = arenas[location.memory, location.region]
        return host_view(arena, location.offset, self.plan.graph.tensors[placed[0]]).array


def _find_tail(steps: Sequence[Step]) -> int:
    """Return the first of the last `steps` that only call functions: any thread may run these."""
    others = [
        step.index
        for step in steps
        if isinstance(step.work, Transfer)
        or step.awaited is not None
        or any(node.operator.function is None for node in step.work.graph.nodes)
    ]
    return 1 + max(others, default=-1)
