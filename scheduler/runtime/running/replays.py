"""Replays: items in flight on a device that died run again from their inputs.

They restart in the order of admission, before any other item, and after the last one has left the
lost plans: so replays do not let items overtake each other. If steps run in the order of items,
later items that wait for a lost one are recalled, and run again after it.

An item is run again as a whole. To go on from the lost step would take the tensors of earlier
steps, and most have been overwritten: tensors that live at different times share planned memory. To
keep them would cost each item copies, for a loss that hardly ever happens. The inputs are copied if
a device of the plan may be lost or may refuse nodes, into memory from a pool.

A second run gives the same: functions get the same inputs, variables the values that the item
before left, and results leave only once. Effects on the outside cannot be taken back, so an item
that had begun one fails and says so (`_Kept.effects`).

An item that dies with each device may be what kills them, so each has a limit of attempts
(`Attempt.deaths`). A session that has run for a while plans for the loss of each device ahead
(`PREPARED_AFTER`): to plan takes longer than to restart a worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import trio

from ....devices.errors import DeviceLostError, UnsupportedNodeError
from ....devices.exchange import Loan
from ....graph.core.ir import Node
from ....graph.core.nested import acts_outside
from ....graph.values.dtypes import TEXT
from ....graph.values.tensor import Array
from ...errors import session_closed_error
from ...planner.standby import list_devices, may_refuse
from ...plans.partition import Subgraph
from ...plans.placement import Step
from ..events import Announcer, ItemReplayed
from ..faults.recovery import Recovery
from ..items.item import ItemRun
from ..large_copies import copy_array
from ..opened.arenas import OpenArenas
from ..opened.executor import Execution
from ..opened.slots import Slots

Inputs: TypeAlias = Mapping[str, Array]

PREPARED_AFTER = 16
"""Items after which a session plans for losses in advance, as it is likely to run for long."""


@dataclass(eq=False, slots=True)
class Attempt:
    """One run of an item through an open plan, with all that a restart needs.

    Attributes
    ----------
    number : int
        Its place in the order of admission.
    slots : Slots
        The slots of its plan, now or when the device died.
    deaths : int
        The number of devices that died while they worked on it.
    fed : Mapping of str to Array, optional
        The caller's arrays, while they are not copied to the inputs yet.
    room : Mapping of str to Array
        The memory of copied inputs.
    free : list of Mapping of str to Array
        The pool to which `room` returns.
    scope : trio.CancelScope
        The scope of its restart.
    ticket : int or None
        Its number in the order of items, while it is on a slot.
    is_recalled : bool
        Whether it must restart although nothing of it was lost.
    is_postponed : bool
        Whether its restart waits for that of an earlier item.
    """

    number: int
    inputs: Inputs
    slots: Slots
    deaths: int = 0
    ticket: int | None = None
    is_recalled: bool = False
    is_postponed: bool = False
    fed: Inputs | None = None
    room: Inputs = field(default_factory=dict)
    free: list[Inputs] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def copy_inputs(self) -> None:
        """Copy the fed arrays, unless that is done or unneeded. Thread-safe.

        The caller must not get the chance to change them before.
        """
        fed, self.fed = self.fed, None
        if fed is not None:
            for name in self.room:
                copy_array(self.inputs[name], fed[name])


@dataclass(frozen=True, slots=True)
class _Kept:
    """Data for the items of an open plan, and of others in its arenas."""

    effects: tuple[tuple[Step, Node], ...]
    """The nodes with effects besides their outputs."""
    may_replay: bool
    """Whether items can run again at all."""
    free: dict[tuple[str, ...], list[Inputs]] = field(default_factory=dict)
    """Pools of memory for copies of the named inputs."""


Start: TypeAlias = Callable[[ItemRun, Attempt], Awaitable[None]]
Fail: TypeAlias = Callable[[ItemRun, BaseException], object]


@dataclass(slots=True, eq=False)
class Replays:
    """Keeps inputs and restarts items; used on the trio thread only.

    `start` starts an item on the plan in use at that time, `fail` fails one that cannot restart,
    and `replace` retires a plan with a node that its device refuses.
    """

    _recovery: Recovery
    _announcer: Announcer
    _start: Start
    _fail: Fail
    _replace: Callable[[Slots], object]
    _kept: WeakKeyDictionary[OpenArenas, _Kept | None] = field(default_factory=WeakKeyDictionary)
    _attempts: dict[ItemRun, Attempt] = field(default_factory=dict)
    _waiting: dict[ItemRun, Attempt] = field(default_factory=dict)
    _landed: trio.Event = field(default_factory=trio.Event)
    _settled: trio.Event | None = None
    _count: int = 0

    @property
    def is_busy(self) -> bool:
        """True while items must restart."""
        return self._settled is not None or (bool(self._attempts) and self._is_any_lost())

    async def settle(self) -> None:
        """Wait until all restarts are done: other items are admitted after them."""
        while self.is_busy:
            event = self._landed if self._settled is None else self._settled
            await event.wait()

    def guards(self, slots: Slots) -> bool:
        """Return whether items on `slots` may have to run again, or be ended by force."""
        try:
            kept = self._kept[slots.open_plan.arenas]
        except KeyError:
            plan, recovery, kept = slots.plan, self._recovery, None
            may_restart = bool(slots.open_plan.hands_on) or may_refuse(plan)
            if may_restart or recovery.concerns(plan):
                kept = _Kept(_list_effects(plan.steps), may_restart or recovery.may_replay(plan))
            self._kept[slots.open_plan.arenas] = kept
        return kept is not None

    def keep(self, slots: Slots, inputs: Inputs, *, owned: bool) -> Attempt:
        """Return an attempt to run an item on `slots`, with copies of `inputs` unless `owned`."""
        self._count += 1
        kept = self._kept[slots.open_plan.arenas]
        assert kept is not None, "guarded"
        if owned or not kept.may_replay:
            return Attempt(self._count, inputs, slots)
        # Arrays on a device are not copied: they are lost with the device, or stay.
        on_host = tuple(name for name, array in inputs.items() if not isinstance(array, Loan))
        free = kept.free.setdefault(on_host, [])
        room = _make_room(slots, on_host, free.pop() if free else {})
        own = {**inputs, **_make_copies(slots, room, inputs)}
        return Attempt(self._count, own, slots, fed=inputs, room=room, free=free)

    def drop(self, attempt: Attempt) -> None:
        attempt.fed = None
        if attempt.room:
            attempt.free.append(attempt.room)

    def begin(
        self, item_run: ItemRun, slots: Slots, attempt: Attempt, ticket: int | None = None
    ) -> None:
        attempt.slots, attempt.ticket, attempt.is_recalled = slots, ticket, False
        self._attempts[item_run] = attempt

    def abandon(self, item_run: ItemRun) -> None:
        if self._attempts.pop(item_run, None) is not None:
            self._land()

    def take(self, item_run: ItemRun) -> bool:
        """Queue `item_run`, out of its slot now, if it must run again; return whether it must."""
        attempt, execution = self._attempts.pop(item_run, None), item_run.execution
        if attempt is None:
            return False
        assert execution is not None
        self._land()
        error = execution.error
        if attempt.is_recalled and not item_run.cancelled:
            self._queue(item_run, attempt)
            return True
        if execution.is_complete:
            self._end_well(attempt)
            return False
        if isinstance(error, UnsupportedNodeError) and self._may_move(item_run, attempt, error):
            self._queue(item_run, attempt)
            self._recall(attempt)
            return True
        if isinstance(error, DeviceLostError):
            self._recovery.examine()
            if attempt.slots.are_lost and not item_run.cancelled:
                # Work that was still queued has not caused the death.
                attempt.deaths += not error.queued
                final = self._find_final_error(attempt, execution, error)
                if final is None:
                    self._queue(item_run, attempt)
                    self._recall(attempt)
                    return True
                execution.error = final
        self.drop(attempt)
        return False

    def _recall(self, lost: Attempt) -> None:
        """Recall the items that wait for the attempt `lost`, so that they run after it.

        Items that have passed all ordered steps need not wait for it.
        """
        if lost.ticket is None:
            return
        for item_run, attempt in list(self._attempts.items()):  # some may end at once
            execution, ticket = item_run.execution, attempt.ticket
            if ticket is None or ticket < lost.ticket or attempt.is_recalled or execution is None:
                continue
            ordered = attempt.slots.open_plan.ordered
            if all(execution.events[step] is None for step in ordered.claims):
                attempt.is_recalled = True
                execution.cancel()

    def recall(self, item_run: ItemRun) -> None:
        """Cancel `item_run`, which is running, and restart it after its end."""
        attempt = self._attempts[item_run]
        if not attempt.is_recalled:
            attempt.is_recalled = True
            assert item_run.execution is not None
            item_run.execution.cancel()

    def is_recalled(self, item_run: ItemRun) -> bool:
        return self._attempts[item_run].is_recalled

    def postpone(self, item_run: ItemRun, attempt: Attempt) -> bool:
        """Queue `attempt` of `item_run` if an earlier one must restart; return whether one must."""
        ticket = attempt.ticket
        if ticket is None or item_run.done.is_set():
            return False
        # While this one got its inputs, an earlier one may have restarted, or may be about to.
        earlier = [
            one for one in self._attempts.values() if one.is_recalled or (one.ticket or 0) > ticket
        ]
        earlier += [one for one in self._waiting.values() if one.ticket is not None]
        if not any(one.number < attempt.number for one in earlier):
            return False
        del self._attempts[item_run]
        self._land()
        if item_run in self._waiting:  # a restart itself, which an earlier one precedes
            attempt.is_postponed = True
        else:
            self._queue(item_run, attempt)
        return True

    def cancel(self, item_run: ItemRun) -> None:
        attempt = self._waiting.pop(item_run, None)
        if attempt is not None:
            attempt.scope.cancel()
            self._drop_and_fail(item_run, attempt, session_closed_error())

    def abandon_all(self) -> None:
        """Forget the running items, which may never end."""
        self._attempts.clear()
        self._land()

    def _land(self) -> None:
        # Wakes all waiting tasks, which check again. Events of trio cannot be cleared.
        self._landed.set()
        self._landed = trio.Event()

    def _may_move(self, item_run: ItemRun, attempt: Attempt, error: UnsupportedNodeError) -> bool:
        """Retire the plan of `attempt` for `error`; return whether `item_run` may run again."""
        slots, execution = attempt.slots, item_run.execution
        open_plan = slots.open_plan
        if self._recovery.note_refusals(open_plan.plan, error, open_plan.refusals):
            self._replace(slots)
        kept = self._kept[slots.open_plan.arenas]
        if kept is None or not slots.are_lost or item_run.cancelled:
            return False
        assert execution is not None
        return all(execution.events[step.index] is None for step, _ in kept.effects)

    def _end_well(self, attempt: Attempt) -> None:
        self.drop(attempt)
        plan = attempt.slots.plan
        is_kept = attempt.slots.open_plan.hands_on or self._recovery.concerns(plan)
        if not is_kept:  # its devices have accepted all nodes
            self._kept[attempt.slots.open_plan.arenas] = None
        self._recovery.trust(plan)
        if attempt.number == PREPARED_AFTER:
            self._recovery.prepare(plan)

    def _find_final_error(
        self, attempt: Attempt, execution: Execution, error: DeviceLostError
    ) -> DeviceLostError | None:
        """Return the final error of `attempt` and its `execution`, or None if it may run again.

        `error` is that of the device which was lost.
        """
        most, kept = self._recovery.policy.replays, self._kept[attempt.slots.open_plan.arenas]
        assert kept is not None, "guarded"
        if attempt.deaths > most or not most:  # without replays, inputs were not copied
            fix = f"see what it does there: a device died of this item {attempt.deaths} times"
            return _wrap(error, fix if most else "run it again, or allow replays: FaultPolicy()")
        where, lost = attempt.slots.open_plan.plan.ends.inputs, self._recovery.lost
        loans = (name for name, array in attempt.inputs.items() if isinstance(array, Loan))
        if any(where[name] in lost for name in loans):
            return _wrap(error, "feed it again: what it was fed lay on the device that was lost")
        for step, node in kept.effects:
            event = execution.events[step.index]
            if event is not None and not _is_unstarted(event.error):
                what = "has effects" if acts_outside(node) else "keeps state"
                return _wrap(error, f"{node} {what}, so the item was not run again")
        return None

    def _queue(self, item_run: ItemRun, attempt: Attempt) -> None:
        item_run.execution = None
        self._waiting[item_run] = attempt
        lost = list_devices(attempt.slots.open_plan.plan).intersection(self._recovery.lost)
        if recalled := lost or self._recovery.lost:
            self._announcer.tell(ItemReplayed(", ".join(sorted(recalled))))
        # One task restarts all items, the oldest first, including those lost meanwhile.
        if self._settled is None:
            self._settled = trio.Event()
            self._recovery.spawn(self._start_all, self._settled)

    async def _start_all(self, settled: trio.Event) -> None:
        while self._waiting:
            # Items still in the lost plans may be older, and must restart first.
            while self._is_any_lost():
                await self._landed.wait()
            if self._waiting:
                item_run = min(self._waiting, key=lambda item_run: self._waiting[item_run].number)
                await self._start_again(item_run, self._waiting[item_run])
        self._settled = None
        settled.set()

    def _is_any_lost(self) -> bool:
        return any(one.slots.are_lost or one.is_recalled for one in self._attempts.values())

    async def _start_again(self, item_run: ItemRun, attempt: Attempt) -> None:
        # The device may die again, and a scope can be entered only once.
        attempt.scope, attempt.is_postponed = trio.CancelScope(), False
        try:
            with attempt.scope:
                await self._start(item_run, attempt)
                if not attempt.is_postponed:
                    self._waiting.pop(item_run, None)
        except Exception as error:  # of any kind: the item fails with it
            if self._waiting.pop(item_run, None) is not None:
                self._drop_and_fail(item_run, attempt, error)

    def _drop_and_fail(self, item_run: ItemRun, attempt: Attempt, error: BaseException) -> None:
        self.drop(attempt)
        self._fail(item_run, error)


def _list_effects(steps: tuple[Step, ...]) -> tuple[tuple[Step, Node], ...]:
    return tuple(
        (step, node)
        for step in steps
        if isinstance(step.work, Subgraph)
        for node in step.work.graph.nodes
        if acts_outside(node) or node.operator.ordered
    )


def _is_unstarted(error: BaseException | None) -> bool:
    return isinstance(error, DeviceLostError) and error.queued


def _make_room(slots: Slots, inputs: Iterable[str], room: Inputs) -> Inputs:
    """Return memory for `inputs` of the largest shapes of `slots`: `room` if it suffices, or new.

    Memory for text consists of objects.
    """
    found = {}
    for name in inputs:
        specs = [plan.graph.tensors[name] for plan in (slots.plan, slots.open_plan.plan)]
        most = max(spec.nbytes for spec in specs)
        enough = name in room and room[name].nbytes >= most
        dtype = TEXT if specs[0].dtype == TEXT else np.dtype(np.uint8)
        found[name] = room[name] if enough else np.empty(most // dtype.itemsize, dtype)
    return found


def _make_copies(slots: Slots, room: Inputs, inputs: Inputs) -> Inputs:
    specs = slots.open_plan.plan.graph.tensors
    return {name: _place_array(room[name], inputs[name].shape, specs[name].dtype) for name in room}


def _place_array(room: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == TEXT:
        return room[: prod(shape)].reshape(shape)
    return np.ndarray(shape, dtype, room)


def _wrap(error: DeviceLostError, fix: str) -> DeviceLostError:
    made = DeviceLostError(error.what, at=error.at, fix=fix)
    made.__cause__ = error
    return made
