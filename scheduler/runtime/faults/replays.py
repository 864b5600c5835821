"""Items that were under way on a device when it died, run again from their inputs.

They start again in the order in which they had been admitted, before any other item does and after
the last one has left the plans that were lost: so items overtake each other no more than they did.
Where steps follow the order of items, those that came after a lost item, and wait for it, are
recalled: they run again after it.
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
from ....graph.dtypes import TEXT
from ....graph.ir import Node
from ....graph.nested import acts_outside
from ....graph.tensor import Array
from ...plans.partition import Subgraph
from ...plans.placement import Step
from ..events import Announcer, ItemReplayed
from ..items.executor import Execution
from ..items.item import ItemRun
from ..large_copies import copy_array
from ..opened.arenas import OpenArenas
from ..opened.slots import Slots, session_closed_error
from .recovery import Recovery
from .refusals import may_refuse
from .standby import devices_of

Inputs: TypeAlias = Mapping[str, Array]

PREPARED_AFTER = 16
"""After so many items a session goes on for long, so that it pays to plan for losses ahead."""


@dataclass(eq=False, slots=True)
class Attempt:
    """An item's way through one open plan, and what is needed to start it again.

    Attributes
    ----------
    number : int
        Its place in the order of admission.
    inputs : Mapping of str to Array
    slots : Slots
        Where it is, or was when the device died.
    deaths : int
        How many devices died while they worked at it.
    fed : Mapping of str to Array, optional
        What the inputs are still to be copied from.
    room : Mapping of str to Array
        The bytes in which the inputs lie that are copies.
    free : list of Mapping of str to Array
        Where these come back to, to be used again.
    scope : trio.CancelScope
        Where it is started again.
    ticket : int or None
        Its number in the order of items, while it is on a slot.
    is_recalled : bool
        Whether it is to start again although nothing of it was lost.
    is_postponed : bool
        Whether it did not start again, for an earlier one has to.
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
        """Copy what was fed, unless that was done, or nobody needs it any more; on any thread.

        Until then nobody else may have the chance to write to what was fed.
        """
        fed, self.fed = self.fed, None
        if fed is not None:
            for name in self.room:
                copy_array(self.inputs[name], fed[name])


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept for the items of an open plan, and of those that run in its arenas.

    Attributes
    ----------
    effects : tuple of (Step, Node)
        The nodes that do more than their outputs tell.
    may_replay : bool
        Whether there is any way for items to run again.
    free : dict of tuple of str to list of Mapping of str to Array
        Room for the inputs of that name.
    """

    effects: tuple[tuple[Step, Node], ...]
    may_replay: bool
    free: dict[tuple[str, ...], list[Inputs]] = field(default_factory=dict)


Start: TypeAlias = Callable[[ItemRun, Attempt], Awaitable[None]]
Fail: TypeAlias = Callable[[ItemRun, BaseException], object]


class Replays:
    """Keeps inputs and starts items again; used on the trio thread only.

    Parameters
    ----------
    recovery : Recovery
    announcer : Announcer
    start : callable
        Starts an item on the plan that is in use by then.
    fail : callable
        Ends an item that cannot be started again.
    """

    def __init__(
        self,
        recovery: Recovery,
        announcer: Announcer,
        start: Start,
        fail: Fail,
    ) -> None:
        self._recovery = recovery
        self._announcer = announcer
        self._start = start
        self._fail = fail
        self._kept: WeakKeyDictionary[OpenArenas, _Kept | None] = WeakKeyDictionary()
        self._attempts: dict[ItemRun, Attempt] = {}
        self._waiting: dict[ItemRun, Attempt] = {}
        self._landed = trio.Event()
        self._settled: trio.Event | None = None
        self._count = 0

    @property
    def is_busy(self) -> bool:
        """True while items have to be started again."""
        return self._settled is not None or (bool(self._attempts) and self._is_any_lost())

    async def settle(self) -> None:
        """Wait until no item has to be started again: others are admitted after them."""
        while self.is_busy:
            event = self._landed if self._settled is None else self._settled
            await event.wait()

    def guards(self, slots: Slots) -> bool:
        """True when the items of an open plan may have to run again, or be ended by force."""
        try:
            kept = self._kept[slots.open_plan.arenas]
        except KeyError:
            plan, recovery, kept = slots.plan, self._recovery, None
            may_start_again = bool(slots.open_plan.hands_on) or may_refuse(plan)
            if may_start_again or recovery.concerns(plan):
                kept = _Kept(_effects(plan.steps), may_start_again or recovery.may_replay(plan))
            self._kept[slots.open_plan.arenas] = kept
        return kept is not None

    def keep(self, slots: Slots, inputs: Inputs, *, owned: bool) -> Attempt:
        """Return a new attempt, whose inputs are still to be copied unless they are `owned`."""
        self._count += 1
        kept = self._kept[slots.open_plan.arenas]
        assert kept is not None, "guarded"
        if owned or not kept.may_replay:
            return Attempt(self._count, inputs, slots)
        # What lies on a device is not copied: it is lost with the device, or still there.
        on_host = tuple(name for name, array in inputs.items() if not isinstance(array, Loan))
        free = kept.free.setdefault(on_host, [])
        room = _room(slots, on_host, free.pop() if free else {})
        own = {**inputs, **_copies(slots, room, inputs)}
        return Attempt(self._count, own, slots, fed=inputs, room=room, free=free)

    def drop(self, attempt: Attempt) -> None:
        """Take back what was kept for an attempt that is over."""
        attempt.fed = None
        if attempt.room:
            attempt.free.append(attempt.room)

    def begin(
        self, item_run: ItemRun, slots: Slots, attempt: Attempt, ticket: int | None = None
    ) -> None:
        """Take note that an item is about to start."""
        attempt.slots, attempt.ticket, attempt.is_recalled = slots, ticket, False
        self._attempts[item_run] = attempt

    def abandon(self, item_run: ItemRun) -> None:
        """Take note that it did not."""
        if self._attempts.pop(item_run, None) is not None:
            self._land()

    def take(self, item_run: ItemRun) -> bool:
        """Take over an item that has left its slot if it is to run again; say whether it is."""
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
                # Work that was still queued is not what the device died of.
                attempt.deaths += not error.queued
                refusal = self._refusal(attempt, execution, error)
                if refusal is None:
                    self._queue(item_run, attempt)
                    self._recall(attempt)
                    return True
                execution.error = refusal
        self.drop(attempt)
        return False

    def _recall(self, lost: Attempt) -> None:
        """Have the items start again that wait for one that does: they come after it.

        Not those that are through, which it came after itself.
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
        """Have an item that is under way start again when it has ended."""
        attempt = self._attempts[item_run]
        if not attempt.is_recalled:
            attempt.is_recalled = True
            assert item_run.execution is not None
            item_run.execution.cancel()

    def is_recalled(self, item_run: ItemRun) -> bool:
        """Return whether an item that is under way starts again."""
        return self._attempts[item_run].is_recalled

    def postpone(self, item_run: ItemRun, attempt: Attempt) -> bool:
        """Take over an item that would start before an earlier one does again; return if it is."""
        ticket = attempt.ticket
        if ticket is None or item_run.done.is_set():
            return False
        # Earlier items may be about to start again, or may have while this one got its inputs.
        earlier = [one for one in self._attempts.values() if (one.ticket or 0) > ticket]
        earlier += [one for one in self._waiting.values() if one.ticket is not None]
        if not any(one.number < attempt.number for one in earlier):
            return False
        del self._attempts[item_run]
        self._land()
        if item_run in self._waiting:  # it starts again itself, and an earlier one has to
            attempt.is_postponed = True
        else:
            self._queue(item_run, attempt)
        return True

    def cancel(self, item_run: ItemRun) -> None:
        """Start an item no more."""
        attempt = self._waiting.pop(item_run, None)
        if attempt is not None:
            attempt.scope.cancel()
            self._give_up(item_run, attempt, session_closed_error())

    def abandon_all(self) -> None:
        """Forget the items that are under way: they may never end."""
        self._attempts.clear()
        self._land()

    def _land(self) -> None:
        # Whoever waits looks again; an event of trio cannot be cleared, so that the next gets a new
        # one.
        self._landed.set()
        self._landed = trio.Event()

    def _may_move(self, item_run: ItemRun, attempt: Attempt, error: UnsupportedNodeError) -> bool:
        """Take a plan out of use that has a refused node; return True if the item runs again."""
        slots, execution = attempt.slots, item_run.execution
        if self._recovery.note_refusals(slots.open_plan.plan, error):
            self._recovery.on_refusal(slots)
        kept = self._kept[slots.open_plan.arenas]
        if kept is None or not slots.are_lost or item_run.cancelled:
            return False
        assert execution is not None
        return all(execution.events[step.index] is None for step, _ in kept.effects)

    def _end_well(self, attempt: Attempt) -> None:
        self.drop(attempt)
        plan = attempt.slots.plan
        is_kept = attempt.slots.open_plan.hands_on or self._recovery.concerns(plan)
        if not is_kept:  # its devices have taken all nodes
            self._kept[attempt.slots.open_plan.arenas] = None
        self._recovery.trust(plan)
        if attempt.number == PREPARED_AFTER:
            self._recovery.prepare(plan)

    def _refusal(
        self, attempt: Attempt, execution: Execution, error: DeviceLostError
    ) -> DeviceLostError | None:
        """Return what an item fails with that may not run again."""
        most, kept = self._recovery.policy.replays, self._kept[attempt.slots.open_plan.arenas]
        assert kept is not None, "guarded"
        if attempt.deaths > most or not most:  # of inputs that may run again there are copies
            fix = f"see what it does there: a device died of this item {attempt.deaths} times"
            return _because(error, fix if most else "run it again, or allow replays: FaultPolicy()")
        where, lost = attempt.slots.open_plan.plan.ends.inputs, self._recovery.lost
        loans = (name for name, array in attempt.inputs.items() if isinstance(array, Loan))
        if any(where[name] in lost for name in loans):
            return _because(error, "feed it again: what it was fed lay on the device that was lost")
        for step, node in kept.effects:
            event = execution.events[step.index]
            if event is not None and not _never_began(event.error):
                what = "has effects" if acts_outside(node) else "keeps state"
                return _because(error, f"{node} {what}, so the item was not run again")
        return None

    def _queue(self, item_run: ItemRun, attempt: Attempt) -> None:
        """Have an item start again."""
        item_run.execution = None
        self._waiting[item_run] = attempt
        lost = devices_of(attempt.slots.open_plan.plan).intersection(self._recovery.lost)
        if recalled := lost or self._recovery.lost:
            self._announcer.tell(ItemReplayed(", ".join(sorted(recalled))))
        # One task starts them all, the oldest first, however many are lost while it does.
        if self._settled is None:
            self._settled = trio.Event()
            self._recovery.spawn(self._start_all, self._settled)

    async def _start_all(self, settled: trio.Event) -> None:
        while self._waiting:
            # Items that are still in the lost plans may be older, and are to start before this one.
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
        # A device may die under an item again, and a scope is entered only once.
        attempt.scope, attempt.is_postponed = trio.CancelScope(), False
        try:
            with attempt.scope:
                await self._start(item_run, attempt)
                if not attempt.is_postponed:
                    self._waiting.pop(item_run, None)
        except Exception as error:  # whatever it is, it is the item's
            if self._waiting.pop(item_run, None) is not None:
                self._give_up(item_run, attempt, error)

    def _give_up(self, item_run: ItemRun, attempt: Attempt, error: BaseException) -> None:
        self.drop(attempt)
        self._fail(item_run, error)


