"""Items that go through several plans one after the other: their shapes depend on values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import trio

from ....graph.core.ir import Graph
from ....graph.operators.item_order import find_order
from ....graph.values.tensor import Array, copy_read_only
from ...dispatch.item_order import Ordered
from ...errors import session_closed_error
from ...planner.joined_stages import plan_ahead
from ...planner.staged_plans import Stage, StagedGraph
from ...plans.plan import Plan
from ...plans.shapes import Shapes
from ...plans.variants import make_variant
from ...profile.timestamps import Timestamps
from ..items.item import ItemRun
from ..items.under_way import ItemsUnderWay
from ..opened.open_plans import KEPT_PARTS, BoundedParent, OpenPlans
from ..opened.slots import Slots
from ..recorder import Trace
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver
from .completion import ItemCompletion, may_commit
from .launcher import ItemLauncher
from .stage_sequence import StageSequence, own_results

ENTRY = 0
"""Stands for all ordered steps of an item, which goes through several plans."""

LATEST_TRACES = 10_000
"""Limit of parts that the profile keeps of an item with a long loop: the latest."""


@dataclass(slots=True, eq=False)
class StagedRunner:
    """Takes such items through their plans; used on the trio thread only.

    Started items are added to `item_runs`, and keep their turn with `variables` through all plans.
    """

    _driver: VirtualTimeDriver
    _open_plans: OpenPlans
    _launcher: ItemLauncher
    _completion: ItemCompletion
    _item_runs: ItemsUnderWay
    _variables: Variables
    _keys: WeakKeyDictionary[StagedGraph, tuple[str, ...]] = field(
        default_factory=WeakKeyDictionary
    )
    _locks: WeakKeyDictionary[StagedGraph, trio.Lock] = field(default_factory=WeakKeyDictionary)
    _closing: bool = False

    def refuse(self) -> None:
        self._closing = True

    async def prepare(self, entry: StagedGraph | None, variants: int) -> None:
        """Plan and open all `variants` of the stages from `entry` on that no value decides.

        Raises PlaitError if that cannot be: no item could ever start.
        """
        await self._driver.on_thread(partial(plan_ahead, entry))
        while entry is not None and (stage := entry.lasting) is not None:
            if stage.plan is not None:
                for index in range(variants):
                    slots = await self._whole(stage.plan, index)
                    await self._driver.on_thread(slots.fill)
            entry = stage.rest

    async def start(
        self, item_run: ItemRun, arrays: Mapping[str, Array], entry: StagedGraph, graph: Graph
    ) -> None:
        """Start `item_run` at its first stage, `entry`; its `arrays` must not change.

        `graph` is that of the entry with its variables. Raises DeviceError or SessionError if it
        cannot start.
        """
        item_run.marks.admitted_ns = self._driver.now_ns()
        held = await self._variables.enter_parts(item_run, graph)
        if self._closing or item_run.done.is_set():  # it was given up meanwhile
            self._variables.leave(item_run)
            raise session_closed_error()
        self._item_runs.add(item_run)
        known = {**arrays, **held}
        # After earlier items from its first ordered part to its end: loops may have many of them.
        keys = self._keys_of(entry)
        order = self._open_plans.order
        ticket = order.admit(Ordered({ENTRY: keys}, held=frozenset(keys))) if keys else None
        self._driver.spawn(self._pass, item_run, known, entry, graph, ticket)

    def _keys_of(self, entry: StagedGraph) -> tuple[str, ...]:
        if entry not in self._keys:
            found = (key for node in entry.graph.nodes for key in find_order(node))
            self._keys[entry] = tuple(dict.fromkeys(found))
        return self._keys[entry]

    async def _pass(
        self,
        item_run: ItemRun,
        known: Mapping[str, Array],
        entry: StagedGraph,
        graph: Graph,
        ticket: int | None,
    ) -> None:
        results: Mapping[str, Array] = {}
        failure: BaseException | None = None
        traces: deque[Trace] = deque(maxlen=LATEST_TRACES)
        item_run.traces = traces
        try:
            run_part = partial(self._run_part, item_run, traces, ticket)
            check = partial(self._check, item_run)
            on_thread = partial(self._planning, item_run)
            sequence = StageSequence(run_part, on_thread, self._lock_of, check)
            found = await sequence.run(entry, known)
            results, assigned = await self._launcher.copying(
                found.values(), partial(_split_results, graph, found)
            )
            await self._commit(item_run, assigned)
        except BaseException as error:  # any error is the item's
            failure = error
        if ticket is not None:
            self._open_plans.order.leave(ticket)
        self._completion.record(item_run, item_run.cause or failure)
        self._item_runs.discard(item_run)
        self._variables.leave(item_run)
        item_run.finish(results, failure)
        del failure  # it holds this frame, and with it the item's memory

    async def _commit(self, item_run: ItemRun, assigned: Mapping[str, Array]) -> None:
        if assigned and may_commit(item_run, None):
            await self._variables.hold(assigned)
            item_run.cause = None  # it is done, even if cancelled meanwhile

    def _check(self, item_run: ItemRun) -> None:
        if item_run.cancelled or self._closing:
            raise session_closed_error()

    def _lock_of(self, entry: StagedGraph) -> trio.Lock:
        return self._locks.setdefault(entry, trio.Lock())

    async def _planning(self, item_run: ItemRun, make: Callable[[], Stage]) -> Stage:
        begin_ns = self._driver.now_ns()
        stage = await self._driver.on_thread(make)
        item_run.marks.prepare("planning", begin_ns, self._driver.now_ns())
        return stage

    async def _wait_in_line(self, ticket: int) -> None:
        """Wait until items before `ticket` are through all that follows the order of items."""
        reached = trio.Event()
        if not self._open_plans.order.claim(ticket, ENTRY, partial(self._driver.call, reached.set)):
            await reached.wait()

    async def _run_part(
        self,
        item_run: ItemRun,
        traces: deque[Trace],
        ticket: int | None,
        plan: Plan,
        inputs: Mapping[str, Array],
    ) -> Mapping[str, Array]:
        with trio.CancelScope() as starting:
            item_run.on_cancel = starting.cancel  # it may wait for a device to come back
            if ticket is not None and any(step.order for step in plan.steps):
                await self._wait_in_line(ticket)  # before it holds anything that others wait for
            key, shapes = _make_key(plan, inputs)
            slots = self._open_plans.find(key, item_run.variant)
            if slots is None:
                slots = await self._open(plan, key, shapes, item_run)
            assert slots is not None, "the plan of a part is static"
            self._check(item_run)
            part = item_run.part = ItemRun(is_part=True, owns_inputs=True)
            part.age, part.variant = item_run.age, item_run.variant
            part.priority = item_run.priority
            await self._launcher.start(part, slots, inputs)
            item_run.age = part.age
            item_run.marks.preparing += part.marks.preparing
        item_run.on_cancel = None
        if starting.cancelled_caught:
            raise session_closed_error()
        if item_run.cancelled:
            part.cancel()
        await part.done.wait()
        traces.extend(part.traces)
        try:
            if part.error is not None:
                raise part.error
            return part.results
        finally:
            part.let_go()  # its error holds this frame

    async def _open(
        self, plan: Plan, key: Hashable, shapes: Shapes, item_run: ItemRun
    ) -> Slots | None:
        index, marks = item_run.variant, item_run.marks
        base = await self._whole(plan, index, marks)
        if key == id(plan):
            return base
        within = BoundedParent(id(plan), partial(make_variant, plan), shapes)
        make = partial(_plan_for_shapes, plan, shapes)
        return await self._open_plans.open(
            key, make, index, kept=KEPT_PARTS, within=within, marks=marks
        )

    async def _whole(self, plan: Plan, index: int, marks: Timestamps | None = None) -> Slots:
        make = partial(make_variant, plan)
        slots = await self._open_plans.open(id(plan), make, index, kept=KEPT_PARTS, marks=marks)
        assert slots is not None, "the plan of a part is static"
        return slots


def _make_key(plan: Plan, inputs: Mapping[str, Array]) -> tuple[Hashable, Shapes]:
    shapes = {name: inputs[name].shape for name in plan.graph.inputs}
    own = all(plan.graph.tensors[name].shape == shape for name, shape in shapes.items())
    return (id(plan) if own else (id(plan), *shapes.values())), shapes


def _plan_for_shapes(plan: Plan, shapes: Shapes, index: int) -> Plan:
    return make_variant(plan.for_shapes(shapes), index)


def _split_results(
    graph: Graph, found: Mapping[str, Array]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    assigned = {
        graph.variables[variable].name: copy_read_only(found[name])
        for name, variable in graph.assigned.items()
    }
    return own_results({name: found[name] for name in graph.outputs}), assigned
