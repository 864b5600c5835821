"""Binds the steps of an open plan: views of memory, compiled programs, launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

from ....devices.device import (
    Device,
    Program,
    Rebindable,
    Scaling,
    StatefulDevice,
    can_take_constants,
    is_rebindable,
    scratch_specs,
)
from ....devices.donation import Donation
from ....devices.errors import DeviceError
from ....devices.host import HostDevice, HostProgram, may_run_anywhere
from ....devices.memory import Arena, View
from ....devices.operator_instances import ItemInstances, OperatorInstances
from ....devices.program import BoundProgram, is_in_place
from ....graph.core.ir import Graph
from ....graph.functions.operator_lifecycle import has_lives
from ....graph.operators.item_order import is_ordered
from ....graph.values.tensor import Array, TensorSpec
from ...dispatch.core_shares import share_cores
from ...dispatch.donations import find_donated_tensors
from ...dispatch.inline_policy import find_steps_for_threads, inline_steps
from ...dispatch.row_edges import RowEdge, find_row_edges
from ...plans.partition import Subgraph
from ...plans.placement import OUTSIDE, SCRATCH, Step, Transfer
from ...plans.plan import Plan
from ...plans.regions import PlacedTensor, Region
from .. import async_calls
from ..row_feed import RowFeed
from ..virtual_time import Launch, VirtualTimeDriver
from .arenas import Arenas, Turned, copy_of
from .contests import Contest, is_contested
from .device_io import skip_handing
from .inline import Call
from .slot import InlineRun

FEW_NODES = 16
"""Nodes that items bind to their lengths themselves; more are bound on a thread, and kept."""

Key: TypeAlias = tuple[int, ...]
"""A step, and the copy of each region that it touches."""


class BoundStep(NamedTuple):
    """A function that launches a step on the memory of a slot.

    Where any thread of this process may run it: `inline` if its lane is idle, `call` by who knows
    that. There are no program and views where it is a copy. `instances` has those that a program
    uses for the present item, if its nodes may have others for each key.
    """

    launch: Launch
    inline: InlineRun | None = None
    call: Call | None = None
    program: Program | None = None
    views: Mapping[str, View] = MappingProxyType({})
    instances: ItemInstances | None = None

    @property
    def rebindable(self) -> Rebindable | None:
        """Its program, if that can be bound to other lengths, or else None."""
        return self.program if self.program and is_rebindable(self.program) else None


class BoundSlot(NamedTuple):
    """The steps of a plan, bound to a slot.

    Attributes
    ----------
    steps : Mapping of int to BoundStep
        All, in their order.
    added : Mapping of Key to BoundStep
        Those that are not kept yet.
    """

    slot: tuple[int, Turned]
    steps: Mapping[int, BoundStep]
    added: Mapping[Key, BoundStep]


class _Rules(NamedTuple):
    """Inline steps, the cores of devices that scale, and tensors that are donated or lent."""

    inline: frozenset[int]
    on_threads: frozenset[int]
    cores: Mapping[str, int]
    donated: Mapping[str, bool]


class _BoundStep(NamedTuple):
    """A step, the regions of its tensors, and its kept bindings."""

    step: Step
    touched: tuple[tuple[PlacedTensor, TensorSpec], ...]
    regions: tuple[Region, ...]
    kept: dict[Key, BoundStep]


class Bindings:
    """The steps of a static plan, bound to the memory of slots.

    Slots that have copies of regions in common have the steps bound to those in common, too. So
    have plans for other shapes the steps that are the same in `base`. Instances of nodes are kept
    in `lives`, or in `shared` where it keeps state for the items of all plans.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Mapping[str, Device],
        driver: VirtualTimeDriver | None,
        lives: OperatorInstances,
        shared: OperatorInstances,
        base: Bindings | None = None,
        *,
        measure: bool,
    ) -> None:
        assert plan.placement is not None, "shapes are known"
        assert plan.memory is not None
        self._plan = plan
        self._placement, self._memory = plan.placement, plan.memory
        self._devices, self._driver, self._lives = devices, driver, lives
        self._shared = shared
        self._measure = measure
        # Writers of rows may be bound for all lengths, readers for each of them.
        self._row_feeds: dict[tuple[Arena, str], RowFeed] = {} if base is None else base._row_feeds
        self._row_edges = () if driver is None else tuple(find_row_edges(plan))
        self._rules = _find_rules(plan, devices) if base is None else base._rules_for(plan)
        # The writer and the readers of a tensor must agree on its place.
        agrees = base is not None and base._rules.donated == self._rules.donated
        self._base = base if agrees else None
        is_one_shape = base is None and plan.template is None and not measure
        self._choices = plan.request.choices if is_one_shape else None
        self._contests: dict[int, Contest] = {}
        self._slots: dict[tuple[int, Turned], Mapping[int, BoundStep]] = {}
        of_base: Sequence[_BoundStep] = () if self._base is None else self._base._steps
        theirs = {id(one.step): one for one in of_base}
        self._steps: list[_BoundStep] = [
            theirs.get(id(step)) or self._bound_step(step) for step in plan.steps
        ]
        self._own = [one for one in self._steps if id(one.step) not in theirs]
        # Those that equal the base's steps, at other lengths.
        self._resized = {
            one.step.index
            for one in self._own
            if of_base and _does_the_same(one.step, of_base[one.step.index].step)
        }

    def _rules_for(self, plan: Plan) -> _Rules:
        """Return the rules for `plan`, which is this plan for other shapes.

        Control flow may have become something else there.
        """
        same = all(map(_has_same_nodes, plan.steps, self._plan.steps))
        return self._rules if same else _find_rules(plan, self._devices)

    def of(self, index: int, turned: Turned, arenas: Arenas) -> BoundSlot:
        """Return all steps, in order, bound to `arenas` or as kept for slot `index` and `turned`.

        For other shapes most steps are the base's: if it has that slot, only the others are gone
        through, which may be one of a hundred. Raises DeviceError if a device refuses.
        """
        slot = index, turned
        of_base = {} if self._base is None else self._base._slots.get(slot, {})
        found = {**of_base}
        added: dict[Key, BoundStep] = {}
        for one in self._own if of_base else self._steps:
            number = one.step.index
            # Slots that touch the same copies run the same bound step.
            key = number, *[copy_of(region, index, turned) for region in one.regions]
            bound = one.kept.get(key)
            if bound is None:
                before = of_base.get(number) if number in self._resized else None
                bound = added[key] = self._bind(one, arenas, before)
            found[number] = bound
        return BoundSlot(slot, found, added)

    @property
    def only_calls(self) -> bool:
        """True if this plan's own steps may be bound to other lengths by calls alone.

        So they are if only functions see lengths, according to their programs.
        """
        return self._are_free and not any(
            self._devices[one.step.device].capabilities.atomic_programs for one in self._own
        )

    @property
    def binds_briefly(self) -> bool:
        """True if the steps of this plan alone are few nodes on devices of this process."""
        nodes = 0
        for one in self._own:
            device = self._devices[one.step.device]
            is_one = device.capabilities.atomic_programs
            if isinstance(one.step.work, Transfer) or not may_run_anywhere(device):
                return False
            nodes += 1 if is_one else len(one.step.work.graph.nodes)
        return self._are_free and nodes <= FEW_NODES

    @property
    def _are_free(self) -> bool:
        return not self._row_edges and not any(
            isinstance(one.step.work, Transfer) or one.step.owns for one in self._own
        )

    def own_of(self, arenas: Arenas) -> dict[int, BoundStep]:
        """Return the plan's own steps by number, bound to `arenas` without keeping them.

        Raises DeviceError if a device refuses.
        """
        return {one.step.index: self._bind(one, arenas) for one in self._own}

    def rebound(
        self,
        arenas: Arenas,
        before: Mapping[int, BoundStep],
        specs: Mapping[str, TensorSpec],
        constants: Mapping[str, Array] = MappingProxyType({}),
        *,
        compiles: bool = True,
    ) -> dict[int, BoundStep] | None:
        """Return the plan's own steps in `arenas` for other lengths; None if that takes planning.

        `before` has the steps as they were bound there, `specs` those of changed tensors that they
        touch; `constants` follow from lengths. Unless it `compiles`, there is nothing where
        programs cannot be had again. Raises DeviceError if a device refuses.
        """
        found: dict[int, BoundStep] = {}
        for one in self._own:
            step, device = one.step, self._devices[one.step.device]
            assert not isinstance(step.work, Transfer), "all is in this process"
            views = dict(before[step.index].views)
            for placed, _ in one.touched:
                if placed[0] in specs:
                    views[placed[0]] = self.view(arenas, device, placed, specs[placed[0]])
            inner = step.work.graph
            changed = {name: constants[name] for name in constants if name in inner.constants}
            program = _rebind(before[step.index].rebindable, views, changed)
            if program is None:
                # The inside of an atomic program is unknown.
                if device.capabilities.atomic_programs or not compiles:
                    return None
                tensors = {name: specs.get(name, spec) for name, spec in inner.tensors.items()}
                inner = replace(inner, tensors=tensors, constants={**inner.constants, **changed})
                scratch = (scratch_specs(device, inner, node) for node in inner.nodes)
                if not all(views.keys() >= names.keys() for names in scratch):
                    return None  # kernels need buffers that they need at no other lengths
                program = self._program(device, inner, views)
            found[step.index] = self._launched(step, program, views)
        return found

    def moved(
        self, before: Mapping[int, BoundStep], views: Mapping[str, View]
    ) -> dict[int, BoundStep]:
        found = {**before}
        for one in self._steps:
            step, named = one.step, before[one.step.index].views
            if not views.keys().isdisjoint(named):
                named = {name: views.get(name, view) for name, view in named.items()}
                assert not isinstance(step.work, Transfer)
                program = self._program(self._devices[step.device], step.work.graph, named)
                found[step.index] = self._launched(step, program, named)
        return found

    @property
    def touched(self) -> frozenset[str]:
        """All tensors that the plan's own steps touch."""
        return frozenset(placed[0] for one in self._own for placed, _ in one.touched)

    def row_feeds(self, arenas: Arenas) -> Iterator[RowFeed]:
        for edge in self._row_edges:
            location = self._memory.locations[edge.placed]
            yield self._row_feed(edge, arenas[location.memory, location.region])

    def _row_feed(self, edge: RowEdge, arena: Arena) -> RowFeed:
        assert self._driver is not None, "there are edges in sessions alone"
        return self._row_feeds.setdefault((arena, edge.each.name), RowFeed(edge, self._driver))

    def keep(self, bound: BoundSlot) -> None:
        for key, one in bound.added.items():
            self._steps[key[0]].kept[key] = one
        if self._base is None:
            self._slots[bound.slot] = bound.steps

    def clear(self) -> None:
        """Release all kept bindings, except for steps of another plan."""
        while self._contests:
            self._contests.popitem()[1].close()
        self._slots.clear()
        for one in self._own:
            one.kept.clear()

    @property
    def own_steps(self) -> Iterator[Step]:
        return (one.step for one in self._own)

    @property
    def own_programs(self) -> Iterator[tuple[Step, list[Program]]]:
        for one in self._own:
            yield one.step, [it.program for it in one.kept.values() if it.program is not None]

    def _bound_step(self, step: Step) -> _BoundStep:
        touched = tuple(self._placed_tensors(step))
        regions = dict.fromkeys(self._region(placed) for placed, _ in touched)
        return _BoundStep(step, touched, tuple(regions), {})

    def view(self, arenas: Arenas, device: Device, placed: PlacedTensor, spec: TensorSpec) -> View:
        location = self._memory.locations[placed]
        arena = arenas[location.memory, location.region]
        view = device.view(arena, location.offset, spec)
        is_read = self._rules.donated.get(placed[0])
        if is_read is None:
            return view
        # One for all views: readers must find the array that the writer puts in place of the
        # memory.
        donation = arena.donations.setdefault(placed[0], Donation(view.array, is_read=is_read))
        return replace(view, donation=donation)

    def donations(self, names: Iterable[str], arenas: Arenas) -> Iterator[tuple[str, Donation]]:
        """Yield those `names` of inputs or outputs that are donated or lent, with their places."""
        for name in self._rules.donated.keys() & names:
            memory = self._placement.local.get((name, OUTSIDE), self._placement.home[name])
            location = self._memory.locations[name, memory]
            yield name, arenas[location.memory, location.region].donations[name]

    def _region(self, placed: PlacedTensor) -> Region:
        location = self._memory.locations[placed]
        return self._memory.pools[location.memory].regions[location.region]

    def _placed_tensors(self, step: Step) -> Iterator[tuple[PlacedTensor, TensorSpec]]:
        if isinstance(step.work, Transfer):
            spec = self._plan.graph.tensors[step.work.tensor]
            if not step.work.arrives:
                yield (step.work.tensor, step.work.source), spec
            if not step.work.leaves:
                yield (step.work.tensor, step.work.target), spec
        else:
            yield from self._program_tensors(step.work)

    def _program_tensors(self, subgraph: Subgraph) -> Iterator[tuple[PlacedTensor, TensorSpec]]:
        graph, device = subgraph.graph, self._devices[subgraph.device]
        atomic = device.capabilities.atomic_programs
        # An atomic program has its own memory for intermediate tensors.
        for name in (*graph.inputs, *graph.outputs) if atomic else graph.tensors:
            if name not in graph.constants:
                memory = self._placement.local[name, subgraph.device]
                yield (name, memory), self._plan.graph.tensors[name]
        for node in () if atomic else graph.nodes:
            for name, spec in scratch_specs(device, graph, node).items():
                yield (name, self._placement.local[SCRATCH, subgraph.device]), spec

    def _bind(self, one: _BoundStep, arenas: Arenas, before: BoundStep | None = None) -> BoundStep:
        step = one.step
        device = self._devices[step.device]
        views = [
            (placed[0], self.view(arenas, device, placed, spec)) for placed, spec in one.touched
        ]
        if not isinstance(step.work, Transfer):
            named = dict(views)
            # Cheap first: to compile it anew may have to wait for the device to be done.
            program: Program | None = None
            if before is not None and before.rebindable and _are_unmoved(named, before.views):
                program = before.rebindable.rebound(named)
            lives = self._find_lives(step, device)
            start = perf_counter()
            if program is None:
                program = self._program(device, step.work.graph, named, lives)
            launched = self._watched(step, program, named, perf_counter() - start)
            if self._placement.commits:  # variables have a pair of arenas
                _note_writes(step.work.graph, program, named)
            instances = lives if isinstance(lives, ItemInstances) else None
            bound = self._launched(step, launched, named)
            return bound._replace(program=program, instances=instances)
        if step.work.arrives or step.work.leaves:
            return BoundStep(skip_handing)
        (_, source), (_, target) = views
        target.arena.stop_following()
        return BoundStep(self._paced(device, partial(device.copy, target, source)))

    def _watched(
        self, step: Step, program: Program, views: Mapping[str, View], load_s: float
    ) -> Program:
        """Return `program`, or in one slot of `step` a contest that also measures other devices.

        The contest reads its `views`; `load_s` is the time that compiling took.
        """
        part, choices = cast(Subgraph, step.work), self._choices
        if choices is None or step.index in self._contests or not is_contested(choices, part):
            return program
        ours, cores = cast(HostProgram, program), self._rules.cores.get(part.device, 1)
        self._contests[step.index] = made = Contest(choices, part, ours, views, load_s, cores)
        return made

    def _launched(self, step: Step, program: Program, views: Mapping[str, View]) -> BoundStep:
        device = self._devices[step.device]
        rows: RowFeed | None = None
        for edge in self._row_edges:
            if step.index in (edge.source, edge.target):
                feed = self._row_feed(edge, views[edge.placed[0]].arena)
                if step.index == edge.target:
                    rows = feed
                elif isinstance(program, BoundProgram):
                    program.hand_rows(edge.generator.name, feed.receive)
        if step.awaited is not None:
            assert self._driver is not None, "async functions run in sessions"
            assert isinstance(program, BoundProgram), "it says that it awaits them"
            start = partial(async_calls.launch, self._driver, program, rows=rows)
            # Who waits for rows waits for other devices' work, which clocks are to move on for.
            if step.runs_rows:
                return BoundStep(
                    start, None, partial(async_calls.call_here, program), program, views
                )
            return BoundStep(self._paced(device, start), program=program, views=views)
        launch = self._paced(device, partial(device.submit, program))
        if step.index in self._rules.on_threads:
            assert isinstance(device, HostDevice)
            return BoundStep(launch, None, device.calling(program), program, views)
        if step.index not in self._rules.inline:
            return BoundStep(launch, program=program, views=views)
        assert isinstance(device, HostDevice)
        inline, call = partial(device.run_inline, program), device.calling(program)
        return BoundStep(launch, inline, call, program, views)

    def _paced(self, device: Device, launch: Launch) -> Launch:
        return launch if self._driver is None else self._driver.launching(device, launch)

    def _program(
        self,
        device: Device,
        graph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances | None = None,
    ) -> Program:
        if not has_lives(graph):
            if device.name in self._rules.cores:
                cores = self._rules.cores[device.name]
                return cast(Scaling, device).compile_on(cores, graph, views, measure=self._measure)
            return device.compile(graph, views, measure=self._measure)
        if not isinstance(device, StatefulDevice):
            raise DeviceError(
                f"device {device.name!r} says that it runs operators which own something, and "
                "has no compile_with",
                at=f"subgraph {graph.name!r}",
                fix="let its supports refuse them: see plait.devices.StatefulDevice",
            )
        return device.compile_with(graph, views, lives or self._lives, measure=self._measure)

    def _find_lives(self, step: Step, device: Device) -> OperatorInstances | None:
        """Return the instances that nodes of `step` own on `device`, if any; some are per key."""
        if isinstance(step.work, Transfer) or not step.owns:
            return None
        owners = [node.operator for node in step.work.graph.nodes if node.operator.owns]
        keep = (one.ordered or (self._plan.beside and is_ordered(one)) for one in owners)
        lives = self._shared if all(keep) else self._lives
        has_keys = may_run_anywhere(device) and any(map(is_ordered, owners))
        return ItemInstances(lives) if has_keys else lives


