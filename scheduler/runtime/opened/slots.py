"""The slots of an open plan, handed out to items.

A slot is one item's share of the planned memory, with the steps bound to it. To bind a step costs
from some µs to a second (a program of a GPU), so slots are made once and used again. A plan has as
many slots as items may be in flight, and as many bindings as its period: regions have fewer copies
than slots, and slot n shares those of slot n - copies (`docs/memory.md`).

Items get their slots in the order of admission. Where regions are claimed in turn, the number of an
item decides its copies, so a slot is not chosen: the guard gives the next number. Elsewhere any
free slot will do, and the one that was used last is taken, since its memory is in the caches.

Plans for other lengths may run in the arenas of a larger plan (`base`). They share its permits and
free slots: two items in the same arenas must not get the same memory, whichever plan they are on.

All runs on the trio thread, so nothing here is locked. `resting` serves items that end before any
other task can run; they take no permit, since no other item could ask for it meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import trio

from ....graph.values.tensor import Array
from ...errors import session_closed_error
from ...plans.plan import Plan
from ...plans.regions import ADMISSION
from ..tasks import TaskPermits
from ..virtual_time import VirtualTimeDriver
from .one_off import OneOffLengths
from .open_plan import OpenPlan
from .slot import Slot

MADE_AHEAD = 16
"""Slots beyond this number are made when first needed."""


class Turn(NamedTuple):
    """A slot that an item is on.

    Attributes
    ----------
    number : int
        The item's, in the order of admission; without a guard the slot's.
    bound_ns : (int, int), optional
        When the slot was made, if it was made for the item.
    ticket : int, optional
        The item's number in the order of items, where some of its steps follow that.
    """

    slot: Slot
    number: int
    bound_ns: tuple[int, int] | None = None
    ticket: int | None = None


@dataclass(slots=True)
class _Holders:
    """The items on an open plan, and on plans in its arenas."""

    permits: TaskPermits
    free: list[int]
    """Free slots, without a guard."""
    waiting: set[trio.Event] = field(default_factory=set)
    """Events of the items that wait to be fed."""
    claims: int = 0
    """How many hold a slot or wait for one."""
    closing: bool = False
    are_lost: bool = False


class Slots:
    """Hands out the slots of an open plan; used on the trio thread only, but for `fill`.

    Slots are made when first needed, up to the plan's period. `on_thread` calls the function that
    makes one; a slot being made is held already, so its plan is not idle meanwhile. Those of a plan
    that runs in the arenas of another one are handed out together with those. `plan` is the origin
    of the plan with the arenas, for planning again when a device is lost. `stages` binds their
    steps to the lengths of an item, or is None; `one_off` replaces plans of other lengths in these
    arenas, for one item each, or is None.
    """

    def __init__(
        self,
        open_plan: OpenPlan,
        on_thread: Callable[[Callable[[], Slot]], Awaitable[Slot]],
        driver: VirtualTimeDriver,
        base: Slots | None = None,
    ) -> None:
        self.open_plan = open_plan
        self.stages = open_plan.stages
        self.one_off: OneOffLengths | None = None
        self.plan: Plan = open_plan.plan if base is None else base.plan
        self._on_thread = on_thread
        self._driver = driver
        count = open_plan.plan.max_in_flight
        free = list(range(count))[::-1]
        self._holders: _Holders = (
            _Holders(TaskPermits(count), free) if base is None else base._holders
        )
        self._permits, self._free = self._holders.permits, self._holders.free
        self._guard = open_plan.guard
        self._order = open_plan.lanes.order

    @property
    def is_idle(self) -> bool:
        """True when no item holds a slot or waits for one."""
        return self._holders.claims == 0

    @property
    def resting(self) -> Slot | None:
        """The slot that the next item would get, if no other one is on any; None if it is not made.

        For an item that ends before any other can ask for a slot: it needs no turn.
        """
        if self._holders.claims or self._holders.closing:
            return None
        following = self._free[-1] if self._guard is None else self._guard.following
        return self.open_plan.slots.get(following % self.open_plan.period)

    def can_hold(self) -> bool:
        """Return whether the resting slot can be held: another one is made for the next item."""
        if self._guard is not None or len(self._free) < 2:
            return False
        return self._free[-2] % self.open_plan.period in self.open_plan.slots

    def hold(self, slot: Slot) -> int:
        """Keep `slot`, which was resting, for its item; return its number, for `let_go`."""
        slots, period = self.open_plan.slots, self.open_plan.period
        number = next(n for n in self._free if slots.get(n % period) is slot)
        self._free.remove(number)
        return number

    def let_go(self, number: int) -> None:
        self._free.insert(0, number)  # the one that was used last stays the next

    @property
    def are_lost(self) -> bool:
        """True when a device of the plan was lost: its items fail."""
        return self._holders.are_lost

    def lose(self) -> None:
        self._holders.are_lost = True

    def beside(self, open_plan: OpenPlan) -> Slots:
        return Slots(open_plan, self._on_thread, self._driver, self)

    def fill(self) -> None:
        """Make the slots now, within reason; blocks."""
        for turned in {frozenset(), self.open_plan.turning}:
            for index in range(min(self.open_plan.period, MADE_AHEAD)):
                self.open_plan.make_slot(index, turned)
        if self.open_plan.stages is not None:
            self.open_plan.stages.bind_ahead()

    def of_one_off(self, arrays: Mapping[str, Array]) -> Slots | None:
        """Return slots for `arrays` of other lengths, or None if these need a plan of their own."""
        one_off = self.one_off  # another thread may exchange it
        if one_off is None or not one_off.may_bind(arrays):
            return None
        made = self.beside(one_off.open_plan)
        made.stages = made.one_off = one_off
        return made

    def refuse(self) -> None:
        """Give no more slots, and refuse waiting items."""
        self._holders.closing = True
        # All wake up, find that the session is closing, and raise.
        self._permits.waiting.unpark_all()
        for reached in self._holders.waiting:
            reached.set()

    @property
    def following(self) -> int:
        """The number of the slot that the next item gets, unless others come before it."""
        if self._guard is not None:
            return self._guard.following % self.open_plan.period
        return (self._free[-1] if self._free else 0) % self.open_plan.period

    def acquire_nowait(self, *, is_part: bool = False, state: Hashable = None) -> Turn | None:
        """Return the turn of an item, or a part if `is_part`, on a free slot; None if it must wait.

        Items that go through several plans have their place in the order of items already. Others
        follow those of the same `state`.

        Raises
        ------
        SessionError
            If the session is being closed.
        """
        if self._holders.closing:
            raise session_closed_error()
        guard, open_plan = self._guard, self.open_plan
        # A free slot is not enough where regions are claimed in turn: the one before may still be
        # read.
        if not self._permits.free or not (guard is None or guard.has_room(ADMISSION)):
            return None
        number = self._free[-1] if guard is None else guard.following
        slot = open_plan.slots.get(number % open_plan.period)
        if slot is None:
            return None
        self._permits.free -= 1
        self._holders.claims += 1
        number = self._free.pop() if guard is None else guard.admit()
        return Turn(slot, number, None, self._ticket(is_part=is_part, state=state))

    async def acquire(self, *, is_part: bool = False, state: Hashable = None) -> Turn:
        """Return the turn of an item with `state`, or a part if `is_part`, once its slot is free.

        Raises
        ------
        SessionError
            If the session is being closed.
        DeviceError
            If the slot has to be made and a device refuses.
        """
        turn = self.acquire_nowait(is_part=is_part, state=state)  # saves a turn of the loop, 10 µs
        if turn is not None:
            return turn
        # Before any wait: a plan with waiting items is not idle, and must not be evicted.
        self._holders.claims += 1
        try:
            await self._permits.acquire()
            if self._holders.closing:
                raise session_closed_error()
            try:
                return await self._take_turn(is_part=is_part, state=state)
            except BaseException:
                self._permits.give_back()
                raise
        except BaseException:
            self._holders.claims -= 1
            raise

    def release(self, turn: Turn) -> None:
        """Give the slot of `turn` back; items that waited for its memory continue."""
        self._holders.claims -= 1
        self._leave(turn.number, turn.ticket)
        self._permits.give_back()

    def _ticket(self, *, is_part: bool, state: Hashable) -> int | None:
        """Return the number of an item with `state` in the order of items; None if `is_part`.

        So numbers of slots and of items grow together, and items wait for earlier ones alone.
        """
        plan = self.open_plan
        ordered = plan.ordered if state is None else plan.ordered_by_key
        return self._order.admit(ordered, state) if ordered.claims and not is_part else None

    async def _take_turn(self, *, is_part: bool, state: Hashable) -> Turn:
        # From here on the place is taken, so that it has to be left whatever happens.
        number = self._free.pop() if self._guard is None else self._guard.admit()
        ticket = self._ticket(is_part=is_part, state=state)
        try:
            if self._guard is not None and ADMISSION in self._guard.claiming:
                await self._pass_guard(number)
            index = number % self.open_plan.period
            slot = self.open_plan.slots.get(index)
            if slot is not None:
                return Turn(slot, number, None, ticket)
            begin_ns = self._driver.now_ns()
            slot = await self._on_thread(partial(self.open_plan.make_slot, index))
            return Turn(slot, number, (begin_ns, self._driver.now_ns()), ticket)
        except BaseException:
            self._leave(number, ticket)
            raise

    async def _pass_guard(self, number: int) -> None:
        assert self._guard is not None
        reached = trio.Event()
        if self._guard.claim(number, ADMISSION, partial(self._reach, reached)):
            return
        self._holders.waiting.add(reached)
        try:
            await reached.wait()
        finally:
            self._holders.waiting.discard(reached)
        if self._holders.closing:
            raise session_closed_error()

    def _reach(self, reached: trio.Event) -> None:
        """Set `reached`, which wakes the task that waits to be fed. Thread-safe."""
        if trio.lowlevel.in_trio_run():
            reached.set()  # saves a turn of the loop
        else:
            self._driver.post(reached.set)

    def _leave(self, number: int, ticket: int | None) -> None:
        if ticket is not None:
            self._order.leave(ticket)
        if self._guard is None:
            self._free.append(number)
        else:
            self._guard.leave(number)
