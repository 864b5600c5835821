"""Items that go through several plans one after the other: their shapes depend on values."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import trio

from ....graph.core.ir import Graph, Node
from ....graph.core.nested import infer_results
from ....graph.operators.item_order import find_order
from ....graph.values.dims import normalize_axis
from ....graph.values.errors import ShapeError
from ....graph.values.tensor import Array, copy_read_only, spec_of
from ...dispatch.item_order import Ordered
from ...errors import session_closed_error
from ...planner.joined_stages import plan_ahead
from ...planner.staged_plans import Stage, StagedGraph
from ...plans.plan import Plan, Shapes
from ...plans.variants import make_variant
from ...profile.timestamps import Timestamps
from ..items.item import ItemRun, ItemsUnderWay
from ..opened.open_plans import KEPT_PARTS, BoundedParent, OpenPlans
from ..opened.slots import Slots
from ..recorder import Trace
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver
from .completion import ItemCompletion, may_commit
from .launcher import ItemLauncher

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


Known: TypeAlias = dict[str, Array]
RunPart: TypeAlias = Callable[[Plan, Mapping[str, Array]], Awaitable[Mapping[str, Array]]]
"""Runs a static plan once; raises the error of a step, and if the item is cancelled."""

OnThread: TypeAlias = Callable[[Callable[[], Stage]], Awaitable[Stage]]
"""Calls a function that makes a stage outside of the loop, because it is slow."""


@dataclass(slots=True, eq=False)
class StageSequence:
    """Takes one item through the stages, one part after the other.

    `lock_of` returns a lock that is held while the stage after an entry is made; `check` raises
    when the item is cancelled.
    """

    _run_part: RunPart
    _on_thread: OnThread
    _lock_of: Callable[[StagedGraph], trio.Lock]
    _check: Callable[[], None]

    async def run(self, entry: StagedGraph, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the graph of `entry` on `inputs`, and return its outputs.

        Raises ShapeError or PlanError if values met on the way do not fit together.
        """
        known: Known = dict(inputs)
        results: Known = {}
        following: StagedGraph | None = entry
        while following is not None:
            self._check()
            stage = following.find(known) or await self._make(following, known)
            if stage.plan is not None:
                fed = {name: known[name] for name in stage.plan.graph.inputs}
                known.update(await self._run_part(stage.plan, fed))
            # Before checks and loops, which may read any of this.
            known.update(stage.constants)
            known.update(stage.at_boundary(known))
            stage.check(known)
            for node, body in stage.loops:
                known.update(await self._iterate(node, body, known))
            # Tensors without later readers are dropped; stages name their tensors independently.
            needed, later = _get_interface(stage.rest)
            ready = (name for name in following.graph.outputs if name not in later)
            results.update({name: known[name] for name in ready})
            known = {name: known[name] for name in needed}
            following = stage.rest
        return {name: results[name] for name in entry.graph.outputs}

    async def _make(self, entry: StagedGraph, known: Known) -> Stage:
        async with self._lock_of(entry):
            # Another item may have made it while this one waited for the lock.
            stage = entry.find(known)
            if stage is None:
                stage = await self._on_thread(partial(entry.make, known))
                entry.keep(known, stage)
            return stage

    async def _iterate(self, node: Node, body: StagedGraph, known: Known) -> Known:
        run = self._loop if node.op == "Loop" else self._scan
        values = [known[name] if name else None for name in node.inputs]
        try:
            results = await run(node, body, values)
        except ShapeError as error:
            error.at = error.at or str(node)
            raise
        asked = zip(node.outputs, results, strict=False)  # the last ones may be left out
        return {name: value for name, value in asked if name}

    async def _loop(
        self, node: Node, body: StagedGraph, values: Sequence[Array | None]
    ) -> Sequence[Array]:
        trips, condition = [*values, None, None][:2]  # those at the end may be left out
        end = len(values) - node.attributes["captured"]
        states, captured = list(values[2:end]), values[end:]
        rows: list[Sequence[Array]] = []
        goes_on = condition is None or bool(_get_only(condition))
        while goes_on and (trips is None or len(rows) < _get_only(trips)):
            fed = [np.asarray(len(rows), np.int64), np.asarray(True), *states, *captured]
            going, *results = await self._body(body, fed)
            goes_on = bool(_get_only(going))
            states, stacked = results[: len(states)], results[len(states) :]
            rows.append(stacked)
        head = (np.asarray(0), np.asarray(True))
        columns = _collect_columns(rows, body.graph, [*head, *states, *captured], 1 + len(states))
        return [*map(_require, states), *(_stack(column, 0) for column in columns)]

    async def _scan(
        self, node: Node, body: StagedGraph, values: Sequence[Array | None]
    ) -> Sequence[Array]:
        given, attributes = list(map(_require, values)), node.attributes
        end = len(given) - attributes["captured"]
        captured, n_scanned = given[end:], attributes["num_scan_inputs"]
        states, scanned = given[: end - n_scanned], given[end - n_scanned : end]
        moved = [
            np.moveaxis(array, axis, 0)[:: -1 if backward else 1]
            for array, axis, backward in zip(
                scanned,
                _pad(attributes["scan_input_axes"], n_scanned),
                _pad(attributes["scan_input_directions"], n_scanned),
                strict=True,
            )
        ]
        _check_lengths(moved)
        rows: list[Sequence[Array]] = []
        for slices in zip(*moved, strict=True):
            results = await self._body(body, [*states, *slices, *captured])
            states, stacked = results[: len(states)], results[len(states) :]
            rows.append(stacked)
        empty = [np.empty(array.shape[1:], array.dtype) for array in moved]
        columns = _collect_columns(rows, body.graph, [*states, *empty, *captured], len(states))
        axes = _pad(attributes["scan_output_axes"], len(columns))
        backwards = _pad(attributes["scan_output_directions"], len(columns))
        return [*states, *map(_stack, columns, axes, backwards)]

    async def _body(self, body: StagedGraph, values: Sequence[Any]) -> list[Array]:
        await trio.lowlevel.checkpoint()  # a body that is all constants runs nothing
        names = body.graph.inputs
        fed = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        results = await self.run(body, fed)
        return [results[name] for name in body.graph.outputs]