def _rebind(
    program: Rebindable | None, views: Mapping[str, View], constants: Mapping[str, Array]
) -> Program | None:
    if program is None or not constants:
        return None if program is None else program.rebound(views)
    return program.rebound_with(views, constants) if can_take_constants(program) else None


def _are_unmoved(views: Mapping[str, View], before: Mapping[str, View]) -> bool:
    if views.keys() != before.keys():
        return False
    for name, view in views.items():
        old = before[name]
        if old.spec == view.spec and (old.arena is not view.arena or old.offset != view.offset):
            return False
    return True


def _note_writes(graph: Graph, program: Program, views: Mapping[str, View]) -> None:
    for node in graph.nodes:
        for view in filter(None, map(views.get, node.outputs)):
            if view.arena.pair is None or is_in_place(graph, node, views):
                continue
            if not (isinstance(program, BoundProgram) and program.follows(node.outputs[0])):
                view.arena.stop_following()


def _find_rules(plan: Plan, devices: Mapping[str, Device]) -> _Rules:
    shares = share_cores(plan)
    scaling = {name: shares[name] for name in shares if isinstance(devices[name], Scaling)}
    return _Rules(
        inline_steps(plan.steps, devices),
        find_steps_for_threads(plan.steps, devices),
        scaling,
        find_donated_tensors(plan, devices),
    )


def _has_same_nodes(step: Step, other: Step) -> bool:
    if isinstance(step.work, Transfer) or isinstance(other.work, Transfer):
        return True
    return step.work.graph.nodes == other.work.graph.nodes


def _does_the_same(step: Step, other: Step) -> bool:
    if isinstance(step.work, Transfer) or isinstance(other.work, Transfer):
        return True
    constants, others = step.work.graph.constants, other.work.graph.constants
    are_same = constants.keys() == others.keys() and all(
        array is others[name] for name, array in constants.items()
    )
    return are_same and _has_same_nodes(step, other)