def _effects(steps: tuple[Step, ...]) -> tuple[tuple[Step, Node], ...]:
    """Return the nodes of a plan that do more than their outputs tell, and their steps."""
    return tuple(
        (step, node)
        for step in steps
        if isinstance(step.work, Subgraph)
        for node in step.work.graph.nodes
        if acts_outside(node) or node.operator.ordered
    )


def _never_began(error: BaseException | None) -> bool:
    return isinstance(error, DeviceLostError) and error.queued


def _room(slots: Slots, inputs: Iterable[str], room: Inputs) -> Inputs:
    """Return bytes for inputs, the largest within bounds: those that there are, if enough.

    For text there are objects in their place.
    """
    found = {}
    for name in inputs:
        specs = [plan.graph.tensors[name] for plan in (slots.plan, slots.open_plan.plan)]
        most = max(spec.nbytes for spec in specs)
        enough = name in room and room[name].nbytes >= most
        dtype = TEXT if specs[0].dtype == TEXT else np.dtype(np.uint8)
        found[name] = room[name] if enough else np.empty(most // dtype.itemsize, dtype)
    return found


def _copies(slots: Slots, room: Inputs, inputs: Inputs) -> Inputs:
    """Return arrays of an item's shapes in such bytes."""
    specs = slots.open_plan.plan.graph.tensors
    return {name: _as_in(room[name], inputs[name].shape, specs[name].dtype) for name in room}


def _as_in(room: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == TEXT:
        return room[: prod(shape)].reshape(shape)
    return np.ndarray(shape, dtype, room)


def _because(error: DeviceLostError, fix: str) -> DeviceLostError:
    made = DeviceLostError(error.what, at=error.at, fix=fix)
    made.__cause__ = error
    return made