def own_results(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return `arrays` without other owners; constants, views and repetitions are copied."""
    found: dict[int, Array] = {}
    results = {}
    for name, array in arrays.items():
        shared = id(array) in found or array.base is not None or not array.flags.writeable
        results[name] = np.array(array, order="C") if shared else array
        found[id(array)] = array
    return results


def _get_interface(entry: StagedGraph | None) -> tuple[Sequence[str], Sequence[str]]:
    return ((), ()) if entry is None else (entry.graph.inputs, entry.graph.outputs)


def _collect_columns(
    rows: Sequence[Sequence[Array]], body: Graph, given: Sequence[Array], first: int
) -> list[list[Array] | Array]:
    """Return the columns of `rows`; without rows, empty arrays of the right dtypes.

    These are of the outputs of `body` from `first` on, if it is run on `given`.
    """
    if rows:
        return [list(column) for column in zip(*rows, strict=True)]
    specs = infer_results(body, [spec_of(array) for array in given])[first:]
    return [
        np.empty((0, *(d if isinstance(d, int) else 0 for d in spec.shape or ())), spec.dtype)
        for spec in specs
    ]


def _stack(column: list[Array] | Array, axis: int, backward: int = 0) -> Array:
    if isinstance(column, list):
        _check_stackable(column)
        return np.stack(column[::-1] if backward else column, axis)
    return np.moveaxis(column, 0, normalize_axis(axis, column.ndim))


def _check_lengths(scanned: Sequence[Array]) -> None:
    lengths = dict.fromkeys(map(len, scanned))
    if len(lengths) > 1:
        raise ShapeError(
            f"scanned inputs have lengths {' and '.join(map(str, lengths))}",
            fix="scan tensors of one length",
        )


def _check_stackable(rows: Sequence[Array]) -> None:
    shapes = dict.fromkeys(row.shape for row in rows)
    if len(shapes) > 1:
        first, other, *_ = shapes
        raise ShapeError(
            f"iterations put out shapes {list(first)} and {list(other)}, which do not stack",
            fix="let each iteration put out the same shape; only states may change theirs",
        )


def _pad(values: Sequence[int] | None, count: int) -> Sequence[int]:
    return (*(values or ()), *(0,) * (count - len(values or ())))


def _get_only(array: Array) -> Any:
    if array.size != 1:
        raise ShapeError(
            f"a condition or trip count has shape {list(array.shape)}, not one value",
            fix="reduce it to one",
        )
    return array.item()


def _require(value: Array | None) -> Array:
    assert value is not None, "a state has a value"
    return value
