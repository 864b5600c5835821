"""Items that go through several plans one after the other: their shapes depend on values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial

import trio

from ....graph.ir import Graph
from ....graph.tensor import Array, frozen_copy
from ...planner.staged_plans import Entry, Stage
from ...plans.plan import Plan
from ...plans.shapes import Shapes
from ...plans.variants import variant
from ...profile.timestamps import Timestamps
from ..opened.open_plans import KEPT_PARTS, OpenPlans
from ..opened.provenance import BoundedParent
from ..opened.slots import Slots, session_closed
from ..recorder import Trace
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver
from .completion import ItemCompletion, may_commit
from .item import ItemRun
from .launcher import ItemLauncher
from .staged_passage import Passage, own_results

LATEST_TRACES = 10_000
"""Of an item that loops for long, the profile knows the latest parts."""


class StagedRunner:
    """Takes such items through their plans; used on the trio thread only.

    Parameters
    ----------
    pace : VirtualTimeDriver
    open_plans : OpenPlans
    starter : ItemLauncher
    landing : ItemCompletion
    flights : set of ItemRun
        Those that are under way; who starts is put in.
    variables : Variables
        Items keep their turn with them through all plans.
    """

    def __init__(
        self,
        pace: VirtualTimeDriver,
        open_plans: OpenPlans,
        starter: ItemLauncher,
        landing: ItemCompletion,
        flights: set[ItemRun],
        variables: Variables,
    ) -> None:
        self._pace = pace
        self._open_plans = open_plans
        self._starter = starter
        self._landing = landing
        self._flights = flights
        self._variables = variables
        self._closing = False

    def refuse(self) -> None:
        """Start no more parts."""
        self._closing = True

    async def prepare(self, entry: Entry | None, variants: int) -> None:
        """Plan and open the stages from an entry on that no value decides.

        Raises
        ------
        PlaitError
            If that cannot be: no item could ever start.
        """
        while entry is not None:
            stage = await self._pace.on_thread(entry.make_ahead)
            if stage is None:
                return
            entry.keep({}, stage)
            if stage.plan is not None:
                for index in range(variants):
                    slots = await self._whole(stage.plan, index)
                    await self._pace.on_thread(slots.fill)
            entry = stage.rest

    async def start(
        self, flight: ItemRun, arrays: Mapping[str, Array], entry: Entry, graph: Graph
    ) -> None:
        """Start an item, whose inputs stay as they are, where its stages begin.

        `graph` is that of the entry with its variables.

        Raises
        ------
        DeviceError, SessionError
            If it cannot start.
        """
        flight.marks.admitted_ns = self._pace.now_ns()
        held = await self._variables.enter_parts(flight, graph)
        if self._closing or flight.done.is_set():  # it was given up meanwhile
            self._variables.leave(flight)
            raise session_closed()
        self._flights.add(flight)
        known = {**arrays, **held}
        trio.lowlevel.spawn_system_task(self._pass, flight, known, entry, graph)

    async def _pass(
        self, flight: ItemRun, known: Mapping[str, Array], entry: Entry, graph: Graph
    ) -> None:
        """Take an item through the stages of a graph."""
        results: Mapping[str, Array] = {}
        failure: BaseException | None = None
        traces: deque[Trace] = deque(maxlen=LATEST_TRACES)
        flight.traces = traces
        try:
            run_part = partial(self._run_part, flight, traces)
            check = partial(self._check, flight)
            passage = Passage(run_part, partial(self._planning, flight), check)
            found = await passage.run(entry, known)
            results, assigned = await self._starter.copying(
                found.values(), partial(_parted, graph, found)
            )
            await self._commit(flight, assigned)
        except BaseException as error:  # whatever it is, it is the item's
            failure = error
        self._landing.record(flight, flight.cause or failure)
        self._flights.discard(flight)
        self._variables.leave(flight)
        flight.finish(results, failure)

    async def _commit(self, flight: ItemRun, assigned: Mapping[str, Array]) -> None:
        """Have variables hold what an item assigned, unless it was given up."""
        if assigned and may_commit(flight, None):
            await self._variables.hold(assigned)
            flight.cause = None  # it is done, whatever came meanwhile

    def _check(self, flight: ItemRun) -> None:
        if flight.cancelled or self._closing:
            raise session_closed()

    async def _planning(self, flight: ItemRun, make: Callable[[], Stage]) -> Stage:
        """Plan a stage on a thread."""
        begin_ns = self._pace.now_ns()
        stage = await self._pace.on_thread(make)
        flight.marks.prepare("planning", begin_ns, self._pace.now_ns())
        return stage

    async def _run_part(
        self, flight: ItemRun, traces: deque[Trace], plan: Plan, inputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Run one of the plans that an item goes through."""
        with trio.CancelScope() as starting:
            flight.on_cancel = starting.cancel  # it may wait for a device to come back
            key, shapes = _key(plan, inputs)
            slots = self._open_plans.find(key, flight.variant)
            if slots is None:
                slots = await self._open(plan, key, shapes, flight)
            assert slots is not None, "the plan of a part is static"
            self._check(flight)
            part = flight.part = ItemRun(is_part=True)
            part.age, part.variant = flight.age, flight.variant
            await self._starter.start(part, slots, inputs)
            flight.age = part.age
            flight.marks.preparing += part.marks.preparing
        flight.on_cancel = None
        if starting.cancelled_caught:
            raise session_closed()
        if flight.cancelled:
            part.cancel()
        await part.done.wait()
        traces.extend(part.traces)
        if part.error is not None:
            raise part.error
        return part.results

    async def _open(
        self, plan: Plan, key: Hashable, shapes: Shapes, flight: ItemRun
    ) -> Slots | None:
        """Open a part's plan for an item, or within its bounds that for some shapes."""
        index, marks = flight.variant, flight.marks
        base = await self._whole(plan, index, marks)
        if key == id(plan):
            return base
        within = BoundedParent(id(plan), partial(variant, plan), shapes)
        make = partial(_for_shapes, plan, shapes)
        return await self._open_plans.open(
            key, make, index, kept=KEPT_PARTS, within=within, marks=marks
        )

    async def _whole(self, plan: Plan, index: int, marks: Timestamps | None = None) -> Slots:
        """Open a part's plan."""
        make = partial(variant, plan)
        slots = await self._open_plans.open(id(plan), make, index, kept=KEPT_PARTS, marks=marks)
        assert slots is not None, "the plan of a part is static"
        return slots


def _key(plan: Plan, inputs: Mapping[str, Array]) -> tuple[Hashable, Shapes]:
    """Return what tells the plan of a part from others, and the shapes of what it is fed."""
    shapes = {name: inputs[name].shape for name in plan.graph.inputs}
    own = all(plan.graph.tensors[name].shape == shape for name, shape in shapes.items())
    return (id(plan) if own else (id(plan), *shapes.values())), shapes


def _for_shapes(plan: Plan, shapes: Shapes, index: int) -> Plan:
    return variant(plan.for_shapes(shapes), index)


def _parted(
    graph: Graph, found: Mapping[str, Array]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """Return an item's results, and by the names of variables what it assigned; nobody else's."""
    assigned = {
        graph.variables[variable].name: frozen_copy(found[name])
        for name, variable in graph.assigned.items()
    }
    return own_results({name: found[name] for name in graph.outputs}), assigned
