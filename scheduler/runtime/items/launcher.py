"""The start of an item: it gets a slot, its inputs are written there, its first steps begin.

Where devices may die, this happens again: a plan may be lost before an item has got a slot of it,
or when it is under way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import trio

from ....devices.errors import DeviceLostError
from ....devices.exchange import Loan
from ....graph.tensor import Array
from ..dispatcher import Dispatcher
from ..events import Announcer
from ..faults.recovery import Recovery
from ..faults.replays import Attempt, Replays
from ..faults.watch import Watch
from ..opened.copying import are_small
from ..opened.open_plans import OpenPlans
from ..opened.slot import Slot
from ..opened.slots import Slots, Turn, session_closed
from ..variables.variables import Variables
from ..virtual_time import VirtualTimeDriver
from .completion import ItemCompletion
from .executor import Execution
from .item import ItemRun

T = TypeVar("T")


class ItemLauncher:
    """Starts items; used on the trio thread only.

    Parameters
    ----------
    pace : VirtualTimeDriver
    open_plans : OpenPlans
    recovery : Recovery
    landing : ItemCompletion
    flights : set of ItemRun
        Those that are under way; who starts is put in.
    announcer : Announcer
    dispatcher : Dispatcher
    variables : Variables
        Items wait for their turn with them.
    watch : Watch
    """

    def __init__(
        self,
        pace: VirtualTimeDriver,
        open_plans: OpenPlans,
        recovery: Recovery,
        landing: ItemCompletion,
        flights: set[ItemRun],
        announcer: Announcer,
        dispatcher: Dispatcher,
        variables: Variables,
        watch: Watch,
    ) -> None:
        self._pace = pace
        self._open_plans = open_plans
        self._recovery = recovery
        self._landing = landing
        self._flights = flights
        self._dispatcher = dispatcher
        self._variables = variables
        self._replays = Replays(recovery, announcer, self._start_again, self._fail)
        self._watch = watch
        self._closing = False

    def refuse(self) -> None:
        """Start no more items."""
        self._closing = True

    @property
    def is_busy(self) -> bool:
        """True while items wait to be started again."""
        return self._replays.is_busy

    async def settle(self) -> None:
        """Wait until no item waits to be started again: others are admitted after them."""
        await self._replays.settle()

    async def start(
        self,
        flight: ItemRun,
        slots: Slots,
        arrays: Mapping[str, Array],
        attempt: Attempt | None = None,
    ) -> None:
        """Start an item on a free slot, or again after another attempt.

        Raises
        ------
        DeviceError, SessionError
            If it cannot start; it holds no slot then.
        """
        turn = self.turn_nowait(slots)
        if turn is None:
            slots, turn = await self._turn(flight, slots, again=attempt is not None)
        await self.begin(flight, slots, turn, arrays, attempt)

    def turn_nowait(self, slots: Slots | None) -> Turn | None:
        """Return a slot that an item can start on at once; None if something is to be waited for.

        Raises
        ------
        SessionError
            If the session is being closed.
        """
        if slots is None or slots.are_lost or self._replays.is_busy:
            return None
        return slots.acquire_nowait()

    async def begin(
        self,
        flight: ItemRun,
        slots: Slots,
        turn: Turn,
        arrays: Mapping[str, Array],
        attempt: Attempt | None = None,
    ) -> None:
        """Start an item on the slot that it has got.

        Raises
        ------
        DeviceError, SessionError
            If it cannot start; it holds no slot then.
        """
        flight.marks.admitted_ns = self._pace.now_ns()
        if turn.bound_ns is not None:
            flight.marks.prepare("binding", *turn.bound_ns)
        try:
            if are_small(arrays.values()):
                _feed(turn.slot, arrays)
            else:
                await self._pace.on_thread(partial(_feed, turn.slot, arrays))
            if self._replays.guards(slots):
                await self._guard(flight, slots, arrays, attempt)
            turn = await self._variables.enter(flight, slots.open_plan, turn)
            slot = turn.slot
            if slot.arrivals:
                slot = await self.copying(arrays.values(), partial(slot.handed, arrays))
            if slot.departures:
                slot, flight.departed = slot.left(copy=not flight.holds)
            flight.marks.fed_ns = self._pace.now_ns()
            if self._closing or flight.done.is_set():  # it was given up meanwhile
                raise session_closed()
        except BaseException:
            self._replays.abandon(flight)
            self._variables.leave(flight)
            slots.release(turn)
            raise
        flight.outcome = None  # it may have been started before
        ended = partial(self._over, flight, slots, turn)
        if flight.age is None:
            flight.age = slots.open_plan.lanes.next_age()
        flight.execution = Execution(slots.open_plan, slot, ended, turn.number, flight.age)
        self._flights.add(flight)
        flight.execution.start()
        self._pace.wake()

    async def copying(self, arrays: Iterable[Array], copy: Callable[[], T]) -> T:
        """Call what copies arrays, on a thread if they are large."""
        return copy() if are_small(arrays) else await self._pace.on_thread(copy)

    async def _turn(self, flight: ItemRun, slots: Slots, *, again: bool) -> tuple[Slots, Turn]:
        """Wait for a slot; devices may die while it is made, or before."""
        deaths = 0
        while True:
            try:
                if slots.are_lost:
                    if not again:
                        await self._replays.settle()
                    slots = await self._redirected(flight, slots)
                turn = await slots.acquire()
            except DeviceLostError:
                deaths += 1
                self._recovery.examine()
                if not slots.are_lost or deaths > self._recovery.policy.replays:
                    raise
            else:
                if not slots.are_lost:
                    return slots, turn
                slots.release(turn)

    async def _guard(
        self,
        flight: ItemRun,
        slots: Slots,
        arrays: Mapping[str, Array],
        attempt: Attempt | None,
    ) -> None:
        """Be prepared for the loss of a device that an item runs on."""
        if attempt is None:
            attempt = self._replays.keep(slots, arrays, owned=flight.is_part)
            if attempt.inputs is not arrays:
                room = {n: a for n, a in attempt.inputs.items() if not isinstance(a, Loan)}
                await self.copying(arrays.values(), partial(_copy, room, arrays))
        self._replays.begin(flight, slots, attempt)
        flight.on_cancel = partial(self._given_up, flight, slots)

    def _given_up(self, flight: ItemRun, slots: Slots) -> None:
        self._replays.cancel(flight)
        if flight.execution is not None:
            self._watch.over(flight, slots.open_plan.plan.steps)

    def _over(self, flight: ItemRun, slots: Slots, turn: Turn) -> None:
        """Take what came of an item, on the thread that ended it, and tell the loop."""
        self._landing.take(flight, turn.slot)
        self._pace.call(partial(self._land, flight, slots, turn))

    def _land(self, flight: ItemRun, slots: Slots, turn: Turn) -> None:
        """End an item, or start it again."""
        if self._replays.take(flight):
            if not slots.open_plan.keeps:  # who assigns keeps its turn: it is started again
                self._variables.leave(flight)
            slots.release(turn)
        else:
            self._landing.land(flight, slots, turn)

    async def _redirected(self, flight: ItemRun, slots: Slots) -> Slots:
        """Return slots in place of those of a plan that was lost."""
        flight.variant = self._dispatcher.move(flight)
        return await self._open_plans.again(slots, flight.variant)

    @trio.lowlevel.enable_ki_protection
    async def _start_again(self, flight: ItemRun, attempt: Attempt) -> None:
        slots = await self._redirected(flight, attempt.slots)
        await self.start(flight, slots, attempt.inputs, attempt)

    def _fail(self, flight: ItemRun, error: BaseException) -> None:
        if not flight.is_part:
            self._landing.record(flight, flight.cause or error)
        self._variables.leave(flight)
        self._flights.discard(flight)
        flight.finish(error=error)


def _feed(slot: Slot, arrays: Mapping[str, Array]) -> None:
    _copy(slot.feeds, arrays)


def _copy(targets: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    for name, target in targets.items():
        target[...] = arrays[name]
